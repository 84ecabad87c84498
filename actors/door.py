"""The doors: each connection is counted from the moment it is accepted until it has been let in or has gone.

Knows who may not come in for lack of room, and agrees on TLS with the others. Knows nothing of what is asked.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from websockets.http11 import Response

from actors.crowd import Crowd
from actors.http_answers import error_answer
from actors.proxies import Visitor
from actors.websocket import HttpConnection
from protocol.errors import invalid_request, shown


class Door(HttpConnection):
    """A connection that is counted until it has been let in or has gone.

    Under TLS it is made twice: by the connection as it was accepted, and again by what TLS makes of it. Whoever says
    nothing would else be counted by nobody, as long as TLS waits for it.
    """

    def __init__(self, doors: "Doors", *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._doors = doors
        self._knocks = False
        self._made = False
        self.peer = ""
        """The address at the other end, which may be a proxy's."""
        self.visitor = Visitor("", "http", proxied=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._knocks:
            self.peer = _address(transport)
            self._knocks = self._doors.crowd.knock(self.peer)
            if not self._knocks:
                self._doors.refuse()
                _drop(transport)
                return
            if self._doors.agree_on_tls(self, transport):
                return
        self._made = True
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._made:
            super().connection_lost(exc)
        self.stop_knocking()

    def agreed_or_not(self, accepted: socket.socket) -> None:
        """The talk about TLS is over. Without an agreement nobody is here any more."""
        if not self._made:
            self.stop_knocking()
            accepted.close()

    def stop_knocking(self) -> None:
        if self._knocks:
            self._knocks = False
            self._doors.crowd.knocked(self.peer)

    def explain(self, status: HTTPStatus, fault: str) -> Response:
        return error_answer(invalid_request(f"That is no HTTP request that rota can read: {shown(fault)}."), status)


class Doors:
    """What all doors share. `refuse` is told of each connection for which there is no room.

    `agree_s` is how long a client may take to agree on TLS, and `leave_s` to say goodbye to it.
    """

    def __init__(
        self, crowd: Crowd, refuse: Callable[[], None], tls: ssl.SSLContext | None, agree_s: float, leave_s: float
    ) -> None:
        self.crowd = crowd
        self.refuse = refuse
        self._tls = tls
        self._agree_s = agree_s
        self._leave_s = leave_s
        self._agreeing: set[asyncio.Task[None]] = set()

    def open(self, *args: Any, **options: Any) -> Door:
        """One for a connection that is being accepted. Takes what `ServerConnection` takes."""
        return Door(self, *args, **options)

    def close(self) -> None:
        """Whoever has not agreed on TLS has asked nothing, and is let go."""
        for task in self._agreeing:
            task.cancel()

    def agree_on_tls(self, door: Door, transport: asyncio.BaseTransport) -> bool:
        """Begin to; `door` is then made anew. False, and nothing is done, where there is no TLS."""
        if self._tls is None:
            return False
        try:
            # `start_tls` would lose what comes before it has begun: uvloop reads from here on, whatever it is told. A
            # transport that is aborted in here has read nothing, and the connection lives on in its copy.
            accepted: socket.socket = transport.get_extra_info("socket").dup()
        except OSError:  # no file is left
            door.stop_knocking()
            return True
        finally:
            _drop(transport)
        task = asyncio.get_running_loop().create_task(self._agree(door, accepted, self._tls), name="TLS handshake")
        self._agreeing.add(task)
        task.add_done_callback(self._agreeing.discard)
        task.add_done_callback(lambda _: door.agreed_or_not(accepted))
        return True

    async def _agree(self, door: Door, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError):  # it has left, or speaks another language
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: door,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._agree_s,
                ssl_shutdown_timeout=self._leave_s,
            )


def _address(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else str(peer)


def _drop(transport: asyncio.BaseTransport) -> None:
    transport.set_protocol(asyncio.Protocol())
    cast(asyncio.Transport, transport).abort()
