"""One socket: what its client asks goes in as frames, what the engine answers goes out as events.

Knows the wire, its own lanes and its own unsent text; notices that the reader has gone, or has fallen behind. Decides
nothing about the GPU. Three tasks work on it: a reader that never waits for another actor, the handler, and a writer
that alone waits for the socket. Text is made into frames only when the writer has nothing left to write.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, assert_never

import structlog
from msgspec import Struct, structs

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.answer import Answer
from actors.directory import ConnectionInbox
from actors.lanes import Lane, Lanes, Refuse, Run, Withdraw
from actors.metrics import Metrics
from actors.socket import Socket, SocketGone
from actors.writer import Writer
from protocol import errors
from protocol.errors import WireError
from protocol.events import error_event, steer_failed
from protocol.messages import (
    Accepted,
    Ask,
    Cancel,
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
    Drain,
    Ended,
    FinishReason,
    FrameReceived,
    Moved,
    Refused,
    Released,
    RequestId,
    SetPaused,
    SocketLost,
    Started,
    Text,
    WatchConnection,
    WriterIdle,
)
from protocol.responses import Rejected, ResponseCancel, ResponseCreate, ResponseSteer, parse_client_event

log = structlog.get_logger()

_RETRY_MS = 1000.0
_BINARY = errors.invalid_request("The frame is binary. Send one JSON object in each text frame.")


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """How much one socket may ask for and leave unread."""

    lanes: int = 128
    running: int = 64
    """Responses at once; the rest wait in their lanes."""
    waiting_per_lane: int = 32
    refusals: int = 1024
    """Refusals that wait to be told. A client that earns more than that is not listening, and is closed."""
    pause_chars: int = 16_384
    """Unsent text of one response from which on it gets no more time on the GPU, until that text is taken."""
    turn_chars: int = 4_096
    """Text that is made into frames at once. Frames cannot be called back by a cancel."""
    unsent_bytes: int = 4 * 2**20
    """Frames that wait for the socket. Text does not count: it is not made into frames before there is room."""
    stall_s: float = 1.0
    """A frame that the socket has not taken for this long means that its reader has stopped."""
    close_s: float = 5.0
    """How long the last events may take to be sent before the socket is closed over them."""


class _Goodbye(Struct, frozen=True):
    code: int
    reason: str


class Connection(Actor[ConnectionInbox]):
    """Translates between one socket and the engine. `serve` is its whole life."""

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
        tokeniser: Address[Ask | Cancel | ConnectionClosed],
        scheduler: Address[SetPaused],
        reaper: Address[WatchConnection | ConnectionClosed],
        clock: Clock,
        unix_clock: Callable[[], float],
        new_id: Callable[[], str],
        metrics: Metrics,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`unix_clock` is Unix time in seconds; `new_id` gives hexadecimal names that nobody can guess."""
        super().__init__(mailbox)
        self._id = connection
        self._socket = socket
        self._tenant = tenant
        self._model = model
        self._tokeniser = tokeniser
        self._scheduler = scheduler
        self._reaper = reaper
        self._clock = clock
        self._unix_clock = unix_clock
        self._new_id = new_id
        self._metrics = metrics
        self._limits = limits = limits or ConnectionLimits()
        self._lanes = Lanes(lanes=limits.lanes, running=limits.running, waiting_per_lane=limits.waiting_per_lane)
        self._answers: dict[RequestId, Answer] = {}
        """Every request the engine may still say something about, its `Ended` or `Refused` above all."""
        self._running: dict[Lane, Answer] = {}
        self._ready: OrderedDict[RequestId, Answer] = OrderedDict()
        """Those with something to take, next first."""
        self._aside: deque[ResponseCancel | Refuse] = deque()
        self._draining = False
        self._goodbye: _Goodbye | None = None
        self._gone = False

        self._writer = Writer(
            socket,
            clock=clock,
            stall_s=limits.stall_s,
            on_idle=lambda: mailbox.tell(WriterIdle()),
            on_stall=self._watch,
        )
        now = clock()
        self._watched = WatchConnection(connection, now, now, busy=False)
        self._leaving = asyncio.Event()
        self._over = asyncio.Event()
        self._defect: BaseException | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Talk until the socket is closed and the engine has let go of every request.

        Cancelling it cancels the requests and closes the socket with 1001, at once and without waiting for the engine.
        """
        self._metrics.connections.inc()
        self._reaper.tell(self._watched)
        writer = self._start(self._write(), "writer")
        tasks = [self._start(self.run(), "handler"), self._start(self._read(), "reader"), writer]
        code = 1001
        try:
            await self._leaving.wait()
            if self._goodbye is not None:
                await self._say_goodbye(self._goodbye, writer)
            await self._over.wait()
            code = 1000 if self._defect is None else 1011
        finally:
            for task in tasks:
                task.cancel()
            self._lose_socket()
            for answer in list(self._answers.values()):
                self._retire(answer)
            self._metrics.connections.dec()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._socket.close(code, "")

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
        self._over.set()

    async def _say_goodbye(self, goodbye: _Goodbye, writer: asyncio.Task[None]) -> None:
        await asyncio.wait((writer,), timeout=self._limits.close_s)
        writer.cancel()
        await self._socket.close(goodbye.code, goodbye.reason)
        self._mailbox.tell(SocketLost(goodbye.code, self._clock()))

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
        event = None if frame.binary else parse_client_event(frame.frame)
        if isinstance(event, ResponseCancel):
            self._aside.append(event)
        else:
            lane = event.stream_id if isinstance(event, ResponseCreate | Rejected) else None
            what = "This connection has more unread frames than it may"
            self._aside.append(Refuse(lane, errors.server_overloaded(what, _RETRY_MS)))
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
            case FrameReceived():
                self._frame(message)
            case Text() | Accepted() | Moved() | Started() | Ended() | Refused():
                answer = self._answers.get(message.request)
                if answer is not None:
                    self._said(answer, message)
            case WriterIdle():
                pass  # There is room for text: what follows from any message is what follows from this one.
            case Released():
                pass  # Its time is the scheduler's to count: this socket may be gone by then.
            case CloseConnection():
                self._close(message.code, message.reason, message.error)
            case Drain():
                self._draining = True
            case SocketLost():
                self._lose_socket()
            case _:
                assert_never(message)
        self._go_on()

    def lose(self, message: ConnectionInbox, error: Exception) -> None:
        self._close(1011, "internal error", errors.internal_error())
        self._go_on()

    def _go_on(self) -> None:
        """What follows from any message: turns, text, and whether anything is left to do."""
        if self._aside and self._mailbox.room == self._mailbox.capacity:
            self._take_up_aside()
        self._fill_writer()
        self._give_turns()
        limits = self._limits
        if self._writer.unsent_bytes > limits.unsent_bytes or self._lanes.refusals > limits.refusals:
            self._close(1008, "too much is left unread", None)
        self._watch()
        if self._gone and not self._answers:
            self._over.set()

    # --- what the client says -----------------------------------------------------------------------------------------

    @property
    def _deaf(self) -> bool:
        return self._gone or self._goodbye is not None

    def _frame(self, frame: FrameReceived) -> None:
        if self._deaf:
            return
        self._watch(active_at=frame.at)
        if frame.binary:
            self._lanes.refuse(None, _BINARY)
            return
        match event := parse_client_event(frame.frame):
            case ResponseCreate():
                self._lanes.ask(event, frame.at)
            case ResponseCancel():
                self._cancel_asked(event)
            case ResponseSteer():
                self._writer.put([steer_failed(event)])
            case Rejected():
                self._lanes.refuse(event.stream_id, event.error)
            case _:
                assert_never(event)

    def _take_up_aside(self) -> None:
        aside, self._aside = self._aside, deque()
        if self._deaf:
            return
        for item in aside:
            match item:
                case ResponseCancel():
                    self._cancel_asked(item)
                case Refuse():
                    self._lanes.refuse(item.lane, item.error)

    def _cancel_asked(self, asked: ResponseCancel) -> None:
        if asked.response_id is not None:
            answer = self._answers.get(asked.response_id)
        else:
            answer = self._running.get(asked.stream_id)
            self._lanes.withdraw(asked.stream_id)
        if answer is not None and answer.cancel():
            self._ready.pop(answer.request, None)
            self._tokeniser.tell(Cancel(answer.request, self._clock(), answer.delivered_text))

    def _give_turns(self) -> None:
        while not self._deaf and (turn := self._lanes.next_turn()) is not None:
            match turn:
                case Run():
                    self._ask(turn)
                case Withdraw():
                    self._writer.put(self._unheard(turn, "cancelled", None))
                case Refuse():
                    self._refuse(turn.lane, turn.error)
                case _:
                    assert_never(turn)

    def _ask(self, turn: Run) -> None:
        create = turn.create
        if self._draining:
            self._refuse_turn(create.stream_id, errors.shutting_down())
            return
        answer = self._new_answer(turn)
        if not self._tokeniser.offer(Ask(answer.request, self._id, self._tenant, create, turn.received_at)):
            error = errors.server_overloaded("Too many requests are being read", _RETRY_MS)
            self._refuse_turn(create.stream_id, error)
            return
        self._answers[answer.request] = answer
        self._running[answer.lane] = answer

    def _new_answer(self, turn: Run | Withdraw) -> Answer:
        request = f"resp_{self._new_id()}"
        return Answer(request, turn.create, turn.received_at, int(self._unix_clock()), self._model)

    def _unheard(self, turn: Withdraw, reason: FinishReason, error: WireError | None) -> list[bytes]:
        """The whole of a response that the engine never hears of."""
        answer = self._new_answer(turn)
        frames = answer.finish(reason, error, int(self._unix_clock()))
        self._count(answer)
        return frames

    def _refuse_turn(self, lane: Lane, error: WireError) -> None:
        self._lanes.ended(lane)
        self._refuse(lane, error)

    def _refuse(self, lane: Lane, error: WireError, request: RequestId | None = None) -> None:
        self._writer.put([error_event(error, lane)])
        self._metrics.refused.labels(error.code).inc()
        log.info("request.refused", request=request, lane=lane, connection=self._id, code=error.code)

    # --- what the engine says -----------------------------------------------------------------------------------------

    def _said(self, answer: Answer, message: Text | Accepted | Moved | Started | Ended | Refused) -> None:
        match message:
            case Text():
                answer.add(message)
                if answer.unsent_chars > self._limits.pause_chars and not answer.paused:
                    self._set_paused(answer, True)
            case Accepted():
                self._metrics.input_tokens.inc(message.input_tokens)
                self._writer.put(answer.accepted(message))
            case Moved():
                self._writer.put(answer.moved(message))
            case Started():
                self._writer.put(answer.started())
            case Ended():
                answer.end(message)
                if answer.told or self._gone:
                    self._retire(answer)
            case Refused():
                self._refused(answer, message.error)
            case _:
                assert_never(message)
        if answer.ready and not self._gone:
            self._ready.setdefault(answer.request, answer)

    def _refused(self, answer: Answer, error: WireError) -> None:
        if not answer.told and not answer.exists:
            del self._answers[answer.request]
            self._free_lane(answer)
            self._refuse(answer.lane, error, answer.request)
            return
        # The client already holds a response: it ends like one.
        if not answer.told:
            self._writer.put(answer.finish("failed", error, int(self._unix_clock())))
            self._free_lane(answer)
        self._retire(answer)

    def _fill_writer(self) -> None:
        """With nothing left to write, make frames of what waits: one answer after the other, a bounded amount."""
        if not self._writer.idle:
            return
        left = self._limits.turn_chars
        while self._ready and left > 0:
            left -= self._take(self._ready.popitem(last=False)[1])

    def _take(self, answer: Answer) -> int:
        """Returns how much was taken, in characters of text on the wire."""
        now = self._clock()
        before, gaps, had_text = answer.delivered_chars, len(answer.gaps), answer.first_text_at is not None
        self._writer.put(answer.take(now, int(self._unix_clock())))
        for gap in answer.gaps[gaps:]:
            self._metrics.gap.observe(gap)
        if not had_text and answer.first_text_at is not None:
            self._metrics.ttft.observe(answer.first_text_at - answer.received_at)
        taken = answer.delivered_chars - before
        if answer.told:
            self._free_lane(answer)
            self._retire(answer)
            taken += 4 * answer.delivered_chars  # The last events repeat the whole text.
        elif answer.paused:
            self._set_paused(answer, False)
        return taken

    def _set_paused(self, answer: Answer, paused: bool) -> None:
        answer.paused = paused
        self._scheduler.tell(SetPaused(answer.request, paused, self._clock()))

    def _free_lane(self, answer: Answer) -> None:
        del self._running[answer.lane]
        self._lanes.ended(answer.lane)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _close(self, code: int, reason: str, error: WireError | None) -> None:
        """End every response, tell its client so, and then close the socket."""
        if self._deaf:
            return
        ending: FinishReason = "cancelled" if error is None else "failed"
        now, now_unix = self._clock(), int(self._unix_clock())
        for answer in list(self._running.values()):
            if answer.ready:
                self._take(answer)
            if answer.told:
                continue
            if answer.ended is None and not answer.cancelled:
                self._tokeniser.tell(Cancel(answer.request, now, answer.delivered_text if error is None else None))
            self._writer.put(answer.finish(ending, error, now_unix))
            self._free_lane(answer)
            if answer.ended is not None:
                self._retire(answer)
        self._ready.clear()
        self._lanes.withdraw_all()
        while (turn := self._lanes.next_turn()) is not None:
            match turn:
                case Withdraw():
                    self._writer.put(self._unheard(turn, ending, error))
                case Refuse():
                    self._refuse(turn.lane, turn.error)
                case Run():
                    raise AssertionError("all that waited were withdrawn")
        self._goodbye = _Goodbye(code, reason)
        self._writer.finish()
        self._leaving.set()

    def _lose_socket(self) -> None:
        """Nobody is there any more: nothing is sent, and the engine is told to let go."""
        if self._gone:
            return
        self._gone = True
        self._leaving.set()
        self._writer.drop()
        self._ready.clear()
        self._aside.clear()
        self._lanes.clear()
        now = self._clock()
        for answer in list(self._answers.values()):
            if answer.ended is not None:
                self._retire(answer)
            elif not answer.told and not answer.cancelled:
                self._tokeniser.tell(Cancel(answer.request, now, None))
        self._tokeniser.tell(ConnectionClosed(self._id))
        self._reaper.tell(ConnectionClosed(self._id))

    def _retire(self, answer: Answer) -> None:
        """The engine has let go of it and the client knows, or has gone: nothing more will be said of it."""
        self._answers.pop(answer.request, None)
        self._count(answer)

    def _count(self, answer: Answer) -> None:
        figures = answer.figures()
        self._metrics.finished.labels(figures.finish_reason).inc()
        if answer.ended is not None:
            self._metrics.queue.observe(answer.ended.stats.queued_s)
        log.info(
            "request.finished",
            request=answer.request,
            lane=answer.lane,
            connection=self._id,
            **structs.asdict(figures),
        )

    def _watch(self, active_at: float | None = None) -> None:
        """Keep the reaper's picture of this socket true: busy or idle, last heard of, stuck or not."""
        if self._gone:
            return
        busy = not self._lanes.idle or bool(self._answers)
        if active_at is None:
            active_at = self._watched.active_at if busy or not self._watched.busy else self._clock()
        watched = structs.replace(
            self._watched, active_at=active_at, busy=busy, stalled_since=self._writer.stalled_since
        )
        if watched != self._watched:
            self._watched = watched
            self._reaper.tell(watched)
