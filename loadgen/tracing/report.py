"""What was found of a request, for machines.

Knows the shape of `rota trace --json`. Durations are in milliseconds, `_at` are Unix seconds.
"""

from msgspec import Struct, structs

from loadgen.tracing.causes import account, causes
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.timeline import sentences
from loadgen.tracing.words import Names


class GapReport(Struct, frozen=True):
    at: float
    ms: float


class CauseReport(Struct, frozen=True):
    """`kind`: lane, tokeniser, prefills or decodes (of others), own (its prefill), idle, worker, delivery."""

    kind: str
    ms: float


class LifeReport(Struct, frozen=True):
    """One request. None: it never happened, or the trace does not say."""

    request: str
    connection: int | None
    state: str
    reason: str | None
    code: str | None
    """Of the error that it failed of."""
    whole: bool
    """The trace holds its beginning."""
    received_at: float
    ttft_ms: float | None
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    preemptions: int
    until: str
    """What `parts_ms` lead to, from receiving it: they add up to that. Empty where its beginning is not there."""
    parts_ms: dict[str, float]
    causes: list[CauseReport]
    """What took that time, the most first."""
    chunks: int
    longest_gap: GapReport | None
    sentences: list[str]


def life_report(life: Life, lives: Lives, names: Names) -> LifeReport:
    found = account(life, lives)
    parts = {name.removesuffix("_s"): _ms(seconds) for name, seconds in structs.asdict(found.parts).items()}
    gap = life.longest_gap
    return LifeReport(
        request=life.request,
        connection=life.connection,
        state=life.state,
        reason=life.reason,
        code=life.code,
        whole=life.whole,
        received_at=life.began_at,
        ttft_ms=None if life.ttft_s is None else _ms(life.ttft_s),
        input_tokens=life.input_tokens,
        cached_tokens=life.cached_tokens,
        output_tokens=life.tokens if life.output_tokens is None else life.output_tokens,
        preemptions=life.preemptions,
        until=found.until,
        parts_ms=parts if life.whole else {},
        causes=[CauseReport(each.kind, _ms(each.seconds)) for each in causes(life, lives, names, found) if life.whole],
        chunks=len(life.prefill_steps()) if life.whole else 0,
        longest_gap=None if gap is None else GapReport(gap[0], _ms(gap[1] - gap[0])),
        sentences=sentences(life, lives, names),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
