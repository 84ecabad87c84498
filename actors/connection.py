"""One socket: what its client asks goes in as frames, what the engine answers goes out as events.

Knows the socket's life: three tasks (a reader that never waits for another actor, the handler, and a writer that alone
waits for the socket), how a close is said, and what the reaper must know. Notices that the reader has gone or has
fallen behind. What is asked and answered is `actors.exchange`'s; nothing here decides about the GPU.

A connection may outlive its socket: responses that were asked for as resumable are at home on it to their end.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, assert_never

import structlog
from msgspec import structs

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.connection_limits import ConnectionLimits
from actors.directory import ConnectionInbox
from actors.exchange import RETRY_MS, Exchange, ToTokeniser
from actors.home import Resuming
from actors.message_rate import MessageRate
from actors.metrics import Metrics
from actors.socket import Socket, SocketGone
from actors.targets import Tiers
from actors.writer import Writer
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    Accepted,
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
    Drain,
    Ended,
    FrameReceived,
    GraceOver,
    Moved,
    NothingLeft,
    PromptRead,
    ReaderLeft,
    Refused,
    RelayCancel,
    Relayed,
    RelayEnded,
    RelayTaken,
    Released,
    Resume,
    SetPaused,
    SocketLost,
    Started,
    Text,
    WatchConnection,
    WorkerLost,
    WriterIdle,
)
from protocol.responses import (
    ClientEvent,
    Rejected,
    ResponseCancel,
    ResponseCreate,
    ResponseSteer,
    parse_client_event,
)

__all__ = ["Connection", "ConnectionLimits"]

log = structlog.get_logger()

_COME_BACK = 4006
_NO_GOODBYE = (1006, 1011, _COME_BACK)
"""With these a socket ends whose client has not said that it leaves: it is gone without a word, it answered no ping, or
it has said (4006) that it will be back."""
_BINARY = Rejected(errors.invalid_request("The frame is binary. Send one JSON object in each text frame."))


class Connection(Actor[ConnectionInbox]):
    """Translates between one socket and the engine. `serve` is its whole life with that socket; where that says so, it
    is followed by `stay`."""

    name: ClassVar[str] = "connection"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(
        self,
        mailbox: Mailbox[ConnectionInbox],
        *,
        connection: ConnectionId,
        socket: Socket,
        tenant: str,
        model: str,
        tokeniser: Address[ToTokeniser],
        scheduler: Address[SetPaused],
        reaper: Address[WatchConnection | ConnectionClosed],
        clock: Clock,
        unix_clock: Callable[[], float],
        new_id: Callable[[], str],
        metrics: Metrics,
        limits: ConnectionLimits | None = None,
        tiers: Tiers | None = None,
        resuming: Resuming | None = None,
    ) -> None:
        """`new_id` gives hexadecimal names that nobody can guess; `model` is the name that responses show.
        `resuming` None: nothing can be resumed."""
        super().__init__(mailbox)
        self._id = connection
        self._socket = socket
        self._tokeniser = tokeniser
        self._reaper = reaper
        self._clock = clock
        self._metrics = metrics
        self._limits = limits if limits is not None else ConnectionLimits()
        self._writer = Writer(
            socket,
            clock=clock,
            stall_s=self._limits.stall_s,
            on_idle=lambda: mailbox.tell(WriterIdle()),
            on_stall=self._watch,
        )
        self._exchange = Exchange(
            connection=connection,
            tenant=tenant,
            model=model,
            put=self._writer.put,
            tokeniser=tokeniser,
            scheduler=scheduler,
            clock=clock,
            unix_clock=unix_clock,
            new_id=new_id,
            metrics=metrics,
            limits=self._limits,
            tiers=tiers or Tiers(),
            resuming=resuming,
        )
        self._rate = MessageRate(self._limits.messages_per_s, self._limits.messages_at_once)
        self._aside: deque[ResponseCancel | Rejected] = deque()
        """What the reader has read while the handler was behind."""
        self._goodbye: tuple[int, str] | None = None
        self._keeps = False
        """The goodbye was ours, and there may be another socket."""
        self._gone = False
        self._failed = False
        """A handler has raised: what is known here need not be true any more."""
        self._leaving = asyncio.Event()
        self._served = asyncio.Event()
        """The socket is gone, and nothing is left that needs it."""
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._defect: BaseException | None = None
        now = clock()
        self._watched = WatchConnection(connection, now, now, busy=False)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def serve(self) -> bool:
        """Talk until the socket is closed and the engine has let go of every request. Returns whether responses are
        left that outlive the socket: then `stay` must follow.

        Cancelling it cancels the requests and closes the socket with 1001, without waiting for the engine.
        """
        self._metrics.connections.inc()
        self._metrics.connections_opened.inc()
        self._reaper.tell(self._watched)
        writer = self._start(self._write(), "writer")
        self._tasks = [self._start(self.run(), "handler"), self._start(self._read(), "reader"), writer]
        code, stays = 1001, False
        try:
            await self._leaving.wait()
            if self._goodbye is not None:
                await self._say(*self._goodbye, writer)
            await self._served.wait()
            code = 1000 if self._defect is None else 1011
            stays = not self._over.is_set()
        finally:
            self._metrics.connections.dec()
            ended = self._tasks[1:] if stays else self._tasks
            await self._end(ended)
            await self._socket.close(code, "")
        return stays

    async def stay(self) -> None:
        """What follows without a socket: until nothing of it is left to be resumed. Cancelling it ends that."""
        try:
            await self._over.wait()
        finally:
            await self._end(self._tasks)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks is self._tasks:
            self._lose_socket()
            self._exchange.write_off()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, coroutine: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=f"connection {self._id} {what}")
        task.add_done_callback(self._look_after)
        return task

    def _look_after(self, task: asyncio.Task[None]) -> None:
        """A task that ends with an exception of its own takes the socket with it."""
        if task.cancelled() or (defect := task.exception()) is None:
            return
        log.error("connection.failed", connection=self._id, task=task.get_name(), exc_info=defect)
        self._defect = defect
        self._leaving.set()
        self._finish()

    def _finish(self) -> None:
        self._over.set()
        self._served.set()

    async def _say(self, code: int, reason: str, writer: asyncio.Task[None]) -> None:
        """Close the socket, after what is unsent if that is taken soon enough."""
        await asyncio.wait((writer,), timeout=self._limits.close_s)
        writer.cancel()
        await self._socket.close(code, reason)
        self._mailbox.tell(SocketLost(code, self._clock()))

    # --- the reader and the writer ------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                message = await self._socket.recv()
                if isinstance(message, bytes):
                    frame = FrameReceived(message, self._clock(), binary=True)
                else:
                    frame = FrameReceived(message.encode(), self._clock())
                # Once one frame is set aside, those behind it must not overtake it.
                if not self._deaf and (self._aside or not self._mailbox.offer(frame)):
                    self._set_aside(frame)
        except SocketGone as gone:
            self._mailbox.tell(SocketLost(gone.code, self._clock()))

    def _set_aside(self, frame: FrameReceived) -> None:
        """The handler is behind: this frame is refused, once what came before it has been handled. Not so a cancel,
        which makes work less; and an `error` in its stead would be taken for the end of a running response."""
        event = _BINARY if frame.binary else parse_client_event(frame.frame)
        if not isinstance(event, ResponseCancel):
            lane = None if isinstance(event, ResponseSteer) else event.stream_id
            event = Rejected(errors.server_overloaded("Too many frames wait on this connection", RETRY_MS), lane)
        self._aside.append(event)
        if len(self._aside) > self._limits.refusals:
            self._mailbox.tell(CloseConnection(self._id, 1008, "too many frames at once"))

    async def _write(self) -> None:
        try:
            await self._writer.write()
        except SocketGone as gone:
            self._mailbox.tell(SocketLost(gone.code, self._clock()))

    # --- the handler --------------------------------------------------------------------------------------------------

    def handle(self, message: ConnectionInbox) -> None:
        match message:
            case Text() if not self._deaf and self._writer.idle and self._exchange.pass_on(message):
                return  # Most messages by far, and nothing follows from this one.
            case Text() | Accepted() | Moved() | Started() | PromptRead() | Ended() | Refused():
                self._exchange.said(message)
            case FrameReceived():
                self._frame(message)
            case Relayed() | RelayEnded() | Resume() | RelayTaken() | RelayCancel() | ReaderLeft() | GraceOver():
                self._exchange.heard(message)
            case WriterIdle():
                pass  # There is room for text: what follows from any message is what follows from this one.
            case Released():
                pass  # Its time is the scheduler's to count: this socket may be gone by then.
            case CloseConnection():
                self._close(message.code, message.reason, message.error, keep=message.keeps)
            case WorkerLost():
                self._exchange.lose_worker()
            case Drain():
                self._exchange.drain()
            case SocketLost():
                self._lose_socket(lost=self._keeps if self._goodbye else message.code in _NO_GOODBYE)
            case NothingLeft():
                self._leave_home()
                return
            case _:
                assert_never(message)
        self._go_on()

    def lose(self, message: ConnectionInbox, error: Exception) -> None:
        self._failed = True
        if isinstance(message, Resume):
            self._exchange.turn_away(message, errors.internal_error())
        self._exchange.fail_elsewhere(errors.internal_error())
        self._close(1011, "internal error", errors.internal_error())
        self._go_on()

    @property
    def _deaf(self) -> bool:
        """Whatever the client still says comes too late."""
        return self._gone or self._goodbye is not None

    def _frame(self, frame: FrameReceived) -> None:
        if self._deaf:
            return
        self._watch(active_at=frame.at)
        event = _BINARY if frame.binary else parse_client_event(frame.frame)
        self._ask(self._rated(event, frame.at), frame.at, _kept_bytes(frame.frame))

    def _ask(self, event: ClientEvent | Rejected, at: float, size: int) -> None:
        if not self._exchange.asked(event, at, size):
            self._rate.take(at)
        if self._rate.over > self._limits.messages_at_once:
            self._close(1008, "too many messages", None)

    def _rated(self, event: ClientEvent | Rejected, at: float) -> ClientEvent | Rejected:
        """A request beyond the rate is refused. Other messages are answered as ever, and count; a cancel makes work
        less, and counts only where it finds nothing to cancel."""
        wait_s = 0.0 if isinstance(event, ResponseCancel) else self._rate.take(at)
        if not (wait_s and isinstance(event, ResponseCreate)):
            return event
        what = f"This connection may send {self._limits.messages_per_s:,g} messages a second, and has sent more"
        return Rejected(errors.rate_limit_exceeded(what, wait_s * 1000), event.stream_id)

    def _go_on(self) -> None:
        """What follows from any message: turns, text, and whether anything is left to do."""
        if self._aside and self._mailbox.room == self._mailbox.capacity:
            aside, self._aside = self._aside, deque()
            for event in aside:
                if not self._deaf:
                    self._ask(event, self._clock(), 0)
        if not self._deaf:
            if self._writer.idle:
                self._exchange.take()
                if self._exchange.ready and self._writer.idle:
                    self._mailbox.tell(WriterIdle())  # The socket took it all at once: another turn, after the others'.
            self._exchange.give_turns()
            if self._exchange.flooded or self._writer.behind_bytes > self._limits.unsent_bytes:
                self._close(1008, "too much is left unread", None)
        if self._goodbye is not None and not self._exchange.relaying:
            self._writer.finish()
        self._watch()
        if self._gone:
            self._go_home()

    def _go_home(self) -> None:
        """Without a socket: what is left for `stay` to wait for, and whether that is anything."""
        if self._failed:
            self._exchange.write_off()  # The message that failed may be the one that would have been waited for.
        if self._exchange.outlives_socket:
            self._served.set()
        elif self._exchange.under_way:
            pass
        elif self._exchange.may_be_asked_for:
            self._mailbox.tell(NothingLeft())
        else:
            self._finish()

    def _leave_home(self) -> None:
        """Whoever found this home in the book has been answered: what he said was said before this."""
        if self._gone and not self._exchange.under_way:
            self._finish()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _close(self, code: int, reason: str, error: WireError | None, *, keep: bool = False) -> None:
        """End every response, tell its client so, and then close the socket. `keep`: not those that can be resumed, and
        if there are any, the close code says so."""
        if self._deaf:
            return
        kept = self._exchange.end_all(error, keep=keep)
        self._keeps = keep  # Also what has ended: nobody knows whether its end arrives.
        self._goodbye = (_COME_BACK if kept else code, reason)
        self._leaving.set()

    def _lose_socket(self, *, lost: bool = False) -> None:
        """Nobody is there any more: nothing is sent, and the engine is told to let go. `lost`: without a goodbye, so
        that somebody may come back."""
        if self._gone:
            return
        self._gone = True
        self._writer.drop()
        self._aside.clear()
        self._exchange.abandon(lost=lost)
        self._tokeniser.tell(ConnectionClosed(self._id))
        self._reaper.tell(ConnectionClosed(self._id))
        self._leaving.set()

    def _watch(self, active_at: float | None = None) -> None:
        """Keep the reaper's picture of this socket true: busy or idle, last heard of, stuck or not."""
        if self._gone:
            return
        busy = self._exchange.busy
        stalled_since = self._writer.stalled_since
        if active_at is None:
            if busy is self._watched.busy and stalled_since == self._watched.stalled_since:
                return
            # The time to be idle in begins when the last answer has been given.
            active_at = self._clock() if self._watched.busy and not busy else self._watched.active_at
        watched = structs.replace(self._watched, active_at=active_at, busy=busy, stalled_since=stalled_since)
        if watched != self._watched:
            self._watched = watched
            self._reaper.tell(watched)


def _kept_bytes(frame: str | bytes) -> int:
    """What a message takes while it waits: one letter beyond Latin makes of a text four bytes for each of its own."""
    return len(frame) if frame.isascii() else 4 * len(frame)
