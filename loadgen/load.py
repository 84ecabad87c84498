"""`rota load`: plays people on a server, or many sockets at once, and says who waited and how long.

Knows the order of it all (model, runs, figures) and the exit codes. What is asked for is in
`load_arguments` and `asked`, how a run
goes in `measure`, what the figures mean in `figures`.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console

from loadgen.asked import Asked, asked
from loadgen.chat_wire import harmless_line
from loadgen.client import CONNECT_TIMEOUT_S, Unreachable, first_model
from loadgen.command_line import Misuse, allow_files, allowed_url, loop_factory, pretty_json, write_file
from loadgen.figures import JSON_FORMAT, Exchange, Report, Runs
from loadgen.load_arguments import add_arguments
from loadgen.measure import measure, play
from loadgen.output_files import check_files
from loadgen.own_server import own_server
from loadgen.progress import Display, display
from loadgen.scene import context_for
from loadgen.sockets import AHEAD_S
from loadgen.tables import print_report, print_sweep
from protocol.scenario import ScenarioError

__all__ = ["add_arguments", "measure", "run"]

SPARE_FILES = 64
MOST_PROMPT_TOKENS = 50_000_000
"""Of a run. Some 200 MB of text."""
NULL_EXECUTOR = ("--kernels", "none")
OWN_CONTEXT, OWN_CONNECTIONS = 4096, 4096
"""What `rota serve` has unless told."""

ALL_FINISHED, SOME_DID_NOT, NO_RUN = 0, 1, 2
"""Exit codes: every request finished; some failed, were refused, dropped or cut off, or none is
left to count; usage or connection error."""

Played = tuple[Report, Sequence[Exchange]]


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed, print the figures, return the exit code. Errors are one sentence on stderr."""
    try:
        played = _played(args)
        _tell([figures for figures, _ in played], args)
        if args.html is not None:
            from loadgen.report_page import write_report  # it takes a while to import

            write_report(args.html, played, _title(played[0][0]))
    except (Misuse, ScenarioError, Unreachable) as wrong:
        print(harmless_line(str(wrong)), file=sys.stderr)
        return NO_RUN
    except KeyboardInterrupt:  # before the run, or a second time: the first in a run ends it with figures
        print("Stopped by hand, without figures.", file=sys.stderr)
        return NO_RUN
    went_well = all(figures.requests.planned and figures.all_finished for figures, _ in played)
    return ALL_FINISHED if went_well else SOME_DID_NOT


def _played(args: argparse.Namespace) -> list[Played]:
    runs = asked(args, random.SystemRandom().randrange(1_000_000))
    url = "" if args.null_executor else allowed_url(args.url, args.anywhere, args.api)
    check_files({"json": args.json, "html": args.html})
    for one in runs:
        _check_size(one)
        _allow_files(one)
    model = args.model or ""
    if not (model or args.null_executor):
        model = first_model(url, args.key, min(CONNECT_TIMEOUT_S, args.timeout_s))
    shown = display(Console(stderr=True), args.quiet)
    with shown, asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_all(runs, url, model, args, shown))


def _check_size(one: Asked) -> None:
    """Whether the prompts, all written before the run, are not too many to be held. Raises `Misuse`."""
    asked_for = one.scene.made_prompt_tokens
    if asked_for > MOST_PROMPT_TOKENS:
        raise Misuse(
            f"The prompts have {asked_for:,} tokens in all, and {MOST_PROMPT_TOKENS:,} is the most that is played: "
            "ask for fewer requests or shorter prompts."
        )


def _allow_files(one: Asked) -> None:
    """As many as will be open at once; how many of people who come later will be, only the server decides."""
    people = one.scene.people
    early = sum(not person.after and person.at_s <= AHEAD_S for person in people)
    shared = one.scene.sockets - one.scene.own_sockets
    beside = shared + one.load.idle + SPARE_FILES
    lower = "lower --sockets" if one.scene.name is None else "ask for fewer people"
    instead = f"{lower} or --idle" if one.load.idle else lower
    allow_files(min(early, one.scene.own_sockets) + beside, instead, one.scene.own_sockets + beside)


async def _all(runs: Sequence[Asked], url: str, model: str, args: argparse.Namespace, shown: Display) -> list[Played]:
    """One after another on the same server; the next begins when the last answer of the one before has ended."""
    if args.null_executor:
        async with own_server(_serve_arguments(runs)) as server:
            return await _each(runs, server.url, server.model, args.key, shown)
    return await _each(runs, url, model, args.key, shown)


def _serve_arguments(runs: Sequence[Asked]) -> list[str]:
    """For a server of our own: in which everybody has a socket, and the longest conversation fits."""
    context = max(context_for(one.scene.people) for one in runs)
    sockets = max(one.scene.sockets + one.load.idle for one in runs) + SPARE_FILES
    return [
        *NULL_EXECUTOR,
        *(["--max-context", str(context)] if context > OWN_CONTEXT else []),
        *(["--max-connections", str(sockets)] if sockets > OWN_CONNECTIONS else []),
    ]


async def _each(runs: Sequence[Asked], url: str, model: str, key: str | None, shown: Display) -> list[Played]:
    played: list[Played] = []
    for one in runs:
        load = msgspec.structs.replace(one.load, url=url, model=model)
        played.append(await play(load, one.scene, key, shown))
        if played[-1][0].stopped_by == "interrupt":
            break
    return played


def _tell(reports: Sequence[Report], args: argparse.Namespace) -> None:
    console = Console()
    if args.rates is None:
        print_report(reports[0], console)
    else:
        print_sweep(reports, console)
    if args.json is not None:
        whole = reports[0] if args.rates is None else Runs(format=JSON_FORMAT, runs=list(reports))
        write_file(args.json, pretty_json(whole))


def _title(figures: Report) -> str:
    return f"{figures.scenario or 'load'} · {figures.load.model}"
