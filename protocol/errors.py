"""Every error a client can get: its code, its HTTP status, its sentence.

Knows the codes of the wire and how to say each: what was wrong, with the numbers, and what to do about it. Knows
nothing of how an error travels; `protocol.events` puts it into an `error` event, the body of an HTTP refusal, or the
`error` of a failed response.
"""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal

from msgspec import Struct

ErrorCode = Literal[
    "authentication_failed",
    "context_length_exceeded",
    "deadline_exceeded",
    "internal_error",
    "invalid_json",
    "invalid_request_error",
    "invalid_stream_id",
    "model_not_found",
    "origin_not_allowed",
    "previous_response_not_found",
    "rate_limit_exceeded",
    "response_not_found",
    "response_resumed_elsewhere",
    "server_overloaded",
    "shutting_down",
    "unsupported_input",
    "unsupported_parameter",
    "websocket_connection_limit_reached",
    "websocket_stream_limit_reached",
    "worker_failed",
]

_STATUS_AND_TYPE: dict[ErrorCode, tuple[int, str]] = {
    "authentication_failed": (401, "authentication_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "deadline_exceeded": (504, "server_error"),
    "internal_error": (500, "server_error"),
    "invalid_json": (400, "invalid_request_error"),
    "invalid_request_error": (400, "invalid_request_error"),
    "invalid_stream_id": (400, "invalid_request_error"),
    "model_not_found": (404, "invalid_request_error"),
    "origin_not_allowed": (403, "permission_error"),
    # OpenAI answers 400, not 404, over a WebSocket.
    "previous_response_not_found": (400, "invalid_request_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "response_not_found": (404, "invalid_request_error"),
    "response_resumed_elsewhere": (409, "invalid_request_error"),
    "server_overloaded": (503, "server_error"),
    "shutting_down": (503, "server_error"),
    "unsupported_input": (400, "invalid_request_error"),
    "unsupported_parameter": (400, "invalid_request_error"),
    "websocket_connection_limit_reached": (429, "rate_limit_error"),
    "websocket_stream_limit_reached": (429, "rate_limit_error"),
    "worker_failed": (500, "server_error"),
}


class WireError(Struct, frozen=True):
    """One error, ready to be told. `param` is the path of the offending field; `retry_after_ms` when to try again."""

    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_ms: float | None = None

    @property
    def status(self) -> int:
        """The HTTP status that says the same."""
        return _STATUS_AND_TYPE[self.code][0]

    @property
    def type(self) -> str:
        """The family the code belongs to, in OpenAI's words."""
        return _STATUS_AND_TYPE[self.code][1]


class Refusal(Exception):
    """What a client sent cannot be accepted; `error` says why. Raised and caught inside `protocol/`."""

    def __init__(self, error: WireError, stream_id: str | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.stream_id = stream_id


# --- what the client sent --------------------------------------------------------------------------------------------


def invalid_json(detail: str) -> WireError:
    """`detail` is a clause without a full stop: "a string is not closed (character 17)"."""
    return WireError("invalid_json", f"The frame is not valid JSON: {detail}. Send one JSON object in each text frame.")


def invalid_request(message: str, param: str | None = None) -> WireError:
    """`message` is the whole sentence, since each such fault is its own."""
    return WireError("invalid_request_error", message, param)


def invalid_stream_id(given: object) -> WireError:
    if isinstance(given, str):
        what = f"'{shown(given)}', {len(given):,} characters long" if len(given) > 256 else f"'{given}'"
    else:
        what = "not a string"
    return WireError(
        "invalid_stream_id",
        f"The stream_id is {what}. Use 1 to 256 of the letters A-Z and a-z, digits, '_', '.' and '-', "
        "or leave it out for the default lane.",
        "stream_id",
    )


_LEAVE_OUT, _GIVEN = "Leave it out.", "the value given"


def unsupported_parameter(field: str, advice: str = _LEAVE_OUT, given: str = _GIVEN) -> WireError:
    """`field` is the path of a parameter that rota does not have, or of a value it does not have for one it has."""
    # Nothing but a value that is named, or advice, lets anybody think that another value would do.
    value = "" if (advice, given) == (_LEAVE_OUT, _GIVEN) else f" with {given}"
    return WireError("unsupported_parameter", f"rota does not support '{shown(field)}'{value}. {advice}", field)


def unknown_parameter(field: str, known: Iterable[str] = ()) -> WireError:
    """The same code for a name nobody knows: a misspelt field must not be ignored either."""
    close = get_close_matches(shown(field), known, 1)
    advice = f"Did you mean '{close[0]}'?" if close else "Check its spelling, or leave it out."
    return WireError("unsupported_parameter", f"rota has no parameter '{shown(field)}'. {advice}", field)


def unsupported_input(what: str, param: str) -> WireError:
    """`what` is a clause without a full stop: "an item of type 'item_reference' is not supported"."""
    return WireError(
        "unsupported_input",
        f"'{shown(param)}': {what}. Send messages with the role user, assistant, system or developer, and as content a "
        "string or a list of input_text and output_text parts.",
        param,
    )


def model_not_found(asked: str | None, served: str | Sequence[str]) -> WireError:
    """`asked` is None when the request named no model; `served` is every name that would have been right."""
    names = [served] if isinstance(served, str) else list(served)
    serves = " or ".join(f"'{name}'" for name in names)
    if asked is None:
        return WireError("model_not_found", f"No model is named; this server serves {serves}.", "model")
    return WireError(
        "model_not_found", f"The model '{shown(asked)}' is not served here; this server serves {serves}.", "model"
    )


def context_length_exceeded(
    input_tokens: int, max_output_tokens: int | None, max_context: int, *, at_least: bool = False
) -> WireError:
    """`max_output_tokens` is None when the client did not set it: lowering it is then no advice. `at_least`: nobody
    counted, since the input cannot be shorter than this."""
    asked = "" if max_output_tokens is None else f" and max_output_tokens is {max_output_tokens:,}"
    tokens = f"{'at least ' if at_least else ''}{input_tokens:,} token{'s' if input_tokens != 1 else ''}"
    advice = "Shorten the input." if max_output_tokens is None else "Shorten the input or lower max_output_tokens."
    return WireError(
        "context_length_exceeded",
        f"The prompt is {tokens}{asked}; a prompt and its answer may have {max_context:,} together. {advice}",
        "input" if input_tokens >= max_context or max_output_tokens is None else "max_output_tokens",
    )


def previous_response_not_found(response_id: str) -> WireError:
    return WireError(
        "previous_response_not_found",
        f"The response '{shown(response_id)}' is not known here, or is no longer kept. "
        "Send the whole conversation in input, without previous_response_id.",
        "previous_response_id",
    )


def response_not_found(response_id: str) -> WireError:
    """For another key's response too: whose it is, or was, is told to nobody."""
    return WireError(
        "response_not_found",
        f"The response '{shown(response_id)}' is not known here, or can no longer be resumed. Ask again with "
        "response.create.",
        "response_id",
    )


def response_resumed_elsewhere(response_id: str) -> WireError:
    return WireError(
        "response_resumed_elsewhere",
        f"The response '{shown(response_id)}' was resumed on a newer connection, and is told there from now on.",
    )


# --- who the client is, and how much it may do -----------------------------------------------------------------------


def authentication_failed() -> WireError:
    return WireError(
        "authentication_failed",
        "The API key is missing or wrong. Send 'Authorization: Bearer KEY', or from a browser offer the subprotocols "
        "'responses' and 'openai-insecure-api-key.KEY'.",
    )


def origin_not_allowed(origin: str) -> WireError:
    return WireError(
        "origin_not_allowed",
        f"Pages from '{shown(origin)}' may not connect. Serve the page from this server, or have its operator name "
        "that origin in --origins, or the proxy that it came through in --trusted-proxies.",
    )


def rate_limit_exceeded(what: str, retry_after_ms: float) -> WireError:
    """The client's own limit. `what` is a sentence without its full stop: "The queue is full"."""
    return WireError("rate_limit_exceeded", _try_again(what, retry_after_ms), None, retry_after_ms)


def websocket_connection_limit_reached(what: str, retry_after_ms: float) -> WireError:
    """Refused before the upgrade: as many sockets are open as may be. `what`: as of `rate_limit_exceeded`."""
    return WireError("websocket_connection_limit_reached", _try_again(what, retry_after_ms), None, retry_after_ms)


def websocket_connection_expired(max_age_s: float) -> WireError:
    """OpenAI's own use of the code: this socket has lived as long as one may."""
    return WireError(
        "websocket_connection_limit_reached",
        f"This connection is {long_time(max_age_s)} old, the most one may be. Open a new one to continue.",
    )


def websocket_stream_limit_reached(limit: int) -> WireError:
    return WireError(
        "websocket_stream_limit_reached",
        f"This connection already has {limit:,} lanes, the most one may have. Reuse a stream_id whose responses "
        "have ended, or open another connection.",
        "stream_id",
    )


# --- what happened to the server -------------------------------------------------------------------------------------


def server_overloaded(what: str, retry_after_ms: float) -> WireError:
    """The server's limit. `what` is a sentence without its full stop: "All 64 places in the queue are taken"."""
    return WireError("server_overloaded", _try_again(what, retry_after_ms), None, retry_after_ms)


def deadline_exceeded(waited_ms: float, deadline_ms: float | None) -> WireError:
    """It never ran. `deadline_ms` is the client's own limit, None when it was the server's patience that ended."""
    if deadline_ms is None:
        return WireError(
            "deadline_exceeded",
            f"The request waited {duration(waited_ms)} for its turn, the longest this server lets one wait. "
            "Send it again later.",
        )
    return WireError(
        "deadline_exceeded",
        f"The deadline of {duration(deadline_ms)} passed while the request waited for its turn. "
        "Raise deadline_ms, or send it again later.",
        "deadline_ms",
    )


def deadline_unreachable(estimated_ms: float, deadline_ms: float, *, alone: bool = False) -> WireError:
    """It is not begun. `estimated_ms` is to its first token and, like the deadline, from receiving the request.

    `alone`: reading the prompt takes longer than the deadline by itself, however little else there is to do.
    """
    advice = "Shorten the input, or raise deadline_ms." if alone else "Raise deadline_ms, or send it again later."
    return WireError(
        "deadline_exceeded",
        f"The first token would come after about {duration(estimated_ms)}, and the deadline is "
        f"{duration(deadline_ms)}. {advice}",
        "deadline_ms",
    )


def worker_failed(delivered_chars: int) -> WireError:
    return WireError(
        "worker_failed",
        f"The worker stopped after {delivered_chars:,} characters had been delivered. Send the request again.",
    )


def shutting_down() -> WireError:
    return WireError("shutting_down", "The server is shutting down and takes no new requests. Connect again shortly.")


def stopped_in_the_middle() -> WireError:
    """For an answer that a stopping server can no longer finish; `shutting_down` is for a request it does not begin."""
    return WireError("shutting_down", "The server stopped before this answer was finished. Send the request again.")


def internal_error() -> WireError:
    """Says nothing of the cause: that is for the log, not for whoever is connected."""
    return WireError(
        "internal_error",
        "Something went wrong in the server, and its log says what. Send the request again.",
    )


# --- wording ---------------------------------------------------------------------------------------------------------


def duration(ms: float) -> str:
    """A time as a reader takes it in: "40 ms", "1.5 s". Rounded up, but not for what a difference of floats adds."""
    return f"{math.ceil(ms - 0.001):,} ms" if ms < 100 else f"{ms / 1000:,.1f} s"


def long_time(seconds: float) -> str:
    """How long something may last: "60 minutes", "90 seconds". Minutes only where they are whole."""
    if seconds >= 60 and seconds % 60 == 0:
        minutes = round(seconds / 60)
        return f"{minutes:,} minute{'s' if minutes != 1 else ''}"
    return f"{seconds:,g} second{'s' if seconds != 1 else ''}"


def shown(text: str, most: int = 80) -> str:
    """As much of a client's own text as is repeated to it."""
    return text if len(text) <= most else f"{text[:most]}…"


def _try_again(what: str, retry_after_ms: float) -> str:
    return f"{what}. Try again in {duration(retry_after_ms)}."
