"""`rota trace`: reads what `rota serve --trace FILE` wrote and says where the time went.

Knows the arguments and who does what they ask for. Finds nothing itself.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.comparison import span
from loadgen.tracing.around import in_window, moment, print_around
from loadgen.tracing.causes import sentence
from loadgen.tracing.follow import Following
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.perfetto import Writer
from loadgen.tracing.reading import Found, Tail, TraceError, not_a_trace, read
from loadgen.tracing.report import life_report
from loadgen.tracing.summary import Counting, print_summary, shortfalls, slowest
from loadgen.tracing.timeline import print_life
from loadgen.tracing.words import Names, listed
from protocol.scenario_arguments import number, whole
from protocol.trace import files_of

POLL_S = 0.25
WINDOW_S = 1.0
_NEAR = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `rota trace`."""
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="what `rota serve --trace FILE` wrote; FILE.1 and older are read too")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--request", metavar="ID", help="the life of one request; a part of its id is enough")
    one.add_argument("--slowest", type=whole(1), metavar="N", help="the N that waited longest for their first text")
    one.add_argument("--around", metavar="TIME", help="14:03:22.4, an ISO time, Unix seconds, or +12.5 from the start")
    one.add_argument("--follow", action="store_true", help="say how requests end, while they do")
    add("--window", type=number(0.001, 3600), metavar="S", help=f"seconds shown around TIME [{WINDOW_S:g}]")
    add("--perfetto", type=Path, metavar="OUT", help="also write a trace for ui.perfetto.dev or chrome://tracing")
    add("--json", action="store_true", help="print what was found of the chosen requests as JSON")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed and return the exit code: 2 with a sentence when it cannot be done."""
    console = Console()
    try:
        if args.window is not None and args.around is None:
            raise TraceError("--window is how much to show around a time: name it with --around.")
        if args.follow:
            for unfit in ("perfetto", "json"):
                if getattr(args, unfit):
                    raise TraceError(f"--{unfit} is for a trace as it is, and --follow for one that grows.")
            follow(args.file, console)
        else:
            _read(args, console)
    except TraceError as error:
        print(f"rota: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _read(args: argparse.Namespace, console: Console) -> None:
    if args.perfetto is not None:
        _spare_the_trace(args.file, args.perfetto)
    found, counting, lives = Found(), Counting(), Lives()
    for line in read(args.file, found):
        lives.feed(line)
        counting.feed(line)
    lives.finish()
    names = Names(lives.all)
    if args.perfetto is not None:
        write_perfetto(args.file, args.perfetto, lives, names)
    if args.around is not None:
        _around(args, lives, names, console)
    elif args.request is not None:
        _show([wanted(args.request, lives)], args.json, found, lives, names, console)
    elif args.slowest is not None:
        chosen = slowest(lives, args.slowest)
        if not chosen:
            raise TraceError(f"{args.file} holds no request whose beginning it shows.")
        _show(chosen, args.json, found, lives, names, console)
    elif args.json:
        _print_json(list(lives.all.values()), lives, names)
    else:
        print_summary(args.file, found, counting, lives, names, console)
    if args.perfetto is not None and not args.json:
        console.print(Text(f"{args.perfetto} is written: open it at https://ui.perfetto.dev."), soft_wrap=True)


def _spare_the_trace(file: Path, out: Path) -> None:
    """Whether `out` can be written without harm to what is read. Raises `TraceError`."""
    for path in files_of(file):
        if out.exists() and out.samefile(path):
            raise TraceError(f"--perfetto {out} is a file of the trace itself: name another.")


def wanted(text: str, lives: Lives) -> Life:
    """The one request whose id begins with `text`, or holds it. Raises `TraceError`, with those that come near."""
    if text in lives.all:
        return lives.all[text]
    for fits in (
        [each for each in lives.all if each.startswith(text) or each.removeprefix("resp_").startswith(text)],
        [each for each in lives.all if text in each],
    ):
        if len(fits) == 1:
            return lives.all[fits[0]]
        if fits:
            names = Names(lives.all)
            more = [f"{len(fits) - _NEAR:,} more"] if len(fits) > _NEAR else []
            few = listed([names.of(each) for each in fits[:_NEAR]] + more)
            raise TraceError(f"{text!r} is part of the ids of {len(fits):,} requests: {few}. Name one of them.")
    if not lives.all:
        raise TraceError("The trace holds no request.")
    names = Names(lives.all)
    near = sorted(lives.all, key=lambda each: -_alike(text.removeprefix("resp_"), each.removeprefix("resp_")))
    few = listed([names.of(each) for each in near[:_NEAR]])
    raise TraceError(f"No request's id holds {text!r}. The trace has {len(lives.all):,}; the nearest: {few}.")


def _alike(one: str, other: str) -> int:
    """How many letters they begin with alike."""
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _show(chosen: list[Life], as_json: bool, found: Found, lives: Lives, names: Names, console: Console) -> None:
    if as_json:
        _print_json(chosen, lives, names)
        return
    for said in shortfalls(found, lives):
        console.print(Text(said, style="yellow"), soft_wrap=True)
    if len(chosen) == 1:
        print_life(chosen[0], lives, names, console)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("request", "first text", "tokens in", "out"):
        table.add_column(name, justify="left" if name == "request" else "right", no_wrap=True)
    table.add_column("where its time went")
    for life in chosen:
        table.add_row(
            Text(names.of(life.request)),
            span(life.ttft_s) if life.ttft_s is not None else life.reason or "none yet",
            "-" if life.input_tokens is None else f"{life.input_tokens:,}",
            f"{life.tokens if life.output_tokens is None else life.output_tokens:,}",
            Text(sentence(life, lives, names)),
        )
    console.print(table, highlight=False)


def _around(args: argparse.Namespace, lives: Lives, names: Names, console: Console) -> None:
    """Reads the file once more, for the messages of that window alone."""
    at = moment(args.around, lives.began_at, lives.last_at)
    window_s = WINDOW_S if args.window is None else args.window
    since, to = at - window_s / 2, at + window_s / 2
    if args.json:
        alive = [life for life in lives.all.values() if life.began_at <= to and (life.over_at or to) >= since]
        _print_json(alive, lives, names)
        return
    lines = [line for line in read(args.file, Found()) if line.to and in_window(line, since, to)]
    print_around(at, window_s, lines, lives, names, console)


def _print_json(chosen: list[Life], lives: Lives, names: Names) -> None:
    reports = [life_report(life, lives, names) for life in chosen]
    print(msgspec.json.format(msgspec.json.encode(reports), indent=2).decode())


def write_perfetto(file: Path, out: Path, lives: Lives, names: Names) -> None:
    """Reads the file once more, and writes as it reads. Raises `TraceError`."""
    try:
        with out.open("w", encoding="utf-8") as written:
            writer = Writer(written, lives.began_at)
            for line in read(file, Found()):
                if line.time <= lives.last_at:
                    writer.message(line)
            writer.finish(lives, names)
    except OSError as error:
        raise TraceError(f"{out} cannot be written: {error.strerror}.") from error


def follow(
    file: Path,
    console: Console,
    sleep: Callable[[float], None] = time.sleep,
    more: Callable[[], bool] = lambda: True,
) -> None:
    """Say what happens from now on, four looks a second. What the file holds already is read and not told.

    Returns when `more` says so; ends with KeyboardInterrupt otherwise.
    """
    tail = Tail(file)
    following = Following(console)
    following.quiet = file.exists()
    if not following.quiet:
        console.print(Text(f"Waiting for {file}.", style="dim"), soft_wrap=True)
    try:
        while more():
            came = tail.poll()
            if tail.found.unreadable and not tail.found.lines:
                raise TraceError(not_a_trace(file))
            for line in came:
                following.feed(line)
            if not came:
                following.idle()
            following.quiet = False
            sleep(POLL_S)
    finally:
        tail.close()
