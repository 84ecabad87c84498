"""How long many requests waited, and how many of them in time: by the client's clock and by the server's word.

Knows how distributions and goodput come of `Exchange`s, of all and of a group. One wait is counted in `exchange`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from loadgen.distributions import Distribution, distribution
from loadgen.exchange import Exchange, Outcome, ms_between


class ClientFigures(msgspec.Struct, frozen=True, kw_only=True):
    """As measured outside. All but gaps and `connect_ms` count from when the request was due.

    `ttft_ms` and `gap_ms` are of every request that got text, however it ended. Slow readers are in no gap and in no
    `request_ms`: they made those themselves.
    """

    ttfb_ms: Distribution | None
    """To the first of the answer, whatever it was: it says that the server has the request."""
    ttft_ms: Distribution | None
    gap_ms: Distribution | None
    """Between chunks of text."""
    token_gap_ms: Distribution | None
    request_ms: Distribution | None
    """Of finished requests only: a quick refusal is not a quick answer."""
    late_ms: Distribution | None
    """How long after it was due a request was sent: it is in the figures above."""
    connect_ms: Distribution | None
    """Of the sockets that requests were sent on."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests met their targets (`exchange.Exchange.met`)."""

    met: int
    missed: int
    neither: int
    """Left by their people, or cut off by the end of the run, before it could be told; never due; without targets."""
    share: float | None
    """`met` of those that met or missed; None when there are none."""
    per_s: float | None
    """`met` over `Report.wall_s`."""


class GroupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one group of people."""

    group: str
    requests: int
    met: int
    missed: int
    met_share: float | None
    """As `Goodput.share`."""
    ttft_ms: Distribution | None
    gap_ms: Distribution | None


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """As the server says, in the `rota` object of terminal events; None from a server that says nothing."""

    queue_ms: Distribution | None
    prefill_ms: Distribution | None
    ttft_ms: Distribution | None
    """From receiving a request to its first text at the socket."""
    itl_p99_ms: Distribution | None
    """Of each answer, the gap between tokens that 99 % of its gaps did not exceed."""


class RequestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One request. What is unknown is null."""

    socket: int
    number: int
    outcome: Outcome
    code: str | None
    message: str | None
    status: str | None
    finish_reason: str | None
    person: str
    group: str
    question: int
    due_after_ms: float | None
    """This and `sent_after_ms` are after the run's first request was due."""
    sent_after_ms: float | None
    late_ms: float | None
    connect_ms: float | None
    ttfb_ms: float | None
    ttft_ms: float | None
    gap_ms: Distribution | None
    token_gap_ms: float | None
    request_ms: float | None
    chunks: int
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    asked_tokens: int | None
    """How long the prompt was to be; null where what was said before counts as well."""
    met: bool | None
    """Whether it met its targets; null when it did neither, or has none."""
    slow_reader: bool
    ttft_target_ms: float | None
    itl_target_ms: float | None
    server_queue_ms: float | None
    server_prefill_ms: float | None
    server_ttft_ms: float | None
    server_itl_p50_ms: float | None
    server_itl_p99_ms: float | None
    server_itl_max_ms: float | None
    server_paused_ms: float | None
    server_met: bool | None


# -- adding up


def client_figures(exchanges: Sequence[Exchange]) -> ClientFigures:
    prompt = [exchange for exchange in exchanges if not exchange.slow_reader]
    return ClientFigures(
        ttfb_ms=distribution(exchange.ttfb_ms for exchange in exchanges),
        ttft_ms=distribution(exchange.ttft_ms for exchange in exchanges),
        gap_ms=distribution(gap for exchange in prompt for gap in exchange.gaps_ms),
        token_gap_ms=distribution(exchange.token_gap_ms for exchange in prompt),
        request_ms=distribution(exchange.request_ms for exchange in prompt if exchange.outcome == "finished"),
        late_ms=distribution(exchange.late_ms for exchange in exchanges),
        connect_ms=distribution(exchange.connect_ms for exchange in exchanges),
    )


