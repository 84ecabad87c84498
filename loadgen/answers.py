"""What the events of a WebSocket tell of one answer (WIRE.md), from the client's side.

Knows which fields figures need, and decodes only those, so that measuring many sockets costs little. Every event is
stamped by whoever received it. Knows no socket.
"""

from collections.abc import Callable

import msgspec
from websockets.exceptions import ConnectionClosed

from loadgen.exchange import Exchange

FINISHED = frozenset({"stop", "stop_text", "length", "prefilled"})
"""The finish reasons of an answer that ended as it was asked to."""


# -- what is read of an event; everything else is skipped without being built


class _TokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    input_tokens_details: _TokenDetails | None = None
    output_tokens: int | None = None


class _Gaps(msgspec.Struct, frozen=True):
    p50: float | None = None
    p99: float | None = None
    max: float | None = None


class _Met(msgspec.Struct, frozen=True):
    ttft: bool | None = None
    itl: bool | None = None


class _Rota(msgspec.Struct, frozen=True):
    finish_reason: str | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    itl_ms: _Gaps | None = None
    met: _Met | None = None
    preemptions: int | None = None
    paused_ms: float | None = None
    error_code: str | None = None


class Error(msgspec.Struct, frozen=True):
    code: str | None = None
    type: str | None = None
    message: str | None = None


class _IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str | None = None


class _Response(msgspec.Struct, frozen=True):
    id: str | None = None
    status: str | None = None
    usage: _Usage | None = None
    rota: _Rota | None = None
    error: Error | None = None
    incomplete_details: _IncompleteDetails | None = None


class Event(msgspec.Struct, frozen=True):
    type: str
    stream_id: str | None = None
    delta: str | None = None
    response: _Response | None = None
    error: Error | None = None


events = msgspec.json.Decoder(Event)


def hear(exchange: Exchange, event: Event, arrived_s: float, on_text: Callable[[], None] | None = None) -> bool:
    """Record an event of this request's answer. True: it was the last."""
    if exchange.first_byte_s is None:
        exchange.first_byte_s = arrived_s
    match event.type:
        case "response.output_text.delta":
            if event.delta:
                exchange.texts_s.append(arrived_s)
                if exchange.text is not None:
                    exchange.text.append(event.delta)
                if on_text is not None:
                    on_text()
        case "response.created":
            exchange.created = True
        case "response.completed" | "response.incomplete" | "response.failed":
            exchange.ended_s = arrived_s
            _record_end(exchange, event)
            return True
        case "error":
            exchange.ended_s = arrived_s
            error = event.error or Error()
            # Before `created` it refuses the request; after it there is a response, which has broken off.
            exchange.outcome = "failed" if exchange.created else "refused"
            exchange.code = error.code or error.type
            exchange.message = error.message
            return True
    return False


def record_drop(exchange: Exchange, closed: ConnectionClosed, at_s: float) -> None:
    """Its socket is gone."""
    exchange.ended_s = at_s
    exchange.outcome = "dropped"
    # Without a close frame the socket simply broke: 1006, the code the protocol reserves for that.
    exchange.code = f"closed_{closed.rcvd.code if closed.rcvd else 1006}"
    exchange.message = closed.rcvd.reason if closed.rcvd else None


def record_unreadable(exchange: Exchange, error: Exception, at_s: float) -> None:
    """The server sent something that is no event."""
    exchange.ended_s = at_s
    exchange.outcome = "failed"
    exchange.code = "unreadable_event"
    exchange.message = str(error)


def _record_end(exchange: Exchange, event: Event) -> None:
    response = event.response or _Response()
    rota = response.rota or _Rota()
    usage = response.usage or _Usage()
    exchange.status = response.status or event.type.removeprefix("response.")
    exchange.finish_reason = rota.finish_reason
    exchange.input_tokens = usage.input_tokens
    exchange.cached_tokens = usage.input_tokens_details.cached_tokens if usage.input_tokens_details else None
    exchange.output_tokens = usage.output_tokens
    exchange.queue_ms = rota.queue_ms
    exchange.prefill_ms = rota.prefill_ms
    exchange.server_ttft_ms = rota.ttft_ms
    if rota.itl_ms is not None:
        gaps = rota.itl_ms
        exchange.server_itl_p50_ms, exchange.server_itl_p99_ms, exchange.server_itl_max_ms = (
            gaps.p50,
            gaps.p99,
            gaps.max,
        )
    exchange.server_paused_ms = rota.paused_ms
    if rota.met is not None:
        exchange.server_met = rota.met.ttft is not False and rota.met.itl is not False
    exchange.preemptions = rota.preemptions or 0
    exchange.response_id = response.id
    cut_at_limit = response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    if event.type == "response.completed" or rota.finish_reason in FINISHED or cut_at_limit:
        exchange.outcome = "finished"
        return
    exchange.outcome = "failed"
    error = response.error or Error()
    exchange.code = rota.error_code or rota.finish_reason or error.code or exchange.status
    exchange.message = error.message
