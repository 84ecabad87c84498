"""The life of one request as lines in a terminal: when each thing happened, how long it took, a bar to scale, and why.

Knows how long tables are shortened. Finds no causes and reads no files.
"""

from collections.abc import Iterator
from math import inf
from statistics import median

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.comparison import span
from loadgen.tracing.causes import account, sentence
from loadgen.tracing.device import DeviceStep
from loadgen.tracing.gaps import gap_cause, gap_sentence
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.words import Names, clock, count, day, listed, share

BAR = 40
MOST_CHUNKS = 10
"""More chunks of prefill than these are folded: the first and last two stay, and those that took far longer."""
MOST_GAPS = 12
"""Of the remarkable gaps so many are shown, the longest."""
REMARKABLE = 3.0
"""A gap of so many medians is remarkable, and one over its target."""
LEAST_REMARKABLE_S = 0.005


class Row(Struct, frozen=True):
    """`at_s` from when the request was received."""

    at_s: float
    took_s: float | None
    what: str
    style: str = ""


def remarkable(life: Life, gaps: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those over their target, or far longer than is usual for this answer."""
    if not gaps:
        return []
    usual = median(to - since for since, to in gaps)
    most = max(REMARKABLE * usual, LEAST_REMARKABLE_S)
    if life.itl_target_s is not None:
        most = min(most, life.itl_target_s)
    return [(since, to) for since, to in gaps if to - since > most]


def rows(life: Life, lives: Lives, names: Names) -> list[Row]:
    """What happened to it, in order."""
    began = life.began_at
    told: list[Row] = []

    def add(at: float | None, took_s: float | None, what: str, style: str = "") -> None:
        if at is not None:
            told.append(Row(at - began, took_s, what, style))

    where = "" if life.connection is None else f" on connection {life.connection}"
    if life.whole:
        add(began, None, f"received{where} at {clock(began)}")
    else:
        add(began, None, f"the trace begins to tell of it at {clock(began)}: what was before was rotated away", "dim")
    found = account(life, lives)
    if life.asked_at is not None and life.asked_at - began > 0:
        behind = f" behind {names.of(found.behind)}" if found.behind and found.parts.lane_s > 0.001 else ""
        add(began, life.asked_at - began, f"waited in its lane on the socket{behind}")
    if life.asked_at is not None and life.tokenised_at is not None:
        tokens = "" if life.input_tokens is None else f": {count(life.input_tokens, 'token')}"
        add(life.asked_at, life.tokenised_at - life.asked_at, f"tokenised{tokens}")
    if life.tokenised_at is not None and (life.let_in_at or life.over_at or life.accepted_at) is not None:
        to = life.let_in_at or life.over_at or lives.last_at
        place = f", place {life.position}" if life.position else ""
        add(life.tokenised_at, to - life.tokenised_at, f"queued in the waiting room{place}")
    if life.let_in_at is not None:
        to = life.first_step_at or life.over_at or lives.last_at
        add(life.let_in_at, to - life.let_in_at, "queued at the scheduler for its first step")
    told += _prefill_rows(life, began, names)
    for at in life.preempted:
        add(at, None, "read again: it had been preempted for memory", "yellow")
    for since, until in life.pauses:
        ended = until or life.over_at or lives.last_at
        add(since, ended - since, "paused: its reader had fallen behind", "yellow")
    if life.first_token_at is not None and life.whole:
        add(life.first_token_at, None, "first token")
    if life.first_text_at is not None and life.whole:
        took_s = None if life.first_token_at is None else max(0.0, life.first_text_at - life.first_token_at)
        add(life.first_token_at or life.first_text_at, took_s, "first text delivered", "bold")
    told += _decode_rows(life, lives, began, names)
    if life.cancelled_at is not None:
        add(life.cancelled_at, None, "cancelled: its reader wanted no more")
    if life.refused_at is not None:
        add(life.refused_at, None, f"refused: {life.ended_reason}", "bold red")
    elif life.over_at is not None:
        add(life.over_at, None, _finished(life), "bold")
    else:
        add(lives.last_at, None, f"the trace ends; it is {life.state}", "dim")
    return sorted(told, key=lambda row: row.at_s)


def _finished(life: Life) -> str:
    output = life.tokens if life.output_tokens is None else life.output_tokens
    cached = f" ({life.cached_tokens:,} from the cache)" if life.cached_tokens else ""
    read = "" if life.input_tokens is None else f"{life.input_tokens:,} tokens in{cached}, "
    why = f" ({life.code})" if life.code else ""
    return f"finished: {life.reason or 'for no reason told'}{why}; {read}{output:,} out"


def _prefill_rows(life: Life, began: float, names: Names) -> Iterator[Row]:
    chunks = life.prefill_steps() if life.whole else []
    if not chunks:
        return
    usual = median(step.took_s for step, _, _ in chunks)
    last = len(chunks) - 1
    slow = sorted((step.took_s for step, _, _ in chunks if step.took_s > REMARKABLE * usual), reverse=True)
    shown_from_s = slow[min(MOST_CHUNKS - 4, len(slow)) - 1] if slow else inf
    folded: list[tuple[DeviceStep, int, int]] = []

    def fold() -> Iterator[Row]:
        if folded:
            steps = [step for step, _, _ in folded]
            took = sorted(step.took_s for step in steps)
            tokens = sum(each[2] for each in folded)
            own = sum(step.took_s * step.share_of(life.request) for step in steps) / (sum(took) or 1.0)
            what = (
                f"{count(len(folded), 'chunk')}, {count(tokens, 'token')}: steps p50 {span(median(took))}, worst "
                f"{span(took[-1])}, {share(own)} its own"
            )
            yield Row(steps[0].began - began, steps[-1].ended - steps[0].began, what)
            folded.clear()

    for index, (step, start, tokens) in enumerate(chunks):
        shown = len(chunks) <= MOST_CHUNKS or index < 2 or index > last - 2 or step.took_s >= shown_from_s
        if not shown:
            folded.append((step, start, tokens))
            continue
        yield from fold()
        what = f"prefill chunk {index + 1} of {last + 1}: {count(tokens, 'token')} from {start:,}, step {step.number}"
        yield Row(step.began - began, step.took_s, f"{what}{_beside(step, life, names)}")
    yield from fold()


def _beside(step: DeviceStep, life: Life, names: Names) -> str:
    """Who shared the step, and how much of it was its own."""
    others = [chunk for chunk in step.chunks if chunk[0] != life.request]
    if not others:
        return ", alone"
    decodes = sum(1 for chunk in others if chunk[2] == 1)
    prefills = [f"{names.of(chunk[0])}'s {count(chunk[2], 'token')}" for chunk in others if chunk[2] > 1]
    who = ([count(decodes, "answer")] if decodes else []) + (
        prefills if len(prefills) < 3 else [count(len(prefills), "other prefill")]
    )
    return f", {share(step.share_of(life.request))} its own, beside {listed(who)}"


def _decode_rows(life: Life, lives: Lives, began: float, names: Names) -> Iterator[Row]:
    """Runs of ordinary gaps folded, each remarkable one a line."""
    gaps = life.gaps()
    notable = sorted(remarkable(life, gaps), key=lambda gap: gap[0] - gap[1])
    told = set(notable[:MOST_GAPS])
    run: list[tuple[float, float]] = []

    def fold() -> Iterator[Row]:
        if run:
            lengths = sorted(to - since for since, to in run)
            what = f"{count(len(run), 'token')}, gap p50 {span(median(lengths))}, worst {span(lengths[-1])}"
            yield Row(run[0][0] - began, run[-1][1] - run[0][0], what)
            run.clear()

    for gap in gaps:
        if gap in told:
            yield from fold()
            over = ""
            if life.itl_target_s is not None and gap[1] - gap[0] > life.itl_target_s:
                over = f", over its target of {span(life.itl_target_s)},"
            cause = gap_cause(life, gap, lives, names)
            yield Row(gap[0] - began, gap[1] - gap[0], f"gap{over} {cause}", "yellow")
        else:
            run.append(gap)
    yield from fold()
    if len(notable) > MOST_GAPS:
        yield Row(gaps[-1][1] - began, None, f"{len(notable) - MOST_GAPS:,} more remarkable gaps are not shown", "dim")


def sentences(life: Life, lives: Lives, names: Names) -> list[str]:
    """Where the time to its first text went, and what its longest gap was."""
    said = [sentence(life, lives, names)]
    if life.longest_gap is not None:
        said.append(gap_sentence(life, life.longest_gap, lives, names, clock(life.longest_gap[0])))
    return said


def print_life(life: Life, lives: Lives, names: Names, console: Console) -> None:
    """The timeline and its sentences."""
    told = rows(life, lives, names)
    whole_s = max([row.at_s + (row.took_s or 0.0) for row in told] or [0.0])
    ended = life.over_at
    length = f", {span(ended - life.began_at)} long" if ended is not None else ""
    console.print(
        Text(f"{life.request}: {life.state} ({day(life.began_at)} {clock(life.began_at)}{length})", style="bold"),
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("what")
    for row in told:
        table.add_row(
            f"{row.at_s:+.3f} s",
            "" if row.took_s is None else span(row.took_s),
            Text(bar(row.at_s, row.took_s or 0.0, whole_s, min(BAR, console.width // 4)), style="cyan"),
            Text(row.what, style=row.style),
        )
    console.print(table, highlight=False)
    for said in sentences(life, lives, names):
        console.print(said, markup=False, highlight=False, soft_wrap=True)


def bar(at_s: float, took_s: float, whole_s: float, width: int) -> str:
    """Where in the whole it lies: full blocks for what it took, a mark for what took no visible time."""
    if whole_s <= 0:
        return "│".ljust(width)
    left = min(width - 1, max(0, int(at_s / whole_s * width)))
    cells = round(took_s / whole_s * width)
    drawn = "█" * min(cells, width - left) if cells else "│"
    return (" " * left + drawn).ljust(width)
