"""The figures that many requests add up to.

Knows how counts, rates, goodput and distributions come of `Exchange`s; `Report` is the shape of `--json FILE` of one
run, `Runs` of several. Knows no socket, no clock (times come in as seconds) and no wire. How waits are counted, and
that a late client does not hide them, is told in `exchange`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from loadgen.distributions import Distribution as Distribution
from loadgen.distributions import distribution as distribution
from loadgen.exchange import Api as Api
from loadgen.exchange import Exchange as Exchange
from loadgen.exchange import Outcome as Outcome
from loadgen.waits import ClientFigures as ClientFigures
from loadgen.waits import Goodput as Goodput
from loadgen.waits import GroupFigures as GroupFigures
from loadgen.waits import RequestFigures as RequestFigures
from loadgen.waits import ServerFigures as ServerFigures
from loadgen.waits import (
    client_figures,
    goodput,
    group_figures,
    request_figures,
    server_figures,
)

JSON_FORMAT = 2

StoppedBy = Literal["finished", "timeout", "interrupt"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    url: str
    model: str
    sockets: int
    requests_per_socket: int
    """Of a scenario, whose people ask as often as they like: 0."""
    max_output_tokens: int
    """Of a scenario: the most that a question asks for."""
    ignore_eos: bool
    temperature: float
    prompt_tokens: int | None
    """None when every request sent the text given with `--prompt`, and of a scenario, whose questions differ."""
    warmup: int
    seed: int
    timeout_s: float
    idle: int = 0
    """Sockets beside those, that only stay open."""
    api: Api = "responses"
    null_executor: bool = False
    """The server was started for the run, and its worker made every token up at once."""
    warmup_s: float = 0.0
    """Requests due so early are played and not counted."""
    ttft_target_s: float | None = None
    """What `--targets` asked of every request, in place of the scenario's; None: nothing."""
    itl_target_s: float | None = None


class SocketCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`dropped` of those `opened` closed during a request. Those that only stay open are counted too.

    `opened` + `not_opened` < `asked` if time ran out first, and more where people came back or reconnected.
    """

    asked: int
    opened: int
    not_opened: int
    dropped: int
    not_opened_by_code: dict[str, int]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`planned` is the sum of the other seven: every request has one outcome (see `exchange.Outcome`)."""

    planned: int
    finished: int
    failed: int
    refused: int
    dropped: int
    unfinished: int
    not_sent: int
    left: int
    """Their people closed the page in the midst of them, or before they would have asked them."""
    never_asked: int
    """Of `left`, those that were never sent: what the person would have asked later."""
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
    """`output` over `Report.wall_s`."""
    output_from_chunks: int = 0
    """Of `output`, how many are chunks in truth: of answers without a `usage`."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of `--json FILE`. `format` goes up when a field changes its meaning or goes; new fields may come."""

    format: int
    load: Load
    scenario: str | None
    """None: all sockets at once, each with its requests one after another."""
    arrivals: str
    """In words: `poisson, 4/s`."""
    offered_per_s: float | None
    """First requests a second, as the scenario plans them; None where they do not come at a rate."""
    stopped_by: StoppedBy
    wall_s: float | None
    """From when the first request was due to the last terminal event, or to when the last was left; None when no
    request got so far."""
    sockets: SocketCounts
    idle_sockets: int
    """Beside those, open and silent for the length of the run."""
    requests: RequestCounts
    excluded_warm_up: int
    """Requests that were played at the beginning and are in no figure here."""
    slow_readers: int
    """Requests whose gaps are not counted, because their people read slowly on purpose."""
    prompt_tokens_off: int | None
    """The most that a prompt, as the server counted it, was off what was asked for; None where it cannot be known."""
    tokens: Tokens
    client: ClientFigures
    server: ServerFigures
    goodput: Goodput | None
    """None when no request has a target."""
    groups: list[GroupFigures]
    """Empty when there is only one."""
    client_lag_worst_ms: float
    """The longest the client's own event loop was late. Gaps near it may be the client's doing, not the server's."""
    per_request: list[RequestFigures]

    @property
    def all_finished(self) -> bool:
        """Whether every planned request finished, or was left on purpose, and every socket opened."""
        ended = self.requests.finished + self.requests.left
        return ended == self.requests.planned and self.sockets.not_opened == 0


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of `--json FILE` of a sweep: the same scenario at one rate after another."""

    format: int
    runs: list[Report]


def came_per_s(exchanges: Iterable[Exchange]) -> float | None:
    """Requests a second, from when the first was due to when the last was: what was offered. None: all at once.

    Those of the warm-up do not count, nor what was never due.
    """
    due = [each.due_s for each in exchanges if each.due_s is not None and not each.warm_up]
    span_s = max(due) - min(due) if due else 0.0
    return (len(due) - 1) / span_s if span_s else None


def report(
    load: Load,
    exchanges: Sequence[Exchange],
    *,
    stopped_by: StoppedBy,
    opened: int,
    not_opened: Sequence[str],
    client_lag_worst_s: float,
    scenario: str | None = None,
    arrivals: str = "together",
    offered_per_s: float | None = None,
    idle_sockets: int = 0,
) -> Report:
    """Add up a run: `exchanges` are all planned requests, `not_opened` a code for each socket that did not open."""
    everyone, exchanges = exchanges, [exchange for exchange in exchanges if not exchange.warm_up]
    ends = [
        exchange.ended_s for exchange in exchanges if exchange.ended_s is not None and exchange.outcome != "dropped"
    ]
    first_s = min((exchange.from_s for exchange in exchanges if exchange.from_s is not None), default=None)
    wall_s = max(ends) - first_s if ends and first_s is not None else None
    return Report(
        format=JSON_FORMAT,
        load=load,
        scenario=scenario,
        arrivals=arrivals,
        offered_per_s=offered_per_s,
        stopped_by=stopped_by,
        wall_s=wall_s,
        sockets=SocketCounts(
            asked=load.sockets + load.idle,
            opened=opened,
            not_opened=len(not_opened),
            dropped=len({exchange.socket for exchange in exchanges if exchange.outcome == "dropped"}),
            not_opened_by_code=_tally(not_opened),
        ),
        idle_sockets=idle_sockets,
        requests=_requests(exchanges),
        excluded_warm_up=len(everyone) - len(exchanges),
        slow_readers=sum(exchange.slow_reader for exchange in exchanges),
        prompt_tokens_off=max(
            (
                abs(exchange.input_tokens - exchange.asked_tokens)
                for exchange in exchanges
                if exchange.input_tokens is not None and exchange.asked_tokens is not None
            ),
            default=None,
        ),
        tokens=_tokens(exchanges, wall_s),
        client=client_figures(exchanges),
        server=server_figures(exchanges),
        goodput=goodput(exchanges, wall_s),
        groups=group_figures(exchanges),
        client_lag_worst_ms=client_lag_worst_s * 1e3,
        per_request=[request_figures(exchange, first_s) for exchange in exchanges],
    )


def _requests(exchanges: Sequence[Exchange]) -> RequestCounts:
    outcomes = Counter(exchange.outcome for exchange in exchanges)
    return RequestCounts(
        planned=len(exchanges),
        finished=outcomes["finished"],
        failed=outcomes["failed"],
        refused=outcomes["refused"],
        dropped=outcomes["dropped"],
        unfinished=outcomes["unfinished"],
        not_sent=outcomes["not_sent"],
        left=outcomes["left"],
        never_asked=sum(exchange.outcome == "left" and exchange.sent_s is None for exchange in exchanges),
        by_finish_reason=_tally(
            exchange.finish_reason or exchange.status for exchange in exchanges if exchange.status is not None
        ),
        refused_by_code=_codes(exchanges, "refused"),
        failed_by_code=_codes(exchanges, "failed"),
        dropped_by_code=_codes(exchanges, "dropped"),
    )


def _tokens(exchanges: Sequence[Exchange], wall_s: float | None) -> Tokens:
    output = sum(exchange.output_tokens or 0 for exchange in exchanges)
    return Tokens(
        input=sum(exchange.input_tokens or 0 for exchange in exchanges),
        cached_input=sum(exchange.cached_tokens or 0 for exchange in exchanges),
        output=output,
        output_per_s=output / wall_s if wall_s else None,
        output_from_chunks=sum(exchange.output_tokens or 0 for exchange in exchanges if exchange.tokens_are_chunks),
    )


def _codes(exchanges: Sequence[Exchange], outcome: Outcome) -> dict[str, int]:
    return _tally(exchange.code for exchange in exchanges if exchange.outcome == outcome)


def _tally(names: Iterable[str | None]) -> dict[str, int]:
    """How many of each, the most frequent first."""
    return dict(Counter(name or "unknown" for name in names).most_common())
