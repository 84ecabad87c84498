"""What one request went through, and the figures many of them add up to.

Knows what an `Exchange` records and how percentiles, rates and counts come from it; `Report` is the shape of `--json
FILE`. Knows no socket, no clock (times come in as seconds) and no wire.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import msgspec

JSON_FORMAT = 1

Outcome = Literal[
    "not_sent",  # the socket was gone, or the run was over, before its turn came
    "unfinished",  # sent, and still running when the run was stopped
    "finished",  # the answer ended as asked for: end token, stop text, output limit
    "failed",  # the answer began and ended some other way: worker failed, deadline, cancelled by the server, bad frame
    "refused",  # answered by an `error` event instead of a response
    "dropped",  # the socket closed before the terminal event
]
StoppedBy = Literal["finished", "timeout", "interrupt"]
Api = Literal["responses", "chat"]
"""The Responses API over WebSockets, which is rota's, or chat completions over HTTP."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer as the client saw them. Times are seconds of `time.perf_counter`."""

    socket: int
    number: int
    """Which request of its socket, from 0."""
    outcome: Outcome = "not_sent"
    created: bool = False
    """The server has said that there is a response."""
    code: str | None = None
    """Why it was refused, failed or dropped: an error code, a finish reason, or `closed_CODE`."""
    message: str | None = None
    status: str | None = None
    """`response.status` of the terminal event."""
    finish_reason: str | None = None
    sent_s: float | None = None
    texts_s: list[float] = field(default_factory=list)
    """When each non-empty delta arrived. A delta is a chunk: it may hold several tokens."""
    ended_s: float | None = None
    """When the terminal event arrived; of a dropped request, when the socket was found closed."""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    tokens_are_chunks: bool = False
    """The server counted no tokens: `output_tokens` is the number of chunks."""
    queue_ms: float | None = None
    """`queue_ms`, `prefill_ms` and `server_ttft_ms` are what the server says of itself, in the `rota` object."""
    prefill_ms: float | None = None
    server_ttft_ms: float | None = None
    preemptions: int = 0

    @property
    def ttft_ms(self) -> float | None:
        """From send to the first non-empty delta."""
        return _ms(self.sent_s, self.texts_s[0]) if self.texts_s else None

    @property
    def request_ms(self) -> float | None:
        """From send to the terminal event; None for a request that got none."""
        return _ms(self.sent_s, self.ended_s) if self.outcome in ("finished", "failed", "refused") else None

    @property
    def gaps_ms(self) -> list[float]:
        """Between consecutive non-empty deltas: one fewer than there are deltas."""
        return [(after - before) * 1e3 for before, after in pairwise(self.texts_s)]

    @property
    def token_gap_ms(self) -> float | None:
        """An approximation of the mean time per token: (last delta - first delta) / (output tokens - 1).

        Exact when the first and last deltas hold one token each. It smooths over chunks that hold several; `gaps_ms`
        does not.
        """
        if self.output_tokens is None or self.output_tokens < 2 or len(self.texts_s) < 2:
            return None
        return (self.texts_s[-1] - self.texts_s[0]) * 1e3 / (self.output_tokens - 1)


