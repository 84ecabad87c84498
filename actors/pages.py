"""The files of `web/` and how each is answered over HTTP.

Reads them once, so that what a server serves does not change while it runs. Knows nothing of sockets or of who asks.
"""

import hashlib
from importlib import resources

from msgspec import Struct

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Sockets are allowed to any host because the widget on the page can be pointed at another rota. `frame-ancestors` does
# not fall back to `default-src`, and a framed page could be made to send what its reader did not mean to.
_POLICY = (
    "default-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Page(Struct, frozen=True):
    """One file, ready to be sent."""

    body: bytes
    headers: dict[str, str]
    etag: str


def read_pages() -> dict[str, Page]:
    """Every page and script by its path: `/name.js`, `/name.html` also as `/name`, and `/` for the index."""
    pages: dict[str, Page] = {}
    for file in resources.files("web").iterdir():
        stem, dot, suffix = file.name.rpartition(".")
        content_type = _TYPES.get(dot + suffix)
        if content_type is None or not file.is_file():
            continue
        page = _page(file.read_bytes(), content_type)
        pages["/" + file.name] = page
        if suffix == "html":
            pages["/" if stem == "index" else "/" + stem] = page
    return pages


def _page(body: bytes, content_type: str) -> Page:
    etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {
        "Content-Type": content_type,
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # The widget's scripts are public, and a page elsewhere may use them from here.
        "Access-Control-Allow-Origin": "*",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "Cache-Control": "no-cache",
        "ETag": etag,
    }
    return Page(body, headers, etag)
