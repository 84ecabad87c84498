"""HTTP/1.1 from the asking side, as far as a stream of server-sent events needs it.

Knows status lines, headers, the three ways in which a body can end, and the lines of an event stream. Knows nothing of
what the events say. Our own, because the client shares the processor with the server it measures: a chunk costs two
reads of a buffer here, where h11 and httpx parse it in Python several times over. What is left out is refused, not
guessed at: anything that is not well-formed HTTP/1.1 raises `Garbled`.
"""

import asyncio
import re
from collections.abc import AsyncIterator

from msgspec import Struct

LARGEST_CHUNK = 2**24
"""Bytes. No event of an answer is near it."""
MOST_HEADERS = 200
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]+)[ \t]*(?:;.*)?")
"""Behind the number may stand extensions."""


class Garbled(Exception):
    """What came is not HTTP/1.1. The message says where it is not."""


class Head(Struct, frozen=True):
    """The status line and the headers, their names in lower case; of a header that came twice, the last."""

    status: int
    reason: str
    headers: dict[str, str]
    kept_alive: bool
    """Whether the connection can be asked again after the body."""

    @property
    def chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def length(self) -> int | None:
        """Of the body in bytes; None when it is chunked, or ends with the connection. Raises `Garbled`."""
        text = self.headers.get("content-length")
        if self.chunked or text is None:
            return None
        if not (text.isascii() and text.isdigit()):
            raise Garbled(f"Content-Length {text!r}")
        return int(text)


async def read_head(reader: asyncio.StreamReader) -> Head:
    """The head of the answer itself: interim ones (1xx) are passed over.

    Raises `Garbled`; `asyncio.IncompleteReadError` or `OSError` when the connection is gone.
    """
    while True:
        head = await _read_one_head(reader)
        if head.status >= 200:
            return head


async def _read_one_head(reader: asyncio.StreamReader) -> Head:
    first = await _line(reader)
    version, _, rest = first.partition(b" ")
    code, _, reason = rest.partition(b" ")
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise Garbled(f"status line {first[:80]!r}")
    headers: dict[str, str] = {}
    for _ in range(MOST_HEADERS):
        line = await _line(reader)
        if not line:
            break
        name, colon, value = line.partition(b":")
        if not colon:
            raise Garbled(f"header {line[:80]!r}")
        headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    else:
        raise Garbled(f"more than {MOST_HEADERS} headers")
    framed = "content-length" in headers or "transfer-encoding" in headers
    closes = "close" in headers.get("connection", "").lower() or version != b"HTTP/1.1" or not framed
    return Head(int(code), reason.decode("latin-1"), headers, not closes)


async def pieces(reader: asyncio.StreamReader, head: Head) -> AsyncIterator[bytes]:
    """The body, in the pieces it came in, to its end. Raises as `read_head`; a body that is cut off is incomplete."""
    coding = head.headers.get("transfer-encoding")
    if coding is not None and not head.chunked:
        raise Garbled(f"Transfer-Encoding {coding!r}")
    if head.chunked:
        while size := _chunk_size(await _line(reader)):
            chunk = await reader.readexactly(size + 2)
            if not chunk.endswith(b"\r\n"):
                raise Garbled("a chunk that is longer than its size")
            yield chunk[:-2]
        while await _line(reader):  # trailers
            pass
    elif (left := head.length) is not None:
        while left:
            piece = await reader.read(left)
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece
    else:
        while piece := await reader.read(2**16):
            yield piece


def _chunk_size(line: bytes) -> int:
    found = _CHUNK_SIZE.fullmatch(line)
    size = int(found[1], 16) if found else LARGEST_CHUNK + 1
    if size > LARGEST_CHUNK:
        raise Garbled(f"chunk size {line[:80]!r}")
    return size


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\n")).rstrip(b"\r\n")
    except asyncio.LimitOverrunError as endless:
        raise Garbled("a line without an end") from endless


class EventStream:
    """The `data` of server-sent events, from bytes as they come (WHATWG HTML, "Server-sent events").

    An event may lie in several pieces and a piece hold several events. Comments and other fields are passed over.
    """

    def __init__(self) -> None:
        self._partial = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The events that are complete with this piece."""
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n")
        *lines, self._partial = (self._partial + piece).split(b"\n")
        complete: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")  # its line feed came with the next piece
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                complete.append(b"\n".join(self._data))
                self._data = []
        return complete
