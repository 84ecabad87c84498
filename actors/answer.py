"""One response on its way to the client, as plain code: messages go in, frames come out.

Knows what has been told and what is still owed, which text waits for the writer, and when the answer is over. Has no
clock, no socket and no mailbox. The order of events on the wire is `protocol.events`' business.

Text and the end are not turned into frames when they come but when they are taken, which the connection does when its
socket has room. So a slow reader gets fewer and bigger deltas, and what waits is one text a response.

A response that was asked for as resumable can be told again from any event on: what was told is kept in the events, and
`attach` says what a reader who comes back has missed of it.
"""

from enum import Enum
from math import ceil, inf

from msgspec import Struct

from actors.figures import Figures
from actors.targets import Goal
from protocol.errors import WireError
from protocol.event_shapes import Gaps, Progress
from protocol.events import ResponseEvents, Terminal
from protocol.messages import (
    Accepted,
    ConnectionId,
    Ended,
    FinishReason,
    Moved,
    RequestId,
    Started,
    Stats,
    Text,
    TextEnd,
)
from protocol.responses import ResponseCreate, Targets
from protocol.timeline import gaps_met

_LOGPROB_CHARS = 64


class Reader(Enum):
    """Where the client is that is told of a response."""

    HERE = "at the socket it was asked on"
    AFAR = "at another one, on which it was resumed"
    NOWHERE = "it was lost without a goodbye, and may come back"
    NEVER = "it has gone: nothing more need be told"


class Visit(Struct, frozen=True):
    """A reader from afar: its connection, and which attempt of it this is."""

    connection: ConnectionId
    number: int


