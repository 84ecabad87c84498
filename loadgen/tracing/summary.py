"""What is in a trace at a glance: its messages by type, the mailboxes that waited, and the requests that did.

Counts while lines go by, so that none is kept. Knows no causes.
"""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.comparison import span
from loadgen.tracing.causes import sentence
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.reading import Found
from loadgen.tracing.words import Names, brief, clock, count, day
from protocol.trace import BEGUN, LOST, TraceLine

SLOWEST = 3
MAILBOXES = 5


class Spread(Struct, frozen=True):
    """Of durations, in seconds: nearest ranks, so each was really observed."""

    count: int
    p50_s: float
    p99_s: float
    worst_s: float


def spread(seconds: Sequence[float]) -> Spread | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p99 = (ordered[max(0, ceil(q * len(ordered)) - 1)] for q in (0.5, 0.99))
    return Spread(len(ordered), p50, p99, ordered[-1])


class Counting:
    """Of each type of message, and of each mailbox's lanes, how long messages waited and took to be handled."""

    def __init__(self) -> None:
        self.messages = 0
        self._waited: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._handled: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        self._mailboxes: defaultdict[tuple[str, str], array[float]] = defaultdict(lambda: array("d"))

    def feed(self, line: TraceLine) -> None:
        kind = line.type
        if kind in (BEGUN, LOST):
            return
        self.messages += 1
        self._waited[kind].append(line.waited_s)
        if line.handled_s is not None:
            self._handled[kind].append(line.handled_s)
        to = line.to
        self._mailboxes["connections" if to.startswith("connection ") else to, line.lane].append(line.waited_s)

    def types(self) -> list[tuple[str, Spread, Spread | None]]:
        """Name, waited, handled; the most frequent first."""
        found = [
            (name, waited, spread(self._handled[name]))
            for name, all_ in self._waited.items()
            if (waited := spread(all_)) is not None
        ]
        return sorted(found, key=lambda each: -each[1].count)

    def mailboxes(self) -> list[tuple[str, str, Spread]]:
        """Actor, lane, waited; who had the longest wait first."""
        found = [
            (to, lane, waited) for (to, lane), all_ in self._mailboxes.items() if (waited := spread(all_)) is not None
        ]
        return sorted(found, key=lambda each: (-each[2].worst_s, -each[2].p99_s))


def slowest(lives: Lives, most: int) -> list[Life]:
    """By time to first text, the longest first; among them are those who never had one and waited longer."""
    waited = [(_waited_s(life, lives), life) for life in lives.all.values() if life.whole]
    waited.sort(key=lambda each: -each[0])
    return [life for _, life in waited[:most]]


def _waited_s(life: Life, lives: Lives) -> float:
    if life.ttft_s is not None:
        return life.ttft_s
    return (life.over_at or lives.last_at) - life.began_at


def print_summary(file: Path, found: Found, counting: Counting, lives: Lives, names: Names, console: Console) -> None:
    """All of it."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    say(heading(found, counting, lives), "bold")
    for line in shortfalls(found, lives):
        say(line, "yellow")
    console.print(_types(counting), highlight=False)
    console.print(_mailboxes(counting), highlight=False)
    chosen = slowest(lives, SLOWEST)
    if chosen:
        say("Slowest to their first text:" if len(chosen) > 1 else "Slowest to its first text:", "bold")
        for life in chosen:
            say(f"  {names.of(life.request)}  {sentence(life, lives, names)}")
        say(
            f"More: rota trace {file} --request {names.of(chosen[0].request)} for its timeline, --slowest 10, "
            f"--around {clock(chosen[0].first_text_at or chosen[0].began_at)}, --perfetto trace.json for "
            "ui.perfetto.dev."
        )


def heading(found: Found, counting: Counting, lives: Lives) -> str:
    """The period, and how much there is in it."""
    began, ended = lives.began_at, lives.last_at
    requests = list(lives.all.values())
    states = [
        (sum(life.over_at is not None and life.refused_at is None for life in requests), "finished"),
        (sum(life.refused_at is not None for life in requests), "refused"),
        (sum(life.over_at is None for life in requests), "still alive"),
    ]
    of_them = ", ".join(f"{number:,} {word}" for number, word in states if number)
    files = f" in {len(found.files)} files" if len(found.files) > 1 else ""
    return (
        f"{day(began)} {clock(began)} to {clock(ended)} ({span(ended - began)}): "
        f"{count(counting.messages, 'message')}{files}, {count(len(requests), 'request')}"
        f"{f' ({of_them})' if of_them else ''}, {count(len(lives.device.steps), 'step')}."
    )


def shortfalls(found: Found, lives: Lives) -> list[str]:
    """What the trace does not hold."""
    said = []
    if len(found.files) > 1:
        names = ", ".join(path.name for path in found.files)
        said.append(f"Rotated files were read too, the oldest first: {names}.")
    if found.lost:
        said.append(f"{count(found.lost, 'message')} could not be written when they were said and are not here.")
    if found.cut_off:
        said.append(
            "The last line is cut off: the server is writing it, or has died."
            if found.cut_off == 1
            else f"The last lines of {found.cut_off} files are cut off."
        )
    if found.unreadable:
        said.append(f"Left out, because nothing could be made of it: {count(found.unreadable, 'line')}.")
    headless = sum(not life.whole for life in lives.all.values())
    if headless:
        verb = "request began" if headless == 1 else "requests began"
        said.append(f"{headless:,} {verb} before what is left of the trace: their first tokens are not judged.")
    if lives.device.restarts:
        said.append(f"The worker was lost {count(lives.device.restarts, 'time')}.")
    return said


def _types(counting: Counting) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("message")
    for name in ("n", "waited p50", "p99", "worst", "handled p50", "p99", "worst"):
        table.add_column(name, justify="right")
    for name, waited, handled in counting.types():
        took = ("-",) * 3 if handled is None else _three(handled)
        table.add_row(Text(name), f"{waited.count:,}", *_three(waited), *took)
    return table


def _mailboxes(counting: Counting) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("waited longest in")
    for name in ("n", "p50", "p99", "worst"):
        table.add_column(name, justify="right")
    for to, lane, waited in counting.mailboxes()[:MAILBOXES]:
        table.add_row(Text(f"{to or '?'}, {lane or '?'}"), f"{waited.count:,}", *_three(waited))
    return table


def _three(found: Spread) -> tuple[str, str, str]:
    return (brief(found.p50_s), brief(found.p99_s), brief(found.worst_s))
