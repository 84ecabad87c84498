"""Timelines side by side: who met the targets, who waited how long, and whom it cost what.

Knows what is counted of a `Timeline` and how it is printed; `Comparison` is the shape of `--json FILE`. Knows neither
where a timeline came from nor the picture of it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.figures import Distribution, distribution
from protocol.timeline import GAP_PERCENT, LONGEST_GAP, Life, Timeline, percent

JSON_FORMAT = 1
MOST_SHOWN = 8
"""Requests that are still told one by one."""
_FORGIVEN = (
    f"A pause is late when it is over its target. The targets are met all the same where {GAP_PERCENT}% of the gaps "
    f"keep theirs and none is over {LONGEST_GAP:g} times as long."
)


class RequestWaits(msgspec.Struct, frozen=True, kw_only=True):
    """One request under one policy. What is unknown, or never came, is null."""

    name: str
    prompt_tokens: int
    arrived_s: float
    started_s: float | None
    ttft_s: float | None
    ttft_target_s: float | None
    worst_gap_s: float | None
    worst_gap_at_s: float | None
    """When it began."""
    itl_target_s: float | None
    others_worst_gap_s: float | None
    """The longest that any other went without a token while this one waited for its first."""
    tokens: int
    """Of a real server: the chunks of text that came, each of which may hold several tokens."""
    ended_s: float | None
    finished: bool
    met: bool
    outcome: str
    preemptions: int


class PolicyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's run. Times are seconds."""

    policy: str
    requests: int
    finished: int
    met: int
    """How many finished and met both their targets."""
    span_s: float
    """From the first arrival to the last end."""
    goodput_per_s: float | None
    """`met` over `span_s`; null when the span is nothing."""
    ttft_s: Distribution | None
    gap_s: Distribution | None
    """Of all gaps of all requests together."""
    tokens: int
    tokens_per_s: float | None
    tokens_are_chunks: bool
    """Seen by a real server's client: it counts chunks of text, each of which may hold several tokens."""
    preemptions: int
    not_finished: dict[str, int]
    """How many, by error code or finish reason."""
    per_request: list[RequestWaits]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of `--json FILE`. `format` goes up when a field changes its meaning or goes; new fields may come."""

    format: int
    scenario: str
    policies: list[PolicyFigures]


def compare(timelines: Sequence[Timeline], scenario: str = "") -> Comparison:
    """Count what is to be said of each timeline."""
    return Comparison(format=JSON_FORMAT, scenario=scenario, policies=[_figures(timeline) for timeline in timelines])


def _figures(timeline: Timeline) -> PolicyFigures:
    lives = timeline.lives
    begin_s = min((life.arrived_s for life in lives), default=0.0)
    span_s = max((_last_s(life) for life in lives), default=begin_s) - begin_s
    met = sum(life.met for life in lives)
    tokens = sum(len(life.token_times) for life in lives)
    others = _others_worst_gaps(lives) if len(lives) <= MOST_SHOWN else [None] * len(lives)
    return PolicyFigures(
        policy=timeline.policy,
        requests=len(lives),
        finished=sum(life.finished for life in lives),
        met=met,
        span_s=span_s,
        goodput_per_s=met / span_s if span_s > 0 else None,
        ttft_s=distribution(life.ttft_s for life in lives),
        gap_s=distribution(gap for life in lives for gap in life.gaps_s),
        tokens=tokens,
        tokens_per_s=tokens / span_s if span_s > 0 else None,
        tokens_are_chunks=not timeline.turns,
        preemptions=sum(life.preemptions for life in lives),
        not_finished=dict(Counter(life.outcome or "unknown" for life in lives if not life.finished).most_common()),
        per_request=[_waits(life, gap_s) for life, gap_s in zip(lives, others, strict=True)],
    )


def _last_s(life: Life) -> float:
    """The last that was heard of it."""
    return max(life.arrived_s, life.ended_s or life.arrived_s, *life.token_times[-1:])


def _waits(life: Life, others_worst_gap_s: float | None) -> RequestWaits:
    worst = max(pairwise(life.token_times), key=lambda gap: gap[1] - gap[0], default=None)
    return RequestWaits(
        name=life.name,
        prompt_tokens=life.prompt_tokens,
        arrived_s=life.arrived_s,
        started_s=life.started_s,
        ttft_s=life.ttft_s,
        ttft_target_s=life.ttft_target_s,
        worst_gap_s=worst[1] - worst[0] if worst else None,
        worst_gap_at_s=worst[0] if worst else None,
        itl_target_s=life.itl_target_s,
        others_worst_gap_s=others_worst_gap_s,
        tokens=len(life.token_times),
        ended_s=life.ended_s,
        finished=life.finished,
        met=life.met,
        outcome=life.outcome,
        preemptions=life.preemptions,
    )


def _others_worst_gaps(lives: Sequence[Life]) -> list[float | None]:
    """Of each: the longest silence of another, as far as it fell between this one's arrival and its first token."""
    worst: list[float | None] = []
    for waiting in lives:
        from_s = waiting.arrived_s
        to_s = waiting.token_times[0] if waiting.token_times else _last_s(waiting)
        silences = [
            min(later, to_s) - max(earlier, from_s)
            for other in lives
            if other is not waiting
            for earlier, later in pairwise(other.token_times)
            if earlier < to_s and later > from_s
        ]
        worst.append(max(silences, default=None))
    return worst