class Answer:
    """The state of one response. It is over for the client when `told`, and for the engine when `ended` is set."""

    def __init__(
        self,
        request: RequestId,
        create: ResponseCreate,
        received_at: float,
        created_unix: int,
        model: str,
        goal: Goal,
    ) -> None:
        """`goal` is the tier and the targets used, which need not be those asked for."""
        self.request = request
        self.goal = goal
        self.lane = create.stream_id
        self.received_at = received_at
        self.lane_s = 0.0
        """How long it waited for its turn in its lane."""
        self.resumable = create.resumable is True
        self.reader = Reader.HERE
        self.visit: Visit | None = None
        """Who reads it from afar."""
        self.has_room = False
        """Whether that reader has taken all that was sent there."""
        self.kept_until = inf
        """When it is given up, if nobody reads it."""
        self.detached = 0
        self.resumed = 0
        self.paused = False
        """The scheduler has been asked to leave it off the GPU until its reader, or a new one, has caught up."""
        self.cancelled = False
        """Its slot is closed by us: no text is wanted any more, and the engine has been told."""
        self.ended: Ended | None = None
        self.first_text_at: float | None = None
        self.gaps: list[float] = []
        """Seconds between its tokens, as far as they are delivered."""
        self.gaps_counted = 0
        """How many of them are in the metrics."""
        self.ttft_counted = False
        self._events = ResponseEvents(
            response_id=request,
            item_id="msg_" + request.removeprefix("resp_"),
            created_at=created_unix,
            model=model,
            create=create,
            service_tier=goal.tier,
        )
        self.told = False
        """The terminal event has been made."""
        self._missed: int | None = None
        """The first of the events that were made and that its reader still has to be told; None: it has had all."""
        self._created = False
        self._input_tokens = 0
        self._pending: Text | None = None
        self._end: TextEnd | None = None
        self._output_tokens = 0
        self._last_token_at: float | None = None
        self._reason: FinishReason | None = None
        self._error: WireError | None = None
        """What its client was told it failed of."""

    # --- what the engine says -----------------------------------------------------------------------------------------

    def accepted(self, message: Accepted) -> list[bytes]:
        self._input_tokens = message.input_tokens
        if self.told:
            return []
        frames = self.created(queued=message.position > 0)
        if message.position > 0:
            frames += self._events.queued(message.position, _ms_or_none(message.estimated_wait_s))
        return frames

    def moved(self, message: Moved) -> list[bytes]:
        if self.closed or not self._created:
            return []
        return self._events.queued(message.position, _ms_or_none(message.estimated_wait_s))

    def started(self, message: Started) -> list[bytes]:
        return [] if self.closed else self.created() + self.read(message.prefilled_tokens)

    def read(self, prefilled_tokens: int) -> list[bytes]:
        """So much of its prompt has been read."""
        if self.closed or not self._created:
            return []
        known = self._input_tokens > 0
        return self._events.in_progress(Progress(self._input_tokens, prefilled_tokens) if known else None)

    def add(self, text: Text) -> None:
        """More text, and perhaps the end, to be taken when there is room. After the slot is closed it is dropped."""
        if not self.closed:
            self._pending = text if self._pending is None else self._pending.join(text)

    def end(self, message: Ended) -> None:
        """No later step includes it. Cancelled and failed end the answer here, with the text as far as it came."""
        self.ended = message
        if message.reason == "failed":
            self._close("failed")
        elif message.reason == "cancelled" or self.cancelled:
            self._close("cancelled")

    def cancel(self) -> bool:
        """Close the slot, even on text that is all here but not taken. False when it is closed already."""
        if self.closed:
            return False
        self.cancelled = True
        self._pending = None
        if self.ended is not None:
            self._close("cancelled")
        return True

    # --- what the client is told --------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """No text of it is wanted any more."""
        return self.cancelled or self._reason is not None

    @property
    def exists(self) -> bool:
        """`response.created` has been made."""
        return self._created

    @property
    def ready(self) -> bool:
        """There is something to take."""
        return self.behind or (not self.told and (self._pending is not None or self.complete))

    @property
    def behind(self) -> bool:
        """Its reader has to be told again of events that were made before."""
        return self._missed is not None

    @property
    def given(self) -> bool:
        """Its reader has had the terminal event, and all before it."""
        return self.told and not self.behind

    @property
    def made(self) -> int:
        """How many events there are so far."""
        return self._events.made

    @property
    def kept_bytes(self) -> int:
        """About how much memory is kept of what was told."""
        return self._events.kept_bytes

    @property
    def complete(self) -> bool:
        """Both halves of the end are here: the figures, and where the text ends or that it no longer matters."""
        if self.ended is None:
            return False
        if self._reason is not None or self._end is not None:
            return True
        return self._pending is not None and self._pending.end is not None

    @property
    def unsent_chars(self) -> int:
        """Characters that wait to be taken and may yet be followed by more; log-probabilities count for what they are
        on the wire."""
        if self._pending is None or self._pending.end is not None:
            return 0
        return len(self._pending.text) + _LOGPROB_CHARS * sum(1 + len(each.top) for each in self._pending.logprobs)

    @property
    def delivered_text(self) -> str:
        return self._events.delivered_text

    @property
    def delivered_chars(self) -> int:
        return self._events.delivered_chars

    def created(self, queued: bool = False) -> list[bytes]:
        if self._created:
            return []
        self._created = True
        return self._events.created(queued)

    def attach(self, visit: Visit, starting_after: int) -> None:
        """It is read from afar, by somebody who has had the events up to that one."""
        self.reader, self.visit, self.has_room = Reader.AFAR, visit, True
        self._missed = starting_after + 1
        self._catch_up()

    def miss(self, count: int) -> None:
        """The last so many of its events have been made, and not been sent."""
        if self._missed is None:
            self._missed = self._events.made - count
            self._catch_up()

    def take(self, now: float, now_unix: int, most: float = inf) -> list[bytes]:
        """Frames of what was missed, up to `most` bytes of it and one more; then of all that waits, the terminal event
        included when the answer is over."""
        frames: list[bytes] = []
        while self._missed is not None and most > 0:
            frames.append(self._events.again(self._missed))
            most -= len(frames[-1])
            self._missed += 1
            self._catch_up()
        if self.told or self._missed is not None:
            return frames
        if self._pending is not None:
            frames += self.take_text(self._pending, now)
            self._pending = None
        if self.complete:
            assert self.ended is not None, "the figures are here"
            reason = self._reason or self._end_reason()
            frames += self.finish(reason, self.ended.error, now_unix)
        return frames

    def take_text(self, text: Text, now: float) -> list[bytes]:
        """Frames of this text, which need not have been added."""
        self._output_tokens += len(text.token_times)
        for at in text.token_times:
            if self._last_token_at is not None:
                self.gaps.append(at - self._last_token_at)
            self._last_token_at = at
        self._end = text.end
        if self.first_text_at is None and text.text:
            self.first_text_at = now
        created = None if self._created else self.created()
        frames = self._events.text(text.text, text.logprobs)
        return frames if created is None else created + frames

    def finish(self, reason: FinishReason, error: WireError | None, now_unix: int) -> list[bytes]:
        """The terminal event, now, whatever the engine may still say."""
        self._close(reason)
        self.told = True
        self._error = error
        stats = self._stats
        terminal = Terminal(
            reason=reason,
            input_tokens=self._input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=stats.cached_tokens,
            queue_ms=_ms(stats.queued_s),
            prefill_ms=_ms_or_none(stats.prefill_s),
            ttft_ms=_ms_or_none(self._first_text_s),
            itl_ms=self._gap_figures(),
            preemptions=stats.preemptions,
            paused_ms=_ms(stats.paused_s),
            service_tier=self.goal.tier,
            targets=Targets(_ms(self.goal.ttft_s), _ms(self.goal.itl_s)),
            ttft_met=self._ttft_met,
            itl_met=self._itl_met,
            completed_at=now_unix,
            error=error,
        )
        return self.created(queued=True) + self._events.finish(terminal)

    def figures(self) -> Figures:
        """Of an answer that is over."""
        stats = self._stats
        gaps = self._gap_figures()
        first = stats.first_token_at
        error = self._error
        if error is None and self.ended is not None:
            error = self.ended.error
        return Figures(
            input_tokens=self._input_tokens,
            cached_tokens=stats.cached_tokens,
            output_tokens=self.output_tokens,
            lane_ms=_ms(self.lane_s),
            queue_ms=_ms(stats.queued_s),
            prefill_ms=_ms_or_none(stats.prefill_s),
            first_token_ms=None if first is None else _ms(first - self.received_at),
            first_text_ms=_ms_or_none(self._first_text_s),
            gap_p50_ms=None if gaps is None else gaps.p50,
            gap_p99_ms=None if gaps is None else gaps.p99,
            gap_max_ms=None if gaps is None else gaps.max,
            preemptions=stats.preemptions,
            paused_ms=_ms(stats.paused_s),
            finish_reason=self._reason or "cancelled",
            delivered_chars=self.delivered_chars,
            error_code=None if error is None else error.code,
            service_tier=self.goal.tier,
            ttft_target_ms=_ms(self.goal.ttft_s),
            ttft_met=self._ttft_met,
            itl_target_ms=_ms(self.goal.itl_s),
            itl_met=self._itl_met,
            detached=self.detached,
            resumed=self.resumed,
        )

    @property
    def output_tokens(self) -> int:
        """Up to and with the token that ended the answer; without such an end, as many as were delivered."""
        return self._output_tokens if self._end is None else self._end.output_tokens

    # --- inside -------------------------------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        if self._missed is not None and self._missed >= self._events.made:
            self._missed = None

    def _close(self, reason: FinishReason) -> None:
        if self._reason is None:
            self._reason = reason
        self._pending = None

    def _end_reason(self) -> FinishReason:
        assert self._end is not None, "a natural end comes with the text"
        return self._end.reason

    @property
    def _stats(self) -> Stats:
        return Stats() if self.ended is None else self.ended.stats

    @property
    def _first_text_s(self) -> float | None:
        return None if self.first_text_at is None else self.first_text_at - self.received_at

    @property
    def _ttft_met(self) -> bool | None:
        first_text_s = self._first_text_s
        return None if first_text_s is None else first_text_s <= self.goal.ttft_s

    @property
    def _itl_met(self) -> bool | None:
        return gaps_met(self.gaps, self.goal.itl_s) if self.gaps else None

    def _gap_figures(self) -> Gaps | None:
        if not self.gaps:
            return None
        gaps = sorted(self.gaps)
        return Gaps(p50=_ms(_rank(gaps, 0.5)), p99=_ms(_rank(gaps, 0.99)), max=_ms(gaps[-1]))


def _rank(ordered: list[float], quantile: float) -> float:
    """The nearest-rank quantile: a value that was really observed."""
    return ordered[max(0, ceil(quantile * len(ordered)) - 1)]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _ms_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else _ms(seconds)
