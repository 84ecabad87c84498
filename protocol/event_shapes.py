"""The shapes of what a server sends: OpenAI's objects and events, with rota's extension of them.

Knows fields, their names, and which are left out when not known (UNSET). Knows nothing of when an event is sent, or
after which: `protocol.events` does.
"""

import math

from msgspec import UNSET, Struct, UnsetType

from protocol.responses import Targets
from protocol.tokens import TokenLogprob

_LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have; the number that clients of other servers know."""

# --- the objects inside events ---------------------------------------------------------------------------------------


class Gaps(Struct, frozen=True):
    """Milliseconds between tokens."""

    p50: float
    p99: float
    max: float


class Alternative(Struct, frozen=True):
    token: str
    logprob: float


class Logprob(Struct, frozen=True):
    """As deltas have it."""

    token: str
    logprob: float
    top_logprobs: list[Alternative]


class AlternativeBytes(Struct, frozen=True):
    token: str
    bytes: list[int]
    logprob: float


class LogprobBytes(Struct, frozen=True):
    """As parts have it: with the bytes of each token."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[AlternativeBytes]


class Part(Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: list[LogprobBytes] | UnsetType = UNSET


class Item(Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: str
    content: tuple[Part, ...]
    role: str = "assistant"


class InputDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(Struct, frozen=True):
    reason: str | None


class Failure(Struct, frozen=True):
    message: str
    code: str = "server_error"
    """OpenAI's list is closed; rota's own code is in `rota.error_code`."""
    retry_after_ms: int | UnsetType = UNSET


class Place(Struct, frozen=True):
    """`rota`, while it waits."""

    position: int
    estimated_wait_ms: float | UnsetType = UNSET


class Progress(Struct, frozen=True):
    """`rota`, while its prompt is read."""

    input_tokens: int
    prefilled_tokens: int
    """Found in the cache, or read."""


class Met(Struct, frozen=True):
    """Whether each target was met. What never came (no text, no second token) is not told of."""

    ttft: bool | UnsetType = UNSET
    itl: bool | UnsetType = UNSET


class Figures(Struct, frozen=True):
    """`rota`, when it has ended."""

    finish_reason: str
    queue_ms: float
    preemptions: int
    paused_ms: float
    delivered_chars: int
    prefill_ms: float | UnsetType = UNSET
    ttft_ms: float | UnsetType = UNSET
    itl_ms: Gaps | UnsetType = UNSET
    error_code: str | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    targets: Targets | UnsetType = UNSET
    met: Met | UnsetType = UNSET


class Response(Struct, frozen=True):
    """The response as it stands. The last block repeats what the client asked for, where it asked."""

    id: str
    created_at: float
    model: str
    status: str
    output: tuple[Item, ...] = ()
    object: str = "response"
    parallel_tool_calls: bool = False
    tool_choice: str = "none"
    tools: tuple[()] = ()
    completed_at: float | UnsetType = UNSET
    error: Failure | UnsetType = UNSET
    incomplete_details: Incomplete | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    rota: Place | Progress | Figures | UnsetType = UNSET

    max_output_tokens: int | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    previous_response_id: str | UnsetType = UNSET
    prompt_cache_key: str | UnsetType = UNSET
    safety_identifier: str | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    temperature: float | UnsetType = UNSET
    top_logprobs: int | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    truncation: str | UnsetType = UNSET
    user: str | UnsetType = UNSET


ECHOED = (
    "max_output_tokens",
    "metadata",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "temperature",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)
"""`instructions` are not: they may be long, and every event with a response would carry them again."""


# --- the events ------------------------------------------------------------------------------------------------------


class ResponseEvent(Struct, frozen=True):
    """`response.created`, `.queued`, `.in_progress`, `.completed`, `.incomplete`, `.failed`."""

    type: str
    sequence_number: int
    stream_id: str | UnsetType
    response: Response


class ItemEvent(Struct, frozen=True):
    """`response.output_item.added`, `.done`."""

    type: str
    sequence_number: int
    stream_id: str | UnsetType
    item: Item
    output_index: int = 0


class PartEvent(Struct, frozen=True):
    """`response.content_part.added`, `.done`."""

    type: str
    sequence_number: int
    stream_id: str | UnsetType
    item_id: str
    part: Part
    output_index: int = 0
    content_index: int = 0


class TextDelta(Struct, frozen=True, tag_field="type", tag="response.output_text.delta"):
    sequence_number: int
    stream_id: str | UnsetType
    item_id: str
    delta: str
    logprobs: list[Logprob]
    output_index: int = 0
    content_index: int = 0


class TextDone(Struct, frozen=True, tag_field="type", tag="response.output_text.done"):
    sequence_number: int
    stream_id: str | UnsetType
    item_id: str
    text: str
    logprobs: list[Logprob]
    output_index: int = 0
    content_index: int = 0


class ErrorBody(Struct, frozen=True):
    type: str
    code: str
    message: str
    param: str | None
    headers: dict[str, str] | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET


class ErrorEvent(Struct, frozen=True, tag_field="type", tag="error"):
    status: int
    stream_id: str | UnsetType
    error: ErrorBody


class HttpError(Struct, frozen=True):
    error: ErrorBody


class SteerError(Struct, frozen=True):
    type: str = "invalid_request_error"
    code: str = "steering_not_supported"
    message: str = "rota cannot steer a running response. Cancel it and send response.create."


class Steer(Struct, frozen=True):
    previous_response_id: str
    input: object


class SteerFailed(Struct, frozen=True, tag_field="type", tag="response.steer.failed"):
    sequence_number: int
    error: SteerError
    steer: Steer


# --- small conversions -----------------------------------------------------------------------------------------------


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB


def logprob_of(given: TokenLogprob) -> Logprob:
    """As deltas have it."""
    top = [Alternative(token, _finite(logprob)) for token, logprob in given.top]
    return Logprob(given.token, _finite(given.logprob), top)


def logprob_bytes_of(given: TokenLogprob) -> LogprobBytes:
    """As parts have it."""
    top = [AlternativeBytes(token, list(token.encode()), _finite(logprob)) for token, logprob in given.top]
    return LogprobBytes(given.token, list(given.token.encode()), _finite(given.logprob), top)
