"""The wire, to the client: the events of one response in their order, and the few that belong to none.

Knows which event follows which, what each end is called, and the text delivered so far. Does no I/O and has no clock:
what happened is told to it, and it returns frames (JSON in UTF-8) to be sent in that order. Each can be
made `again`, for a reader who has missed it: what is kept for that is what was told, not the frames.
"""

import math
from array import array
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from protocol.errors import WireError, internal_error, worker_failed
from protocol.event_shapes import (
    ECHOED,
    ErrorBody,
    ErrorEvent,
    Failure,
    Figures,
    Gaps,
    HttpError,
    Incomplete,
    InputDetails,
    Item,
    ItemEvent,
    Logprob,
    Met,
    OutputDetails,
    Part,
    PartEvent,
    Place,
    Progress,
    Response,
    ResponseEvent,
    Steer,
    SteerError,
    SteerFailed,
    TextDelta,
    TextDone,
    Usage,
    logprob_bytes_of,
    logprob_of,
)
from protocol.kinds import FinishReason
from protocol.responses import ResponseCreate, ResponseSteer, Targets
from protocol.tokens import TokenLogprob

_encode = msgspec.json.Encoder().encode

_LOGPROB_BYTES = 128
"""One alternative in memory: its text, its number and what holds the two."""
_PREAMBLE_BYTES = 512
_CHAR_BYTES = 4
_RESPONSE_BYTES = 16 * 2**10
"""What is echoed of its request, at most, and all the rest."""

_ENDS: dict[FinishReason, tuple[str, str]] = {
    "stop": ("response.completed", "completed"),
    "stop_text": ("response.completed", "completed"),
    "prefilled": ("response.completed", "completed"),
    "length": ("response.incomplete", "incomplete"),
    "cancelled": ("response.incomplete", "cancelled"),
    "deadline": ("response.incomplete", "incomplete"),
    "failed": ("response.failed", "failed"),
}
"""The terminal event and the status of the response, by how it ended."""


class Terminal(Struct, frozen=True):
    """How a response ended, and its figures. What is None never happened (no token, no second token)."""

    reason: FinishReason
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    queue_ms: float = 0.0
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    itl_ms: Gaps | None = None
    preemptions: int = 0
    paused_ms: float = 0.0
    service_tier: str | None = None
    """The tier used."""
    targets: Targets | None = None
    """Those used."""
    ttft_met: bool | None = None
    itl_met: bool | None = None
    completed_at: float | None = None
    """Unix time, told to the client when the answer is complete."""
    error: WireError | None = None
    """Why it `failed`."""


def error_event(error: WireError, stream_id: str | None) -> bytes:
    """The `error` event: a request was refused, and there is no response. `stream_id` is the lane it was made on."""
    return _encode(ErrorEvent(error.status, _or_unset(stream_id), _error_body(error)))


def http_error_body(error: WireError) -> bytes:
    """The body of a refusal before the upgrade, in the shape of OpenAI's HTTP errors. Its status is `error.status`."""
    return _encode(HttpError(_error_body(error)))


def retry_headers(error: WireError) -> dict[str, str]:
    """The HTTP headers that say when to try again, as OpenAI's clients read them; empty when it does not say."""
    return {} if error.retry_after_ms is None else {"retry-after-ms": str(math.ceil(error.retry_after_ms))}


def steer_failed(steer: ResponseSteer) -> bytes:
    """The answer to every `response.steer`. It belongs to no response here, so its sequence is its own."""
    return _encode(SteerFailed(0, SteerError(), Steer(steer.previous_response_id, steer.input)))


# --- one response ----------------------------------------------------------------------------------------------------


