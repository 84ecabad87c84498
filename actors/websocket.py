"""Where rota meets the websockets library: what the library does not do, or does later than rota needs.

Knows the library's `ServerConnection` and four things about it:

- It parses a GET without a body only. A POST, a body, or a second request behind the first would be answered by an
  empty reply, and a HEAD not at all.
- What it cannot parse it answers in plain text, or not at all.
- It answers pings at once, into a buffer without bound: a client that only pings and never reads would fill it.
- It tells a reader that the client has left only when TCP has ended. A client that says goodbye with answers unread
  keeps TCP alive until it gives up waiting, and its requests would run on for as long.

Knows nothing of paths, keys or events.
"""

import asyncio
import struct
from collections.abc import Awaitable
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.http11 import Response
from websockets.protocol import OPEN, State

from actors.socket import SocketGone

NO_CODE = 1006
_LONGEST_REQUEST_LINE = 8192
_LONGEST_HEAD = 64 * 2**10
"""From here on the library has to make of it what it can."""
_TEXT = 0x81
"""The first byte of a frame of text that is a whole message."""
_SHORT_HEAD, _LONG_HEAD = struct.Struct("!BBH").pack, struct.Struct("!BBQ").pack
_UNREAD_PONGS = 256 * 2**10
"""Bytes of answers to pings, and of whatever else the library says by itself, that may wait for their reader."""


class HttpConnection(ServerConnection):
    """A connection that says which method was asked for, and completes `left` when its client leaves.

    Only GET reaches the library's parser. HEAD and OPTIONS are given to it as a GET of the same head; of any other
    method only the request line is. What follows, a body above all, is dropped unread, unless it follows an upgrade.
    `method` has the truth. What cannot be read is answered by `explain`.
    """

    method = "GET"

    def explain(self, status: HTTPStatus, fault: str) -> Response:
        """The answer to a request that cannot be read. `fault` is no sentence."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.left: asyncio.Future[int] = self.loop.create_future()
        self.frame_bytes = 0
        """The size of the frame that was sent last: rightly, no more than that, and little else, waits to be read."""
        self._head: bytearray | None = bytearray()
        self._dropping = False
        self._explained = False
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            return
        if self._head is not None:
            self._head += data
            request = self._as_get(bytes(self._head))
            if request is None:
                return
            data, self._head = request, None
        super().data_received(data)
        if self.transport.get_write_buffer_size() > self.frame_bytes + self.write_limit_high + _UNREAD_PONGS:
            self.transport.abort()
        self._notice()

    def eof_received(self) -> None:
        super().eof_received()
        self._notice()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._notice()

    def send_data(self) -> None:
        fault = self.protocol.handshake_exc
        # A client that goes without a word has asked nothing.
        if fault is not None and self.request is None and not self._explained and self._head != bytearray():
            self._explained = True
            response = self.explain(_status(fault), str(fault.__cause__ or fault))
            if self.method == "HEAD":
                response.body = b""
            # Instead of what the library says, if anything. The last of its writes is the end.
            self.protocol.writes[:-1] = [response.serialize()]
        super().send_data()

    def _as_get(self, data: bytes) -> bytes | None:
        """What the library is given to read; None while that cannot be said."""
        line, ended, _ = data.partition(b"\n")
        if not ended and len(data) < _LONGEST_REQUEST_LINE:
            return None
        method, space, rest = line.rstrip(b"\r").partition(b" ")
        if not (space and method.isalpha() and method.isupper() and line.endswith(b"\r")):
            return data
        self.method = method.decode("ascii")
        if self.method not in ("GET", "HEAD", "OPTIONS"):
            self._dropping = True
            return b"GET " + rest + b"\r\n\r\n"
        head, whole, _ = data.partition(b"\r\n\r\n")
        if not whole and len(data) < _LONGEST_HEAD:
            return None
        lines = head.split(b"\r\n")
        if not whole or any(line.lower().startswith(b"upgrade:") for line in lines):
            return b"GET" + data[len(method) :]
        self._dropping = True
        lines = [line for line in lines if not line.lower().startswith((b"content-length:", b"transfer-encoding:"))]
        return b"GET" + b"\r\n".join(lines)[len(method) :] + b"\r\n\r\n"

    def _notice(self) -> None:
        if self.left.done() or self.protocol.state in (State.CONNECTING, OPEN):
            return
        close = self.protocol.close_rcvd or self.protocol.close_sent
        self.left.set_result(NO_CODE if close is None else int(close.code))


class WebSocket:
    """`actors.socket.Socket` over the library's connection."""

    def __init__(self, connection: HttpConnection, close_timeout_s: float) -> None:
        self._connection = connection
        self._close_timeout_s = close_timeout_s

    async def recv(self) -> bytes | str:
        left = self._connection.left
        receiving = asyncio.ensure_future(_message(self._connection.recv()))
        try:
            await asyncio.wait((receiving, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not receiving.done():
                receiving.cancel()
        # Frames read before the goodbye are let go with it: nobody is there for their answers.
        message = None if left.done() else receiving.result()
        if message is None:
            raise SocketGone(left.result() if left.done() else NO_CODE)
        return message

    def offer(self, frame: bytes) -> bool:
        connection = self._connection
        # The library's `send` is made for extensions, fragments and waiting, which takes longer than to write a token.
        # None of them is here, and a whole message of text changes nothing in the state of its protocol.
        if connection.paused or connection.protocol.state is not OPEN or connection.transport.is_closing():
            return False
        connection.frame_bytes = len(frame)
        connection.transport.write(text_frame(frame))
        return True

    async def send(self, frame: bytes) -> None:
        self._connection.frame_bytes = len(frame)
        try:
            await self._connection.send(frame, text=True)
        except ConnectionClosed as closed:
            raise SocketGone(NO_CODE if closed.rcvd is None else int(closed.rcvd.code)) from None

    async def close(self, code: int, reason: str) -> None:
        # The library bounds its wait for the answer, but not its wait for room to send the goodbye in.
        try:
            async with asyncio.timeout(self._close_timeout_s):
                await self._connection.close(code, reason)
        except TimeoutError:
            self._connection.transport.abort()


def text_frame(text: bytes) -> bytes:
    """A whole message of text as a server sends it (RFC 6455, section 5.2)."""
    length = len(text)
    if length < 126:
        head = bytes((_TEXT, length))
    elif length < 2**16:
        head = _SHORT_HEAD(_TEXT, 126, length)
    else:
        head = _LONG_HEAD(_TEXT, 127, length)
    return head + text


def _status(fault: Exception) -> HTTPStatus:
    match fault:
        case RequestLineTooLong():
            return HTTPStatus.REQUEST_URI_TOO_LONG
        case HeaderLineTooLong() | TooManyHeaders():
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        case _:
            return HTTPStatus.BAD_REQUEST


async def _message(received: Awaitable[bytes | str]) -> bytes | str | None:
    """None when the connection has closed: a task that nobody awaits any more must not end with an exception."""
    try:
        return await received
    except ConnectionClosed:
        return None
