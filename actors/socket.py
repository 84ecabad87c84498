"""What a connection needs of a socket, and nothing more of it.

`actors/websocket.py` gives this shape to the websockets library, the simulation to a fake. Knows no message, no event.
"""

from typing import Protocol


class SocketGone(Exception):
    """The socket is closed, or its other end has begun to close it: nothing more is read or written.

    `code` is the WebSocket close code, 1006 when there was none.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"socket closed ({code})")
        self.code = code


class Socket(Protocol):
    """One WebSocket. One task may receive and another send."""

    async def recv(self) -> bytes | str:
        """The next whole message: `str` for a text frame, `bytes` for a binary one. Raises `SocketGone` at once when
        the other end leaves, even with frames unread or a `send` that is stuck."""
        ...

    def offer(self, frame: bytes) -> bool:
        """Send UTF-8 as one text frame if that can be done without waiting. False, and nothing sent, when the socket
        has no room or is closed: `send` waits, or says so. Not while a `send` is under way."""
        ...

    async def send(self, frame: bytes) -> None:
        """Send UTF-8 as one text frame; returns when the socket has room for another. Raises `SocketGone`.

        A cancelled `send` may have sent the frame: only `close` may follow.
        """
        ...

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye, wait a bounded time for the answer, and let go. Never raises; closing twice is harmless."""
        ...