class ResponseEvents:
    """The frames of one response, in order, from `created` to `finish`.

    Each method says what happened and returns the frames to send, possibly none: an event that no longer makes sense
    (a new place in the queue of a response that already runs) is not sent, one that is still owed (`in_progress`
    before the first text) is put in front. `created` comes first and `finish` last; anything else is a mistake of
    the caller's.
    """

    def __init__(
        self,
        *,
        response_id: str,
        item_id: str,
        created_at: float,
        model: str,
        create: ResponseCreate,
        service_tier: str | None = None,
    ) -> None:
        """`created_at` is Unix time. `service_tier` is the tier used, shown instead of the one asked for."""
        self._item_id = item_id
        self._stream_id = _or_unset(create.stream_id)
        self._wants_logprobs = create.wants_logprobs
        echoed = {name: value for name in ECHOED if (value := getattr(create, name)) is not None}
        if service_tier is not None:
            echoed["service_tier"] = service_tier
        self._response = Response(response_id, created_at, model, "in_progress", **echoed)
        self._sequence_number = 0
        self._preamble: list[tuple[str, str, Place | Progress | UnsetType]] = []
        """The events before the text: kind, status and `rota` of each."""
        self._delta_ends = array("I") if create.resumable else None
        """Of each delta, how many characters had been sent with it; None: no event will be made again."""
        self._logprob_ends = array("I")
        """The same of log-probabilities; as long as the other, or empty when none are wanted."""
        self._terminal: Terminal | None = None
        self._running = False
        self._prefilled_tokens = 0
        self._item_open = False
        self._finished = False
        self._deltas: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._delivered_chars = 0

    @property
    def delivered_chars(self) -> int:
        """Characters of text sent so far."""
        return self._delivered_chars

    @property
    def delivered_text(self) -> str:
        """The text sent so far: what a conversation that was cut short continues from."""
        if len(self._deltas) > 1:
            self._deltas = ["".join(self._deltas)]
        return self._deltas[0] if self._deltas else ""

    @property
    def made(self) -> int:
        """How many events there are so far; the next one has this number."""
        return self._sequence_number

    @property
    def finished(self) -> bool:
        """The terminal event has been made."""
        return self._finished

    @property
    def kept_bytes(self) -> int:
        """About how much memory is kept of it, to make its events again from; rather more than less."""
        alternatives = len(self._logprobs) * (1 + len(self._logprobs[0].top)) if self._logprobs else 0
        ends = len(self._delta_ends or ()) + len(self._logprob_ends)
        return (
            _RESPONSE_BYTES
            + _PREAMBLE_BYTES * len(self._preamble)
            + _CHAR_BYTES * (self._delivered_chars + ends)
            + _LOGPROB_BYTES * alternatives
        )

    def created(self, queued: bool) -> list[bytes]:
        """It exists, and waits (`queued`) or goes straight to the scheduler."""
        assert self._sequence_number == 0, "a response is created once"
        return [self._before_text("response.created", "queued" if queued else "in_progress")]

    def queued(self, position: int, estimated_wait_ms: float | None) -> list[bytes]:
        """It waits, at this place."""
        assert self._sequence_number > 0, "created comes first"
        if self._running or self._finished:
            return []
        place = Place(position, UNSET if estimated_wait_ms is None else estimated_wait_ms)
        return [self._before_text("response.queued", "queued", place)]

    def in_progress(self, progress: Progress | None = None) -> list[bytes]:
        """It runs. Told again when more of its prompt has been read, until there is text."""
        assert self._sequence_number > 0, "created comes first"
        if self._finished or self._item_open:
            return []
        if self._running and (progress is None or progress.prefilled_tokens <= self._prefilled_tokens):
            return []
        self._running = True
        if progress is not None:
            self._prefilled_tokens = progress.prefilled_tokens
        return [self._before_text("response.in_progress", "in_progress", _or_unset(progress))]

    def text(self, delta: str, logprobs: Sequence[TokenLogprob] = ()) -> list[bytes]:
        """More text. An empty delta without log-probabilities is nothing to tell."""
        assert not self._finished, "nothing follows the end of an answer"
        if not self._wants_logprobs:
            logprobs = ()
        if not delta and not logprobs:
            return []
        frames = [] if self._item_open else self._open_item()
        self._deltas.append(delta)
        self._delivered_chars += len(delta)
        shown: list[Logprob] = []
        if logprobs:
            shown = [logprob_of(each) for each in logprobs]
            self._logprobs.extend(logprobs)
        if self._delta_ends is not None:
            self._delta_ends.append(self._delivered_chars)
            if self._wants_logprobs:
                self._logprob_ends.append(len(self._logprobs))
        frames.append(_encode(TextDelta(self._next(), self._stream_id, self._item_id, delta, shown)))
        return frames

    def finish(self, terminal: Terminal) -> list[bytes]:
        """It ended: what is still owed, the `*.done` events if there is an item, and the terminal event."""
        assert self._sequence_number > 0, "created comes first"
        assert not self._finished, "a response ends once"
        frames: list[bytes] = []
        if terminal.reason == "prefilled":
            frames += self.in_progress()
        elif terminal.reason in ("stop", "stop_text", "length") and not self._item_open:
            # The answer is there, and empty: clients look for its item.
            frames += self._open_item()
        self._terminal = terminal
        self._finished = True
        part = self._whole_part()
        places = range(4 if self._item_open else 1)
        return frames + [self._closing_event(place, self._next(), part) for place in places]

    def again(self, number: int) -> bytes:
        """The event of that number, as it was made. Only of a response that was asked for as `resumable`."""
        assert self._delta_ends is not None, "nothing was kept to make it from"
        assert 0 <= number < self._sequence_number, "it has not been made yet"
        if number < len(self._preamble):
            kind, status, rota = self._preamble[number]
            return self._response_event(kind, number, status=status, rota=rota)
        place = number - len(self._preamble)
        if self._item_open:
            if place < 2:
                return self._opening_event(place, number)
            if place - 2 < len(self._delta_ends):
                return self._delta_again(place - 2, number)
            place -= 2 + len(self._delta_ends)
        return self._closing_event(place, number, self._whole_part())

    def _before_text(self, kind: str, status: str, rota: Place | Progress | UnsetType = UNSET) -> bytes:
        self._preamble.append((kind, status, rota))
        return self._response_event(kind, self._next(), status=status, rota=rota)

    def _open_item(self) -> list[bytes]:
        frames = self.in_progress()
        self._item_open = True
        return frames + [self._opening_event(place, self._next()) for place in range(2)]

    def _opening_event(self, place: int, number: int) -> bytes:
        if place == 0:
            item = Item(self._item_id, "in_progress", ())
            return _encode(ItemEvent("response.output_item.added", number, self._stream_id, item))
        return self._part_event("response.content_part.added", number, Part(""))

    def _delta_again(self, place: int, number: int) -> bytes:
        ends, logprob_ends = self._delta_ends, self._logprob_ends
        assert ends is not None
        delta = self.delivered_text[ends[place - 1] if place else 0 : ends[place]]
        shown: list[Logprob] = []
        if logprob_ends:
            told = self._logprobs[logprob_ends[place - 1] if place else 0 : logprob_ends[place]]
            shown = [logprob_of(each) for each in told]
        return _encode(TextDelta(number, self._stream_id, self._item_id, delta, shown))

    def _closing_event(self, place: int, number: int, part: Part) -> bytes:
        """The one at this place of those that end it: three that close the item, if there is one, and the terminal."""
        assert self._terminal is not None, "it has not ended yet"
        if not self._item_open:
            return self._terminal_event(self._terminal, number, ())
        if place == 0:
            logprobs = [logprob_of(each) for each in self._logprobs]
            return _encode(TextDone(number, self._stream_id, self._item_id, part.text, logprobs))
        if place == 1:
            return self._part_event("response.content_part.done", number, part)
        item = Item(self._item_id, _item_status(self._terminal), (part,))
        if place == 2:
            return _encode(ItemEvent("response.output_item.done", number, self._stream_id, item))
        return self._terminal_event(self._terminal, number, (item,))

    def _terminal_event(self, terminal: Terminal, number: int, output: tuple[Item, ...]) -> bytes:
        kind, status = _ENDS[terminal.reason]
        error = self._why(terminal)
        details: Incomplete | UnsetType = UNSET
        if status == "incomplete":
            details = Incomplete("max_output_tokens" if terminal.reason == "length" else None)
        return self._response_event(
            kind,
            number,
            status=status,
            output=output,
            completed_at=_or_unset(terminal.completed_at) if status == "completed" else UNSET,
            error=UNSET if error is None else Failure(error.message, retry_after_ms=_retry_after(error)),
            incomplete_details=details,
            usage=Usage(
                terminal.input_tokens,
                InputDetails(terminal.cached_tokens),
                terminal.output_tokens,
                OutputDetails(),
                terminal.input_tokens + terminal.output_tokens,
            ),
            rota=Figures(
                finish_reason=terminal.reason,
                queue_ms=terminal.queue_ms,
                preemptions=terminal.preemptions,
                paused_ms=terminal.paused_ms,
                delivered_chars=self._delivered_chars,
                prefill_ms=_or_unset(terminal.prefill_ms),
                ttft_ms=_or_unset(terminal.ttft_ms),
                itl_ms=_or_unset(terminal.itl_ms),
                error_code=UNSET if error is None else error.code,
                service_tier=_or_unset(terminal.service_tier),
                targets=_or_unset(terminal.targets),
                met=UNSET if terminal.targets is None else _met(terminal),
            ),
        )

    def _why(self, terminal: Terminal) -> WireError | None:
        if terminal.reason != "failed":
            return None
        if terminal.error is None:
            return internal_error()
        # Whoever noticed the loss cannot know how much had been delivered.
        return worker_failed(self._delivered_chars) if terminal.error.code == "worker_failed" else terminal.error

    def _response_event(self, kind: str, number: int, **changes: object) -> bytes:
        response = structs.replace(self._response, **changes)
        return _encode(ResponseEvent(kind, number, self._stream_id, response))

    def _part_event(self, kind: str, number: int, part: Part) -> bytes:
        return _encode(PartEvent(kind, number, self._stream_id, self._item_id, part))

    def _whole_part(self) -> Part:
        logprobs = [logprob_bytes_of(each) for each in self._logprobs] if self._wants_logprobs else UNSET
        return Part(self.delivered_text, logprobs=logprobs)

    def _next(self) -> int:
        self._sequence_number += 1
        return self._sequence_number - 1


# --- small conversions -----------------------------------------------------------------------------------------------

_Value = TypeVar("_Value")


def _or_unset(value: _Value | None) -> _Value | UnsetType:
    return UNSET if value is None else value


def _item_status(terminal: Terminal) -> str:
    return "completed" if terminal.reason in ("stop", "stop_text") else "incomplete"


def _met(terminal: Terminal) -> Met:
    return Met(_or_unset(terminal.ttft_met), _or_unset(terminal.itl_met))


def _error_body(error: WireError) -> ErrorBody:
    return ErrorBody(
        error.type,
        error.code,
        error.message,
        error.param,
        retry_headers(error) or UNSET,
        _retry_after(error),
    )


def _retry_after(error: WireError) -> int | UnsetType:
    return UNSET if error.retry_after_ms is None else math.ceil(error.retry_after_ms)