def _ms(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else (to_s - from_s) * 1e3


class Distribution(msgspec.Struct, frozen=True):
    """Of `count` samples: nearest-rank percentiles, so each figure is one that occurred. Unit: the field name's."""

    count: int
    p50: float
    p90: float
    p99: float
    worst: float


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest sample that at least `percent` % of the samples do not exceed (nearest rank, no interpolation).

    `ordered` is ascending and not empty; `percent` is in 1..100.
    """
    rank = -(-len(ordered) * percent // 100)  # whole numbers: ceil(0.99 * n) in floats is one too many for some n
    return ordered[rank - 1]


def distribution(samples: Iterable[float | None]) -> Distribution | None:
    """The distribution of the samples that are not None; None when there are none."""
    ordered = sorted(sample for sample in samples if sample is not None)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        worst=ordered[-1],
    )


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    url: str
    model: str
    sockets: int
    requests_per_socket: int
    max_output_tokens: int
    ignore_eos: bool
    temperature: float
    prompt_tokens: int | None
    """None when every request sent the text given with `--prompt`."""
    warmup: int
    seed: int
    timeout_s: float
    api: Api = "responses"
    null_executor: bool = False
    """The server was started for the run, and its worker made every token up at once."""


class SocketCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`dropped` of those `opened` closed during a request. `opened` + `not_opened` < `asked` if time ran out first."""

    asked: int
    opened: int
    not_opened: int
    dropped: int
    not_opened_by_code: dict[str, int]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`planned` is the sum of the other six: every request has one outcome (see `Outcome`)."""

    planned: int
    finished: int
    failed: int
    refused: int
    dropped: int
    unfinished: int
    not_sent: int
    by_finish_reason: dict[str, int]
    """Of those that got a terminal event of a response: `rota.finish_reason`, or else `status`."""
    refused_by_code: dict[str, int]
    failed_by_code: dict[str, int]
    dropped_by_code: dict[str, int]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """From the `usage` at the end of an answer, so text of requests that did not end is not counted."""

    input: int
    cached_input: int
    """Of `input`, found in the server's cache: not prefilled."""
    output: int
    output_per_s: float | None
    """`output` over the time from the first send to the last terminal event."""
    output_from_chunks: int = 0
    """Of `output`, how many are chunks in truth: of answers without a `usage`."""


class ClientFigures(msgspec.Struct, frozen=True, kw_only=True):
    """As measured outside. `ttft_ms` and `gap_ms` are of every request that got text, however it ended."""

    ttft_ms: Distribution | None
    gap_ms: Distribution | None
    token_gap_ms: Distribution | None
    request_ms: Distribution | None
    """Of finished requests only: a quick refusal is not a quick answer."""


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """As the server says, in the `rota` object of terminal events; None from a server that says nothing."""

    queue_ms: Distribution | None
    prefill_ms: Distribution | None
    ttft_ms: Distribution | None


class RequestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One request. What is unknown is null."""

    socket: int
    number: int
    outcome: Outcome
    code: str | None
    message: str | None
    status: str | None
    finish_reason: str | None
    sent_after_ms: float | None
    """After the first send of the run."""
    ttft_ms: float | None
    gap_ms: Distribution | None
    token_gap_ms: float | None
    request_ms: float | None
    chunks: int
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    server_queue_ms: float | None
    server_prefill_ms: float | None
    server_ttft_ms: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of `--json FILE`. `format` goes up when a field changes its meaning or goes; new fields may come."""

    format: int
    load: Load
    stopped_by: StoppedBy
    wall_s: float | None
    """From the first send to the last terminal event; None when no request got one."""
    sockets: SocketCounts
    requests: RequestCounts
    tokens: Tokens
    client: ClientFigures
    server: ServerFigures
    client_lag_worst_ms: float
    """The longest the client's own event loop was late. Gaps near it may be the client's doing, not the server's."""
    per_request: list[RequestFigures]

    @property
    def all_finished(self) -> bool:
        """Whether every planned request finished and every socket opened."""
        return self.requests.finished == self.requests.planned and self.sockets.not_opened == 0


def report(
    load: Load,
    exchanges: Sequence[Exchange],
    *,
    stopped_by: StoppedBy,
    opened: int,
    not_opened: Sequence[str],
    client_lag_worst_s: float,
) -> Report:
    """Add up a run: `exchanges` are all planned requests, `not_opened` a code for each socket that did not open."""
    outcomes = Counter(exchange.outcome for exchange in exchanges)
    sends = [exchange.sent_s for exchange in exchanges if exchange.sent_s is not None]
    ends = [
        exchange.ended_s for exchange in exchanges if exchange.ended_s is not None and exchange.outcome != "dropped"
    ]
    first_send_s = min(sends, default=None)
    wall_s = max(ends) - first_send_s if ends and first_send_s is not None else None
    output_tokens = sum(exchange.output_tokens or 0 for exchange in exchanges)
    return Report(
        format=JSON_FORMAT,
        load=load,
        stopped_by=stopped_by,
        wall_s=wall_s,
        sockets=SocketCounts(
            asked=load.sockets,
            opened=opened,
            not_opened=len(not_opened),
            dropped=len({exchange.socket for exchange in exchanges if exchange.outcome == "dropped"}),
            not_opened_by_code=_tally(not_opened),
        ),
        requests=RequestCounts(
            planned=len(exchanges),
            finished=outcomes["finished"],
            failed=outcomes["failed"],
            refused=outcomes["refused"],
            dropped=outcomes["dropped"],
            unfinished=outcomes["unfinished"],
            not_sent=outcomes["not_sent"],
            by_finish_reason=_tally(
                exchange.finish_reason or exchange.status for exchange in exchanges if exchange.status is not None
            ),
            refused_by_code=_codes(exchanges, "refused"),
            failed_by_code=_codes(exchanges, "failed"),
            dropped_by_code=_codes(exchanges, "dropped"),
        ),
        tokens=Tokens(
            input=sum(exchange.input_tokens or 0 for exchange in exchanges),
            cached_input=sum(exchange.cached_tokens or 0 for exchange in exchanges),
            output=output_tokens,
            output_per_s=output_tokens / wall_s if wall_s else None,
            output_from_chunks=sum(exchange.output_tokens or 0 for exchange in exchanges if exchange.tokens_are_chunks),
        ),
        client=ClientFigures(
            ttft_ms=distribution(exchange.ttft_ms for exchange in exchanges),
            gap_ms=distribution(gap for exchange in exchanges for gap in exchange.gaps_ms),
            token_gap_ms=distribution(exchange.token_gap_ms for exchange in exchanges),
            request_ms=distribution(exchange.request_ms for exchange in exchanges if exchange.outcome == "finished"),
        ),
        server=ServerFigures(
            queue_ms=distribution(exchange.queue_ms for exchange in exchanges),
            prefill_ms=distribution(exchange.prefill_ms for exchange in exchanges),
            ttft_ms=distribution(exchange.server_ttft_ms for exchange in exchanges),
        ),
        client_lag_worst_ms=client_lag_worst_s * 1e3,
        per_request=[_request_figures(exchange, first_send_s) for exchange in exchanges],
    )


def _request_figures(exchange: Exchange, first_send_s: float | None) -> RequestFigures:
    return RequestFigures(
        socket=exchange.socket,
        number=exchange.number,
        outcome=exchange.outcome,
        code=exchange.code,
        message=exchange.message,
        status=exchange.status,
        finish_reason=exchange.finish_reason,
        sent_after_ms=_ms(first_send_s, exchange.sent_s),
        ttft_ms=exchange.ttft_ms,
        gap_ms=distribution(exchange.gaps_ms),
        token_gap_ms=exchange.token_gap_ms,
        request_ms=exchange.request_ms,
        chunks=len(exchange.texts_s),
        input_tokens=exchange.input_tokens,
        cached_tokens=exchange.cached_tokens,
        output_tokens=exchange.output_tokens,
        server_queue_ms=exchange.queue_ms,
        server_prefill_ms=exchange.prefill_ms,
        server_ttft_ms=exchange.server_ttft_ms,
    )


def _codes(exchanges: Sequence[Exchange], outcome: Outcome) -> dict[str, int]:
    return _tally(exchange.code for exchange in exchanges if exchange.outcome == outcome)


def _tally(names: Iterable[str | None]) -> dict[str, int]:
    """How many of each, the most frequent first."""
    return dict(Counter(name or "unknown" for name in names).most_common())
