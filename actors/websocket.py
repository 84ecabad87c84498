"""Where rota meets the websockets library: what the library does not do, or does later than rota needs.

Knows the library's `ServerConnection` and two things about it:

- It parses GET only. A POST, with its body, would be answered by an empty reply, and a HEAD not at all.
- It tells a reader that the client has left only when TCP has ended. A client that says goodbye with answers unread
  keeps TCP alive until it gives up waiting, and its requests would run on for as long.

Knows nothing of paths, keys or events.
"""

import asyncio
from collections.abc import Awaitable

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import OPEN, State

from actors.socket import SocketGone

NO_CODE = 1006
_LONGEST_REQUEST_LINE = 8192


class HttpConnection(ServerConnection):
    """A connection that says which method was asked for, and completes `left` when its client leaves.

    Only GET reaches the library's parser. HEAD and OPTIONS are given to it as a GET of the same head; of any other
    method only the request line is, and what follows, a body above all, is dropped unread. `method` has the truth.
    """

    method = "GET"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.left: asyncio.Future[int] = self.loop.create_future()
        self._head: bytearray | None = bytearray()
        self._dropping = False
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            return
        if self._head is not None:
            self._head += data
            if b"\n" not in self._head and len(self._head) < _LONGEST_REQUEST_LINE:
                return
            data, self._head = bytes(self._head), None
            data = self._as_get(data)
        super().data_received(data)
        self._notice()

    def eof_received(self) -> None:
        super().eof_received()
        self._notice()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._notice()

    def _as_get(self, data: bytes) -> bytes:
        line = data.partition(b"\n")[0].rstrip(b"\r")
        method, space, rest = line.partition(b" ")
        if not (space and method.isalpha() and method.isupper()) or method == b"GET":
            return data
        self.method = method.decode("ascii")
        if self.method in ("HEAD", "OPTIONS"):
            return b"GET" + data[len(method) :]
        self._dropping = True
        return b"GET " + rest + b"\r\n\r\n"

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

    async def send(self, frame: bytes) -> None:
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


async def _message(received: Awaitable[bytes | str]) -> bytes | str | None:
    """None when the connection has closed: a task that nobody awaits any more must not end with an exception."""
    try:
        return await received
    except ConnectionClosed:
        return None
