"""What happened around a moment: the steps and whose they were, the requests alive, and what each actor was told.

Knows how a moment is written on a command line. Finds no causes.
"""

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.comparison import span
from loadgen.tracing.device import DeviceStep
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.reading import TraceError
from loadgen.tracing.words import Names, brief, clock, count, day, share
from protocol.trace import TraceLine

T = TypeVar("T")

MOST_STEPS = 40
MOST_MESSAGES = 60
MOST_REQUESTS = 40


def moment(text: str, began: float, ended: float) -> float:
    """Unix seconds of `+12.5` (from the trace's beginning), a time of day, an ISO time or Unix seconds.

    A time of day is that of the day the trace began on, in local time, or of the next if only that is in it. Raises
    `TraceError` when it is none of these, or lies outside the trace.
    """
    at = _parsed(text, began, ended)
    if not began - 1 <= at <= ended + 1:
        raise TraceError(
            f"{text} is {day(at)} {clock(at)}, and the trace goes from {day(began)} {clock(began)} to {clock(ended)} "
            f"({span(ended - began)})."
        )
    return at


def _parsed(text: str, began: float, ended: float) -> float:
    try:
        if text.startswith("+"):
            return began + float(text[1:])
        if ":" in text and "-" not in text:
            hours, minutes, seconds = [*text.split(":"), "0"] if text.count(":") == 1 else text.split(":")
            date = time.localtime(began)
            whole = time.struct_time((*date[:3], int(hours), int(minutes), 0, 0, 0, -1))
            at = time.mktime(whole) + float(seconds)
            return at + 86_400 if at < began - 1 and at + 86_400 <= ended + 1 else at
        if ":" in text or text.count("-") == 2:
            return datetime.fromisoformat(text).timestamp()
        return float(text)
    except ValueError:
        raise TraceError(
            f"{text!r} is no time: write 14:03:22.4, an ISO time, Unix seconds, or +12.5 for seconds from the trace's "
            "beginning."
        ) from None


def in_window(line: TraceLine, since: float, to: float) -> bool:
    """Whether it waited or was handled then."""
    return line.time <= to and line.time + line.waited_s + (line.handled_s or 0.0) >= since


def print_around(
    at: float, window_s: float, lines: list[TraceLine], lives: Lives, names: Names, console: Console
) -> None:
    """`lines`: those of the window, in their order."""
    since, to = at - window_s / 2, at + window_s / 2

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    say(f"Around {clock(at)}, from {clock(since)} to {clock(to)}:", "bold")
    say(held_sentence(since, to, lives, names))
    steps = [step for step, _ in lives.device.between(since, to)]
    if steps:
        console.print(_steps(steps, at, lives, names), highlight=False)
    alive = [life for life in lives.all.values() if life.began_at <= to and (life.over_at or to) >= since]
    if alive:
        console.print(_requests(alive, at, names), highlight=False)
    if lines:
        console.print(_actors(lines), highlight=False)
        console.print(_messages(lines, at, names), highlight=False)


def held_sentence(since: float, to: float, lives: Lives, names: Names) -> str:
    """Who had the device then."""
    held = lives.device.held(since, to)
    said = [(seconds, f"{names.of(request)}'s prefill") for request, seconds in held.prefill.items()]
    if held.decode:
        said.append((sum(held.decode.values()), f"the decoding of {count(len(held.decode), 'answer')}"))
    said += [(held.idle_s, "nobody's"), (held.down_s, "without a worker")]
    shown = sorted((each for each in said if each[0] > 0.005 * held.span_s), key=lambda each: -each[0])[:6]
    if not shown:
        return "Nothing is known of the device then."
    return "Of the device's time: " + ", ".join(f"{share(seconds / held.span_s)} {who}" for seconds, who in shown) + "."


def _steps(steps: list[DeviceStep], at: float, lives: Lives, names: Names) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("step", "began", "took"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("whose")
    for step in _nearest(steps, at, MOST_STEPS, lambda step: (step.began + step.ended) / 2):
        held = lives.device.held(step.began, step.ended)
        whole = sum(held.prefill.values()) + sum(held.decode.values()) or 1.0
        who = [
            f"{share(seconds / whole)} {names.of(request)}'s prefill"
            + ("" if (chunk := step.chunk_of(request)) is None else f" of {chunk[2]:,}")
            for request, seconds in sorted(held.prefill.items(), key=lambda each: -each[1])[:3]
        ]
        if held.decode:
            rows = [names.of(request) for request in held.decode]
            of = f" ({', '.join(rows[:4])}{', …' if len(rows) > 4 else ''})"
            who.append(f"{share(sum(held.decode.values()) / whole)} {count(len(rows), 'answer')}{of}")
        table.add_row(str(step.number), clock(step.began), span(step.took_s), Text(", ".join(who)))
    return table


def _requests(alive: list[Life], at: float, names: Names) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("request")
    table.add_column("then")
    for name in ("received", "tokens in", "out so far"):
        table.add_column(name, justify="right")
    for life in alive[:MOST_REQUESTS]:
        out = sum(1 for step in life.token_steps() if step.at <= at)
        table.add_row(
            Text(names.of(life.request)),
            life.state_at(at) or ("finished" if life.began_at < at else "not yet received"),
            f"{life.began_at - at:+.3f} s",
            "-" if life.input_tokens is None else f"{life.input_tokens:,}",
            f"{out:,}",
        )
    if len(alive) > MOST_REQUESTS:
        table.add_row(f"… {len(alive) - MOST_REQUESTS:,} more", "", "", "", "")
    return table


def _actors(lines: list[TraceLine]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in (("actor", False), ("n", True), ("busy", True), ("waited worst", True), ("handled", False)):
        table.add_column(name, justify="right" if right else "left")
    by_actor: dict[str, list[TraceLine]] = {}
    for line in lines:
        by_actor.setdefault(line.to or "?", []).append(line)
    for actor, its in sorted(by_actor.items(), key=lambda each: -sum(line.handled_s or 0.0 for line in each[1]))[:20]:
        kinds = Counter(line.type for line in its).most_common(5)
        busy_s = sum(line.handled_s or 0.0 for line in its)
        worst_s = max(line.waited_s for line in its)
        table.add_row(
            Text(actor),
            f"{len(its):,}",
            brief(busy_s),
            brief(worst_s),
            Text(", ".join(f"{n:,} {kind}" for kind, n in kinds)),
        )
    return table


def _messages(lines: list[TraceLine], at: float, names: Names) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in (("sent", True), ("waited", True), ("handled", True), ("", False)):
        table.add_column(name, justify="right" if right else "left", no_wrap=right)
    shown = _nearest(lines, at, MOST_MESSAGES, lambda line: line.time)
    for line in shown:
        whose = f" of {names.of(line.request)}" if line.request else ""
        table.add_row(
            clock(line.time),
            brief(line.waited_s),
            brief(line.handled_s),
            Text(f"{line.from_ or '?'} to {line.to or '?'}: {line.type}{whose}"),
        )
    if len(lines) > len(shown):
        table.add_row(
            "", "", "", f"the {len(shown):,} nearest of {len(lines):,} messages; a smaller --window shows all"
        )
    return table


def _nearest(items: list[T], at: float, most: int, when: Callable[[T], float]) -> list[T]:
    """Those nearest to the moment, in their order."""
    near = sorted(range(len(items)), key=lambda index: abs(when(items[index]) - at))[:most]
    return [items[index] for index in sorted(near)]
