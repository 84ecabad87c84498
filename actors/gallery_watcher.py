"""One socket that watches: frames of the gallery go out, and nothing comes in.

Knows the socket's life, and says when it has taken a frame. Knows nothing of what frames say. A client that speaks here
is told to leave: whoever has something to ask asks elsewhere.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar, assert_never

import structlog

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.directory import WatcherInbox
from actors.metrics import Metrics
from actors.socket import Socket, SocketGone
from actors.writer import Writer
from protocol.messages import (
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
    Drain,
    FrameTaken,
    Show,
    SocketLost,
    WatchConnection,
    WatcherCame,
    WatcherLeft,
    WorkerLost,
    WriterIdle,
)

STALL_S = 1.0
"""As for any other socket: a frame that was not taken for this long means that its reader has stopped."""
CLOSE_S = 2.0
"""How long the last frame may take to be sent before the socket is closed over it."""

log = structlog.get_logger()


class Watcher(Actor[WatcherInbox]):
    """Between the gallery and one socket. `serve` is its whole life."""

    name: ClassVar[str] = "watcher"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(
        self,
        mailbox: Mailbox[WatcherInbox],
        *,
        connection: ConnectionId,
        socket: Socket,
        tenant: str,
        gallery: Address[WatcherCame | WatcherLeft | FrameTaken],
        reaper: Address[WatchConnection | ConnectionClosed],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        super().__init__(mailbox)
        self._id = connection
        self._socket = socket
        self._tenant = tenant
        self._gallery = gallery
        self._reaper = reaper
        self._metrics = metrics
        self._opened_at = clock()
        self._writer = Writer(
            socket,
            clock=clock,
            stall_s=STALL_S,
            on_idle=lambda: mailbox.tell(WriterIdle()),
            on_stall=self._be_watched,
        )
        self._owes_taken = False
        """A frame was put that the socket has not taken."""
        self._goodbye: tuple[int, str] | None = None
        self._leaving = asyncio.Event()

    async def serve(self) -> None:
        """Show what there is to see until the socket is closed."""
        self._metrics.connections.inc()
        self._metrics.connections_opened.inc()
        self._metrics.watchers.inc()
        self._be_watched()
        self._gallery.tell(WatcherCame(self._id, self._tenant))
        writer = self._start(self._write(), "writer")
        tasks = [self._start(self.run(), "handler"), self._start(self._read(), "reader"), writer]
        code, reason = 1001, ""
        try:
            await self._leaving.wait()
            if self._goodbye is not None:
                code, reason = self._goodbye
                await asyncio.wait((writer,), timeout=CLOSE_S)
        finally:
            for task in tasks:
                task.cancel()
            self._writer.drop()
            self._gallery.tell(WatcherLeft(self._id))
            self._reaper.tell(ConnectionClosed(self._id))
            self._metrics.connections.dec()
            self._metrics.watchers.dec()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._socket.close(code, reason)

    def _start(self, coroutine: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=f"watcher {self._id} {what}")
        task.add_done_callback(self._look_after)
        return task

    def _look_after(self, task: asyncio.Task[None]) -> None:
        """A task that ends with an exception of its own takes the socket with it."""
        if task.cancelled() or (defect := task.exception()) is None:
            return
        log.error("watcher.failed", connection=self._id, task=task.get_name(), exc_info=defect)
        self._close(1011, "internal error")

    async def _read(self) -> None:
        try:
            await self._socket.recv()
        except SocketGone as gone:
            self._mailbox.tell(SocketLost(gone.code, 0.0))
        else:
            self._mailbox.tell(CloseConnection(self._id, 1008, "nothing can be asked here, only watched"))

    async def _write(self) -> None:
        try:
            await self._writer.write()
        except SocketGone as gone:
            self._mailbox.tell(SocketLost(gone.code, 0.0))

    def handle(self, message: WatcherInbox) -> None:
        match message:
            case Show():
                self._owes_taken = True
                self._writer.put([message.frame])
                self._say_taken()
            case WriterIdle():
                self._say_taken()
            case CloseConnection():
                self._close(message.code, message.reason)
            case SocketLost():
                self._leaving.set()
            case Drain() | WorkerLost():
                pass  # What becomes of the requests can be watched.
            case _:
                assert_never(message)

    def lose(self, message: WatcherInbox, error: Exception) -> None:
        self._close(1011, "internal error")

    def _say_taken(self) -> None:
        if self._owes_taken and self._writer.idle:
            self._owes_taken = False
            self._gallery.tell(FrameTaken(self._id))

    def _close(self, code: int, reason: str) -> None:
        if self._goodbye is None:
            self._goodbye = (code, reason)
            self._writer.finish()
            self._leaving.set()

    def _be_watched(self) -> None:
        """Keep the reaper's picture of this socket true. It is never idle: there is always something to see."""
        since = self._writer.stalled_since
        self._reaper.tell(WatchConnection(self._id, self._opened_at, self._opened_at, busy=True, stalled_since=since))
