"""The files of `web/` and how each is answered over HTTP.

Reads them once, so that what a server serves does not change while it runs. Knows nothing of sockets or of who asks.
"""

import gzip
import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from msgspec import Struct

from actors.scripts import joined, shortened

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Nothing inline, nothing from elsewhere, and no way from text to markup (Trusted Types). `frame-ancestors` does not
# fall back to `default-src`, and a framed page could be made to send what its reader did not mean to.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class Page(Struct, frozen=True):
    """One file, ready to be sent: as it is, or gzipped to a client that takes that."""

    body: bytes
    gzipped: bytes
    headers: dict[str, str]
    etag: str

    def encoded(self, accepted: str) -> tuple[dict[str, str], bytes]:
        """Headers and body for a client whose `Accept-Encoding` that is."""
        for offered in accepted.lower().split(","):
            coding, *parameters = "".join(offered.split()).split(";")
            if coding == "gzip" and not any(parameter.rstrip("0.") == "q=" for parameter in parameters):
                return {**self.headers, "Content-Encoding": "gzip"}, self.gzipped
        return self.headers, self.body

    def is_known(self, tags: str) -> bool:
        """Whether a client whose `If-None-Match` that is has it. Whether a tag is weak makes no difference there."""
        strong = self.etag.removeprefix("W/")
        return any(tag.strip().removeprefix("W/") in (strong, "*") for tag in tags.split(","))


def read_pages() -> dict[str, Page]:
    """Every page and script by its path: `/name.js`, `/folder/name.js`, `/name.html` also as `/name`, `/` the index."""
    files = {
        path: file.read_text(encoding="utf-8")
        for path, file in _files(resources.files("web"), "/")
        if _suffix(path) in _TYPES
    }
    pages: dict[str, Page] = {}
    for path, text in files.items():
        suffix = _suffix(path)
        if suffix == ".js":
            # What stands at the top is for pages to load; the modules below it are what it is made of.
            text = shortened(joined(path, files.__getitem__) if path.count("/") == 1 else text)
        pages[path] = page = _page(text.encode(), _TYPES[suffix])
        if suffix == ".html":
            pages[path.removesuffix(".html").removesuffix("index")] = page
    return pages


def _suffix(path: str) -> str:
    return path[path.rfind(".") :]


def _files(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        else:
            yield path + entry.name, entry


def _page(body: bytes, content_type: str) -> Page:
    # Weak, as it stands for both encodings.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {
        "Content-Type": content_type,
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # The widget's scripts are public, and a page elsewhere may use them from here.
        "Access-Control-Allow-Origin": "*",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
        "ETag": etag,
    }
    return Page(body, gzip.compress(body, mtime=0), headers, etag)
