"""Our figures beside those of the peers: one table, and what it does not say.

Knows which of several rounds is shown, and what a ratio is. Measures nothing.
"""

from collections.abc import Sequence

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from loadgen.figures import Distribution, Report

OURS = "rota"
"""The engine that every other is set against."""
CHUNK_TOKENS_WORTH_SAYING = 1.05
CACHED_WORTH_SAYING = 0.2
"""As a share of the prompts; less is the chat template, which all prompts share."""
LENGTH_WORTH_SAYING = 0.02
"""How far the mean prompt may be from ours, as a share."""


class Measured(Struct, frozen=True):
    """One engine under one load, in one round."""

    engine: str
    streams: int
    round: int
    report: Report

    @property
    def output_per_s(self) -> float | None:
        return self.report.tokens.output_per_s

    @property
    def ttft_p50_ms(self) -> float | None:
        return _of(self.report.client.ttft_ms, "p50")

    @property
    def gap_p50_ms(self) -> float | None:
        return _of(self.report.client.gap_ms, "p50")

    @property
    def gap_p99_ms(self) -> float | None:
        return _of(self.report.client.gap_ms, "p99")


def _of(figures: Distribution | None, name: str) -> float | None:
    return None if figures is None else getattr(figures, name)


def best(measured: Sequence[Measured], engine: str, streams: int) -> Measured | None:
    """Of the rounds, the one with the most tokens per second, all its figures together; of whole ones, if any is.

    The best and not the median: whatever else the machine did can only have made an engine slower.
    """
    rounds = [one for one in measured if (one.engine, one.streams) == (engine, streams)]
    whole = [one for one in rounds if one.report.all_finished]
    return max(whole or rounds, key=lambda one: one.output_per_s or 0.0, default=None)


def print_table(measured: Sequence[Measured], console: Console) -> None:
    table = Table("streams")
    table.add_column("engine", no_wrap=True)
    for name in ("tokens/s", "gap p50 ms", "gap p99 ms", "TTFT p50 ms"):
        table.add_column(name, justify="right")
    engines = list(dict.fromkeys(one.engine for one in measured))
    for streams in dict.fromkeys(one.streams for one in measured):
        ours = best(measured, OURS, streams)
        rows = [found for engine in engines if (found := best(measured, engine, streams)) is not None]
        for number, row in enumerate(rows):
            table.add_row(
                str(streams) if number == 0 else "",
                row.engine,
                *map(_cell, _figures(row), _figures(ours if row is not ours else None)),
                end_section=number == len(rows) - 1,
            )
    console.print(table, highlight=False)


def _figures(row: Measured | None) -> tuple[float | None, ...]:
    if row is None:
        return (None,) * 4
    return row.output_per_s, row.gap_p50_ms, row.gap_p99_ms, row.ttft_p50_ms


def _cell(theirs: float | None, ours: float | None) -> str:
    """The figure, and behind it ours as a multiple of it: `425.0 (1.70 x)`."""
    if theirs is None:
        return "-"
    ratio = f" ({ours / theirs:.2f} x)" if ours is not None and theirs else ""
    return f"{theirs:,.1f}{ratio}"


def sentences(measured: Sequence[Measured]) -> list[str]:
    """What to beware of in these figures."""
    lines = []
    for engine in dict.fromkeys(one.engine for one in measured):
        of = [one for one in measured if one.engine == engine]
        broken = [one for one in of if not one.report.all_finished]
        for one in broken:
            counts = one.report.requests
            codes = {**counts.refused_by_code, **counts.failed_by_code, **counts.dropped_by_code}
            why = f" ({', '.join(codes)})" if codes else ""
            lines.append(
                f"{engine}, {one.streams} streams: {counts.finished} of {counts.planned} requests finished{why}."
            )
        requests = [request for one in of for request in one.report.per_request if request.outcome == "finished"]
        if not requests:
            continue
        tokens = sum(request.output_tokens or 0 for request in requests)
        asked = max(one.report.load.max_output_tokens for one in of) * len(requests)
        chunks = sum(request.chunks for request in requests)
        if chunks and tokens / chunks > CHUNK_TOKENS_WORTH_SAYING:
            lines.append(
                f"{engine}: {tokens / chunks:.2f} tokens came in a chunk of text; its gaps are between chunks."
            )
        if any(request.output_tokens is not None for request in requests) and tokens < asked:
            lines.append(f"{engine}: answers ended early, after {tokens / len(requests):.0f} tokens in the mean.")
        if sum(one.report.tokens.output_from_chunks for one in of):
            lines.append(f"{engine}: tokens were counted as chunks of text.")
        cached, read = (sum(getattr(one.report.tokens, name) for one in of) for name in ("cached_input", "input"))
        if read and cached / read > CACHED_WORTH_SAYING:
            lines.append(f"{engine}: {cached:,} of {read:,} tokens of prompts came from its cache.")
        prompts, ours = _mean_prompt(of), _mean_prompt([one for one in measured if one.engine == OURS])
        if prompts and ours and abs(prompts / ours - 1) > LENGTH_WORTH_SAYING:
            lines.append(f"{engine}: its prompts are {prompts:.0f} tokens in the mean, ours {ours:.0f}.")
    return lines


def _mean_prompt(measured: Sequence[Measured]) -> float | None:
    counts = [request.input_tokens for one in measured for request in one.report.per_request if request.input_tokens]
    return sum(counts) / len(counts) if counts else None
