"""Where sockets are let in: who becomes a connection and who a watcher, and who is still here.

Knows how both are built and that each stands in the directory for as long as it lives. Knows nothing of what they say.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from actors.actor import Address, Clock, Mailbox
from actors.config import Config
from actors.connection import Connection, ConnectionLimits
from actors.directory import ConnectionInbox, Directory, WatcherInbox
from actors.exchange import ToTokeniser
from actors.gallery_watcher import Watcher
from actors.home import Resuming
from actors.metrics import Metrics
from actors.resumables import Resumables
from actors.socket import Socket
from protocol.messages import (
    ConnectionClosed,
    ConnectionId,
    Detached,
    Drain,
    FrameTaken,
    SetPaused,
    WatchConnection,
    WatcherCame,
    WatcherLeft,
)

FRAMES_AHEAD = 64
"""Frames of one socket that wait for its handler."""
LEAVE_S = 5.0
"""How long sockets may take to close when the server stops."""


class Reception:
    """Each of its two ways in is the whole life of one socket."""

    def __init__(
        self,
        config: Config,
        *,
        new_mailbox: Callable[[str, int], Mailbox[Any]],
        tokeniser: Address[ToTokeniser],
        scheduler: Address[SetPaused],
        reaper: Address[WatchConnection | ConnectionClosed | Detached],
        gallery: Address[WatcherCame | WatcherLeft | FrameTaken],
        directory: Directory,
        clock: Clock,
        unix_clock: Callable[[], float],
        new_id: Callable[[], str],
        metrics: Metrics,
        limits: ConnectionLimits,
    ) -> None:
        self._config = config
        self._new_mailbox = new_mailbox
        self._tokeniser = tokeniser
        self._scheduler = scheduler
        self._reaper = reaper
        self._gallery = gallery
        self._directory = directory
        self._clock = clock
        self._unix_clock = unix_clock
        self._new_id = new_id
        self._metrics = metrics
        self._limits = limits
        self._drain: Drain | None = None
        self._nobody_here = asyncio.Event()
        self._resuming = Resuming(Resumables(), directory.tell, reaper.tell, config.resume_grace_s)
        metrics.unread.set_function(lambda: float(self._resuming.resumables.unread))
        # In the order in which they came, so that they end in one order too: sets have another in every run.
        self._staying: dict[asyncio.Task[None], None] = {}

    async def open_connection(self, socket: Socket, tenant: str, model: str) -> None:
        """Returns when it is closed and the engine has let go of its requests, but for those that are kept for a client
        who may come back. `model`: as responses name it."""
        connection = self._directory.next_id()
        mailbox: Mailbox[ConnectionInbox] = self._new_mailbox(f"connection {connection}", FRAMES_AHEAD)
        actor = Connection(
            mailbox,
            connection=connection,
            socket=socket,
            tenant=tenant,
            model=model,
            tokeniser=self._tokeniser,
            scheduler=self._scheduler,
            reaper=self._reaper,
            clock=self._clock,
            unix_clock=self._unix_clock,
            new_id=self._new_id,
            metrics=self._metrics,
            limits=self._limits,
            tiers=self._config.tiers,
            resuming=self._resuming,
        )
        self._directory.add(actor.address, connection)
        await self._serve(actor, connection, mailbox)

    async def open_watcher(self, socket: Socket, tenant: str) -> None:
        """Returns when it is closed."""
        connection = self._directory.next_id()
        mailbox: Mailbox[WatcherInbox] = self._new_mailbox(f"watcher {connection}", 1)
        actor = Watcher(
            mailbox,
            connection=connection,
            socket=socket,
            tenant=tenant,
            gallery=self._gallery,
            reaper=self._reaper,
            clock=self._clock,
            metrics=self._metrics,
        )
        self._directory.add(actor.address, connection)
        await self._serve(actor, connection, mailbox)

    async def _serve(self, actor: Connection | Watcher, connection: ConnectionId, mailbox: Mailbox[Any]) -> None:
        if self._drain is not None:  # it came in through a door that was just closing
            mailbox.tell(self._drain)
        stays = False
        try:
            if isinstance(actor, Connection):
                stays = await actor.serve()
            else:
                await actor.serve()
        finally:
            if not stays:
                self._leave(connection)
        if stays:
            assert isinstance(actor, Connection), "a watcher leaves nothing behind"
            task = asyncio.create_task(self._stay(actor, connection), name=f"connection {connection} without a socket")
            self._staying[task] = None
            task.add_done_callback(self._staying.pop)

    async def _stay(self, actor: Connection, connection: ConnectionId) -> None:
        try:
            await actor.stay()
        finally:
            self._leave(connection)

    def _leave(self, connection: ConnectionId) -> None:
        self._directory.remove(connection)
        if not len(self._directory):
            self._nobody_here.set()

    async def close(self) -> None:
        """The engine stops: whatever still stays goes."""
        staying = list(self._staying)
        for task in staying:
            task.cancel()
        await asyncio.gather(*staying, return_exceptions=True)

    def drain(self, drain: Drain) -> None:
        """Tell everyone who is here, and whoever still comes."""
        self._drain = drain
        self._directory.tell_all(drain)

    async def everyone_to_leave(self) -> None:
        """They have been told to close; a client that does not listen is not waited for long."""
        self._nobody_here.clear()
        if len(self._directory):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nobody_here.wait(), LEAVE_S)
