"""Where rota meets the websockets library: what the library does not do, or does later than rota needs.

Knows the library's `ServerConnection` and five things about it:

- It parses a GET without a body only. A POST, a body, or a second request behind the first would be answered by an
  empty reply, and a HEAD not at all.
- What it cannot parse it answers in plain text, or not at all.
- It answers pings at once, into a buffer without bound: a client that only pings and never reads would fill it.
- It reads all that has come in one turn of the loop: of tiny frames, tens of thousands, for a second. And it counts
  none of them.
- It tells a reader that the client has left only when TCP has ended. A client that says goodbye with answers unread
  keeps TCP alive until it gives up waiting, and its requests would run on for as long.

Knows nothing of paths, keys or events.
"""

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, HeaderLineTooLong, RequestLineTooLong, TooManyHeaders
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN, Event, State

from actors.message_rate import MessageRate
from actors.reading import reading_of
from actors.socket import SocketGone

NO_CODE = 1006
_LONGEST_REQUEST_LINE = 8192
_LONGEST_HEAD = 64 * 2**10
"""From here on the library has to make of it what it can."""
_TEXT = 0x81
"""The first byte of a frame of text that is a whole message."""
_SHORT_HEAD, _LONG_HEAD = struct.Struct("!BBH").pack, struct.Struct("!BBQ").pack
_PIECE = 2**9
"""Bytes that are surely read at once: of the smallest frames 85, in about 1 ms."""
_MESSAGE_S, _BYTE_S = 0.0001, 2e-7
"""What comes of a message, in the tasks that wait for it, takes at most about as long in the same turn of the loop: and
so much more for each of its bytes, of the worst (numbers of one digit, read twice to say which one is none)."""
_BURDEN, _LONGEST_BURDEN_S = 25.0, 2.0
"""Seconds by which one who brings a message counts as read later, for each second that it takes. One of 200 KB lets go
first who comes within the next second; the largest waits two at most."""
FRAGMENTS_PER_S, FRAGMENTS_AT_ONCE = 200, 8_192
"""Two messages, each of as many fragments as the library puts together."""
CONTROL_FRAME = 8
"""A ping or a pong counts as so many fragments: nobody needs many, and a ping is answered."""
_DROPPED = 2**20
"""Bytes that whoever was closed for a flood may still send; then its goodbye is not waited for any more."""
_UNREAD_PONGS = 256 * 2**10
"""Bytes of answers to pings, and of whatever else the library says by itself, that may wait for their reader."""


class HttpConnection(ServerConnection, ABC):
    """A connection that says which method was asked for, and completes `left` when its client leaves.

    Only GET reaches the library's parser. HEAD and OPTIONS are given to it as a GET of the same head; of any other
    method only the request line is. What follows, a body above all, is dropped unread, unless it follows an upgrade.
    `method` has the truth. What cannot be read is answered by `explain`.
    """

    method = "GET"

    @abstractmethod
    def explain(self, status: HTTPStatus, fault: str) -> Response:
        """The answer to a request that cannot be read. `fault` is no sentence."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.left: asyncio.Future[int] = self.loop.create_future()
        self.frame_bytes = 0
        """The size of the frame that was sent last: rightly, no more than that, and little else, waits to be read."""
        self._head: bytearray | None = bytearray()
        self._dropping = False
        self._explained = False
        self._unread = bytearray()
        self._reading = reading_of(self.loop)
        self.read_at = 0.0
        self._waits = False
        """For its turn to be read."""
        self._full = False
        """As many messages wait for their reader as may."""
        self._frames = MessageRate(FRAGMENTS_PER_S, FRAGMENTS_AT_ONCE)
        """Those that are no message of their own."""
        self._flooded = False
        self._dropped = 0
        self._message_bytes = 0
        """As far as they have been read."""
        super().connection_made(transport)
        self.recv_messages.pause, self.recv_messages.resume = self._pause, self._resume

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            return
        if self._head is not None:
            self._head += data
            request = self._as_get(bytes(self._head))
            if request is None:
                return
            data, self._head = request, None
        if self._flooded:
            self._dropped += len(data)
            if self._dropped > _DROPPED:
                self.transport.abort()
            return
        self._unread += data
        self._be_read(at_once=True)
        if self._unread:
            self._look_whether_to_read()

    def _be_read(self, *, at_once: bool = False) -> None:
        """Have what has come read in its turn, if anything has that can be read."""
        if self._waits or not self._can_be_read:
            return
        self._waits = True
        if at_once:
            self._reading.come(self)
        else:
            self._reading.wait(self)

    @property
    def _can_be_read(self) -> bool:
        return bool(self._unread) and not self._full

    def read_some(self) -> bool:
        """A bounded part of what has come. Behind the end of all that is sent, the library only drops what it reads."""
        size = len(self._unread) if self.protocol.eof_sent else _PIECE
        piece = bytes(self._unread[:size])
        del self._unread[:size]
        if not self.transport.is_closing():
            self._read(piece)
        self._look_whether_to_read()
        self._waits = self._can_be_read
        return self._waits

    @property
    def burden_s(self) -> float:
        return min(_LONGEST_BURDEN_S, _BURDEN * _BYTE_S * self._message_bytes)

    def _read(self, data: bytes) -> None:
        self._message_bytes += len(data)
        super().data_received(data)
        if self._frames.over and self.protocol.state in (OPEN, State.CLOSING) and not self.protocol.eof_sent:
            self._flooded = True
            self._unread.clear()
            self.protocol.fail(CloseCode.POLICY_VIOLATION, "too many frames")
            super().data_received(b"")
        if self.transport.get_write_buffer_size() > self.frame_bytes + self.write_limit_high + _UNREAD_PONGS:
            self.transport.abort()
        self._notice()

    def process_event(self, event: Event) -> None:
        super().process_event(event)
        if not isinstance(event, Frame):
            return
        if event.opcode in (Opcode.PING, Opcode.PONG):
            self._frames.take(self.loop.time(), CONTROL_FRAME)
        elif event.opcode is Opcode.CONT or not event.fin:
            self._frames.take(self.loop.time())
        if event.fin and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._reading.spend(_MESSAGE_S + self._message_bytes * _BYTE_S)
            self._message_bytes = 0

    def _pause(self) -> None:
        self._full = True
        self._look_whether_to_read()

    def _resume(self) -> None:
        self._full = False
        self._be_read()
        self._look_whether_to_read()

    def _look_whether_to_read(self) -> None:
        if self.transport.is_closing():
            self._unread.clear()
        elif self._full or self._unread:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def eof_received(self) -> None:
        super().eof_received()
        self._notice()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread.clear()
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