# -- as people read it


def print_comparison(timelines: Sequence[Timeline], console: Console) -> None:
    """Print a row a policy, and of a small scenario what became of each request. Nothing for no timelines."""
    policies = compare(timelines).policies
    if not policies:
        return
    console.print(_outcomes(policies), highlight=False)
    if max(each.requests for each in policies) > MOST_SHOWN or len({_names(each) for each in policies}) > 1:
        console.print(_percentiles(policies), highlight=False)
    else:
        console.print(_requests(policies), highlight=False)
        if any(one.met and _late(one.worst_gap_s, one.itl_target_s) for each in policies for one in each.per_request):
            console.print(_FORGIVEN, highlight=False, soft_wrap=True)
    for each in policies:
        if each.not_finished:
            console.print(_not_finished(each), markup=False, highlight=False, soft_wrap=True)


def _table(first: str, *columns: str) -> Table:
    table = Table(first, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column), justify="right")
    return table


def _outcomes(policies: Sequence[PolicyFigures]) -> Table:
    unit = "chunks/s" if any(each.tokens_are_chunks for each in policies) else "tokens/s"
    table = _table("policy", "met targets", "goodput", unit, "preempted", "unfinished")
    for each in policies:
        share = f"{each.met:,} of {each.requests:,}" + (
            f" ({percent(each.met / each.requests)})" if each.requests else ""
        )
        table.add_row(
            Text(each.policy),
            share,
            "-" if each.goodput_per_s is None else f"{each.goodput_per_s:,.3g}/s",
            "-" if each.tokens_per_s is None else f"{each.tokens_per_s:,.1f}",
            f"{each.preemptions:,}",
            f"{each.requests - each.finished:,}",
        )
    return table


def _percentiles(policies: Sequence[PolicyFigures]) -> Table:
    gap = "chunk gap" if any(each.tokens_are_chunks for each in policies) else "gap"
    table = _table("policy", "TTFT p50", "p90", "p99", "worst", f"{gap} p50", "p99", "worst")
    for each in policies:
        ttft, gaps = each.ttft_s, each.gap_s
        table.add_row(
            Text(each.policy),
            *((span(ttft.p50), span(ttft.p90), span(ttft.p99), span(ttft.worst)) if ttft else "-" * 4),
            *((span(gaps.p50), span(gaps.p99), span(gaps.worst)) if gaps else "-" * 3),
        )
    return table


def _requests(policies: Sequence[PolicyFigures]) -> Table:
    """A column a policy, so that the same wait of the same request stands in one line."""
    table = _table("", *(each.policy for each in policies))

    def block(label: str, value: Callable[[RequestWaits], tuple[float | None, float | None]]) -> None:
        for index, name in enumerate(_names(policies[0])):
            found = [value(each.per_request[index]) for each in policies]
            if any(seconds is not None for seconds, _ in found):
                table.add_row(Text(label.format(name)), *(_cell(seconds, target) for seconds, target in found))
        table.add_section()

    block("{}: first token", lambda one: (one.ttft_s, one.ttft_target_s))
    block("{}: longest pause", lambda one: (one.worst_gap_s, one.itl_target_s))
    block("{} waits: others pause", lambda one: (one.others_worst_gap_s, None))
    return table


def _cell(seconds: float | None, target_s: float | None) -> Text:
    """Late ones stand out, without colour too."""
    return Text(f"late {span(seconds)}", style="bold red") if _late(seconds, target_s) else Text(span(seconds))


def _late(seconds: float | None, target_s: float | None) -> bool:
    return seconds is not None and target_s is not None and seconds > target_s


def _names(policy: PolicyFigures) -> tuple[str, ...]:
    return tuple(one.name for one in policy.per_request)


def _not_finished(policy: PolicyFigures) -> str:
    codes = ", ".join(f"{count:,} {code}" for code, count in policy.not_finished.items())
    return f"{policy.policy}: {policy.requests - policy.finished:,} did not finish ({codes})."


def span(seconds: float | None) -> str:
    """A time in the unit that suits it: `8.3 ms`, `480 ms`, `1.25 s`, `31.2 s`, `1,204 s`; `-` for none."""
    if seconds is None:
        return "-"
    for below, form, factor in ((0.01, "{:.1f} ms", 1e3), (0.9995, "{:.0f} ms", 1e3), (9.995, "{:.2f} s", 1.0)):
        if seconds < below:
            return form.format(seconds * factor)
    return f"{seconds:.1f} s" if seconds < 999.95 else f"{seconds:,.0f} s"