def server_figures(exchanges: Sequence[Exchange]) -> ServerFigures:
    return ServerFigures(
        queue_ms=distribution(exchange.queue_ms for exchange in exchanges),
        prefill_ms=distribution(exchange.prefill_ms for exchange in exchanges),
        ttft_ms=distribution(exchange.server_ttft_ms for exchange in exchanges),
        itl_p99_ms=distribution(exchange.server_itl_p99_ms for exchange in exchanges),
    )


def goodput(exchanges: Sequence[Exchange], wall_s: float | None) -> Goodput | None:
    """None when no request has a target."""
    if not any(exchange.has_targets for exchange in exchanges):
        return None
    met, missed, neither = _kept(exchanges)
    return Goodput(
        met=met,
        missed=missed,
        neither=neither,
        share=met / (met + missed) if met + missed else None,
        per_s=met / wall_s if wall_s else None,
    )


def _kept(exchanges: Iterable[Exchange]) -> tuple[int, int, int]:
    """How many met their targets, how many missed them, and how many did neither."""
    # What a person who had left would have asked later was no request at all.
    counts = Counter(each.met for each in exchanges if not (each.outcome == "left" and each.sent_s is None))
    return counts[True], counts[False], counts[None]


def group_figures(exchanges: Sequence[Exchange]) -> list[GroupFigures]:
    """Empty when there is only one group."""
    names = dict.fromkeys(exchange.group for exchange in exchanges)
    if len(names) < 2:
        return []
    return [_group(name, [exchange for exchange in exchanges if exchange.group == name]) for name in names]


def _group(name: str, exchanges: Sequence[Exchange]) -> GroupFigures:
    met, missed, _ = _kept(exchanges)
    client = client_figures(exchanges)
    return GroupFigures(
        group=name,
        requests=len(exchanges),
        met=met,
        missed=missed,
        met_share=met / (met + missed) if met + missed else None,
        ttft_ms=client.ttft_ms,
        gap_ms=client.gap_ms,
    )


def request_figures(exchange: Exchange, first_s: float | None) -> RequestFigures:
    """`first_s`: when the run's first request was due."""
    return RequestFigures(
        socket=exchange.socket,
        number=exchange.number,
        outcome=exchange.outcome,
        code=exchange.code,
        message=exchange.message,
        status=exchange.status,
        finish_reason=exchange.finish_reason,
        person=exchange.person,
        group=exchange.group,
        question=exchange.question,
        due_after_ms=ms_between(first_s, exchange.due_s),
        sent_after_ms=ms_between(first_s, exchange.sent_s),
        late_ms=exchange.late_ms,
        connect_ms=exchange.connect_ms,
        ttfb_ms=exchange.ttfb_ms,
        ttft_ms=exchange.ttft_ms,
        gap_ms=distribution(exchange.gaps_ms),
        token_gap_ms=exchange.token_gap_ms,
        request_ms=exchange.request_ms,
        chunks=len(exchange.texts_s),
        input_tokens=exchange.input_tokens,
        cached_tokens=exchange.cached_tokens,
        output_tokens=exchange.output_tokens,
        asked_tokens=exchange.asked_tokens,
        met=exchange.met,
        slow_reader=exchange.slow_reader,
        ttft_target_ms=_finite_ms(exchange.ttft_target_s),
        itl_target_ms=_finite_ms(exchange.itl_target_s),
        server_queue_ms=exchange.queue_ms,
        server_prefill_ms=exchange.prefill_ms,
        server_ttft_ms=exchange.server_ttft_ms,
        server_itl_p50_ms=exchange.server_itl_p50_ms,
        server_itl_p99_ms=exchange.server_itl_p99_ms,
        server_itl_max_ms=exchange.server_itl_max_ms,
        server_paused_ms=exchange.server_paused_ms,
        server_met=exchange.server_met,
    )


def _finite_ms(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds * 1e3
