"""What one client asks and what it is answered: the requests of a socket, from their frames to their last event.

Knows the lanes, the answers under way, what the tokeniser and the scheduler must be told of them, and what is logged
and counted at the end of each. Plain code: frames go out by `put`, and when there is room for more text is for the
caller to say. Knows no socket, no mailbox and no task.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import assert_never

import structlog
from msgspec import Struct, structs

from actors.actor import Address, Clock
from actors.answer import Answer
from actors.lanes import Lane, Lanes, Refuse, Run, Withdraw
from actors.metrics import Metrics
from actors.targets import Tiers
from protocol import errors
from protocol.errors import WireError
from protocol.events import error_event, steer_failed
from protocol.messages import (
    Accepted,
    Ask,
    Cancel,
    ConnectionClosed,
    ConnectionId,
    Ended,
    FinishReason,
    Moved,
    PromptRead,
    Refused,
    RequestId,
    SetPaused,
    Started,
    Stats,
    Text,
)
from protocol.responses import ClientEvent, Rejected, ResponseCancel, ResponseCreate, ResponseSteer, Targets

log = structlog.get_logger()

RETRY_MS = 1000.0

ToTokeniser = Ask | Cancel | ConnectionClosed
OfARequest = Text | Accepted | Moved | Started | PromptRead | Ended | Refused
"""What the engine says of a request."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """How much one socket may ask for and leave unread."""

    lanes: int = 128
    running: int = 64
    """Responses at once; the rest wait in their lanes."""
    waiting_per_lane: int = 32
    waiting_bytes: int = 16 * 2**20
    """In the frames of all requests that wait in lanes."""
    refusals: int = 1024
    """Refusals that wait to be told. A client that earns more than that is not listening, and is closed."""
    pause_chars: int = 16_384
    """Unsent text of one response from which on it gets no more time on the GPU, until that text is taken."""
    turn_bytes: int = 16 * 2**10
    """Frames of text that are made at once; the last may exceed it. Frames cannot be called back by a cancel."""
    unsent_bytes: int = 4 * 2**20
    """Frames that were added to others that waited for the socket. Text is not among them: it is not made into frames
    before there is room."""
    stall_s: float = 1.0
    """A frame that the socket has not taken for this long means that its reader has stopped."""
    close_s: float = 2.0
    """How long the last events may take to be sent before the socket is closed over them."""


class Exchange:
    """The requests of one socket. Every one of them ends here exactly once: refused, or told its terminal event."""

    def __init__(
        self,
        *,
        connection: ConnectionId,
        tenant: str,
        model: str,
        put: Callable[[list[bytes]], None],
        tokeniser: Address[ToTokeniser],
        scheduler: Address[SetPaused],
        clock: Clock,
        unix_clock: Callable[[], float],
        new_id: Callable[[], str],
        metrics: Metrics,
        limits: ConnectionLimits,
        tiers: Tiers,
    ) -> None:
        self._connection = connection
        self._tenant = tenant
        self._model = model
        self._put = put
        self._tokeniser = tokeniser
        self._scheduler = scheduler
        self._clock = clock
        self._unix_clock = unix_clock
        self._new_id = new_id
        self._metrics = metrics
        self._limits = limits
        self._tiers = tiers
        self._lanes = Lanes(
            lanes=limits.lanes,
            running=limits.running,
            waiting_per_lane=limits.waiting_per_lane,
            waiting_bytes=limits.waiting_bytes,
        )
        self._names = {"connection": connection, **({"key": tenant} if tenant else {})}
        """Who asked, in the log."""
        self._answers: dict[RequestId, Answer] = {}
        """Every request the engine may still say something of, its `Ended` or `Refused` above all."""
        self._running: dict[Lane, Answer] = {}
        """Those whose clients wait for a terminal event."""
        self._ready: OrderedDict[RequestId, Answer] = OrderedDict()
        """Those with something to take, next first."""
        self._abandoned = False
        self.draining = False
        """Nothing new is accepted; what runs goes on."""

    @property
    def busy(self) -> bool:
        """Its client waits for something of ours, or we for the engine."""
        return bool(self._answers) or not self._lanes.idle

    @property
    def under_way(self) -> bool:
        """The engine has not let go of every request."""
        return bool(self._answers)

    @property
    def ready(self) -> bool:
        """There is something to take."""
        return bool(self._ready)

    @property
    def flooded(self) -> bool:
        """More refusals wait to be told than may."""
        return self._lanes.refusals > self._limits.refusals

    # --- what the client says -----------------------------------------------------------------------------------------

    def asked(self, event: ClientEvent | Rejected, at: float, size: int) -> None:
        """`size`: of its frame, in bytes."""
        match event:
            case ResponseCreate():
                self._lanes.ask(event, at, size)
            case ResponseCancel():
                self._cancel(event)
            case ResponseSteer():
                self._put([steer_failed(event)])
            case Rejected():
                self._lanes.refuse(event.stream_id, event.error)
            case _:
                assert_never(event)

    def _cancel(self, asked: ResponseCancel) -> None:
        if asked.response_id is not None:
            answer = self._answers.get(asked.response_id)
        else:
            answer = self._running.get(asked.stream_id)
            self._lanes.withdraw(asked.stream_id)
        if answer is not None and answer.cancel():
            self._tokeniser.tell(Cancel(answer.request, self._clock(), answer.delivered_text))
            self._ready.pop(answer.request, None)
            if answer.ready:
                self._ready[answer.request] = answer

    # --- whose turn it is ---------------------------------------------------------------------------------------------

    def give_turns(self) -> None:
        """Hand on every request whose turn has come, and say every refusal that nothing stands before any more."""
        while (turn := self._lanes.next_turn()) is not None:
            match turn:
                case Run():
                    self._ask(turn)
                case Withdraw():
                    self._end_unheard(turn, "cancelled", None)
                case Refuse():
                    self._refuse(turn.lane, turn.error)
                case _:
                    assert_never(turn)

    def _ask(self, turn: Run) -> None:
        lane = turn.create.stream_id
        if self.draining:
            self._lanes.ended(lane)
            self._refuse(lane, errors.shutting_down())
            return
        answer = self._new_answer(turn)
        ask = Ask(answer.request, self._connection, self._tenant, turn.create, turn.received_at)
        if not self._tokeniser.offer(ask):
            self._lanes.ended(lane)
            self._refuse(lane, errors.server_overloaded("Too many requests wait to be read", RETRY_MS))
            return
        self._answers[answer.request] = answer
        self._running[lane] = answer

    def _new_answer(self, turn: Run | Withdraw) -> Answer:
        request = f"resp_{self._new_id()}"
        # The tokeniser finds the same in the same table; an answer that never gets there shows it too.
        create, targets = turn.create, turn.create.targets or Targets()
        goal = self._tiers.resolve(create.service_tier, targets.ttft_ms, targets.itl_ms, self._tenant)
        answer = Answer(request, create, turn.received_at, int(self._unix_clock()), self._model, goal)
        answer.lane_s = self._clock() - turn.received_at
        return answer

    def _end_unheard(self, turn: Withdraw, reason: FinishReason, error: WireError | None) -> None:
        """The whole life of a response that the engine never hears of."""
        answer = self._new_answer(turn)
        self._put(answer.finish(reason, error, int(self._unix_clock())))
        self._count(answer)

    # --- what the engine says -----------------------------------------------------------------------------------------

    def said(self, message: OfARequest) -> None:
        answer = self._answers.get(message.request)
        if answer is None or answer.complete:
            return  # Its end stands: of a request whose worker was lost, others may still be under way.
        match message:
            case Text():
                answer.add(message)
                if answer.unsent_chars > self._limits.pause_chars and not answer.paused:
                    self._set_paused(answer, True)
            case Accepted():
                self._metrics.accepted.inc()
                self._metrics.input_tokens.inc(message.input_tokens)
                self._put(answer.accepted(message))
            case Moved():
                self._put(answer.moved(message))
            case Started():
                self._put(answer.started(message))
            case PromptRead():
                self._put(answer.read(message.prefilled_tokens))
            case Ended():
                answer.end(message)
                if answer.told or self._abandoned:
                    self._let_go(answer)
            case Refused():
                self._refused(answer, message.error)
            case _:
                assert_never(message)
        if answer.ready and not self._abandoned:
            self._ready.setdefault(answer.request, answer)

    def _refused(self, answer: Answer, error: WireError) -> None:
        if not answer.told and not answer.exists and not self._abandoned:
            del self._answers[answer.request]
            self._free_lane(answer)
            self._refuse(answer.lane, error, answer.request)
            return
        # Its client already holds a response, or has gone: it ends like one.
        if not answer.told and not self._abandoned:
            self._put(answer.finish("failed", error, int(self._unix_clock())))
            self._free_lane(answer)
        self._let_go(answer)

    def _set_paused(self, answer: Answer, paused: bool) -> None:
        answer.paused = paused
        self._scheduler.tell(SetPaused(answer.request, paused, self._clock()))

    # --- what the client is told --------------------------------------------------------------------------------------

    def pass_on(self, text: Text) -> bool:
        """There is room: make frames of this text. False, and nothing done, when it is not next, or more follows from
        it than that: then it must be `said`, and taken in its turn."""
        answer = self._answers.get(text.request)
        if self._ready or self._abandoned or answer is None or answer.closed or answer.paused or text.end is not None:
            return False
        self._tell(answer, answer.take_text(text, self._clock()))
        return True

    def take(self) -> None:
        """There is room: make frames of what waits, one answer after the other, a bounded amount."""
        left = self._limits.turn_bytes
        while left > 0 and self._ready:
            left -= self._take(self._ready.popitem(last=False)[1])

    def _take(self, answer: Answer) -> int:
        """Returns how much was taken, in bytes on the wire."""
        frames = answer.take(self._clock(), int(self._unix_clock()))
        self._tell(answer, frames)
        if answer.told:
            self._free_lane(answer)
            self._let_go(answer)
        elif answer.paused:
            self._set_paused(answer, False)
        return sum(map(len, frames))

    def _tell(self, answer: Answer, frames: list[bytes]) -> None:
        """Send frames of text, and count what they tell of."""
        self._put(frames)
        for gap in answer.gaps[answer.gaps_counted :]:
            self._metrics.gap.observe(gap)
        answer.gaps_counted = len(answer.gaps)
        if not answer.ttft_counted and answer.first_text_at is not None:
            answer.ttft_counted = True
            self._metrics.ttft.observe(answer.first_text_at - answer.received_at)

    def _free_lane(self, answer: Answer) -> None:
        del self._running[answer.lane]
        self._lanes.ended(answer.lane)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end_all(self, error: WireError | None) -> None:
        """Tell the end of everything that runs or waits: `failed` with `error`, else cancelled. What is already here of
        an answer is told first. The engine is told to let go, and may take its time."""
        reason: FinishReason = "cancelled" if error is None else "failed"
        for answer in list(self._running.values()):
            if answer.ready:
                self._take(answer)
            if answer.told:
                continue
            if not answer.cancelled and answer.ended is None:
                keep = answer.delivered_text if error is None else None
                self._tokeniser.tell(Cancel(answer.request, self._clock(), keep))
            self._put(answer.finish(reason, error, int(self._unix_clock())))
            self._free_lane(answer)
            if answer.ended is not None:
                self._let_go(answer)
        self._ready.clear()
        self._lanes.withdraw_all()
        while (turn := self._lanes.next_turn()) is not None:
            match turn:
                case Withdraw():
                    self._end_unheard(turn, reason, error)
                case Refuse():
                    self._refuse(turn.lane, turn.error)
                case Run():
                    raise AssertionError("all that waited were withdrawn")

    def lose_worker(self) -> None:
        """Whoever held the requests of this socket has started anew and knows none of them: they have failed. So has
        one whose end was told but whose last text has not come: it may have been lost with them."""
        for answer in list(self._answers.values()):
            if not answer.complete:
                # Some may still be on their way there, and be taken up by the new ones.
                self._tokeniser.tell(Cancel(answer.request, self._clock(), None))
                reason: FinishReason = "cancelled" if answer.cancelled else "failed"
                stats = Stats() if answer.ended is None else answer.ended.stats
                self.said(Ended(answer.request, reason, stats, errors.worker_failed(answer.delivered_chars)))

    def abandon(self) -> None:
        """Nobody is there to be told any more: forget what waits, and tell the engine to let go of what runs."""
        self._abandoned = True
        self._ready.clear()
        self._lanes.clear()
        now = self._clock()
        for answer in list(self._answers.values()):
            if answer.ended is not None:
                self._let_go(answer)
            elif not answer.told and not answer.cancelled:
                self._tokeniser.tell(Cancel(answer.request, now, None))

    def write_off(self) -> None:
        """The engine will not be heard any more: close the books on what it still holds."""
        for answer in list(self._answers.values()):
            self._let_go(answer)

    def _let_go(self, answer: Answer) -> None:
        """The engine has let go of it, and its client has been told or has gone: nothing more will be said of it."""
        del self._answers[answer.request]
        self._count(answer)

    def _count(self, answer: Answer) -> None:
        figures = answer.figures()
        self._metrics.count_finished(
            figures.finish_reason,
            taking_s=self._clock() - answer.received_at,
            lane_s=answer.lane_s,
            stats=answer.ended.stats if answer.ended is not None else None,
            input_tokens=figures.input_tokens,
            output_tokens=figures.output_tokens,
            met={"ttft": figures.ttft_met, "itl": figures.itl_met},
        )
        log.info("request.finished", request=answer.request, lane=answer.lane, **self._names, **structs.asdict(figures))

    def _refuse(self, lane: Lane, error: WireError, request: RequestId | None = None) -> None:
        self._put([error_event(error, lane)])
        self._metrics.refused.labels(error.code).inc()
        log.info("request.refused", request=request, lane=lane, **self._names, code=error.code)
