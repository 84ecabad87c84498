"""`rota load`: opens N sockets to a server, sends prompts on all of them at once, and says who waited and how long.

Knows the command line, the order of a run (model, warm-up, sockets, load) and its exit codes. What happens on a
socket is in `client` and `completions`, what the figures mean in `figures`. A run always ends by itself, within
`--timeout-s` and the seconds it takes to close.
"""

import argparse
import asyncio
import math
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console

from loadgen.client import (
    CONNECT_TIMEOUT_S,
    Askable,
    NotOpened,
    Open,
    Socket,
    Unreachable,
    first_model,
    open_sockets,
    request_body,
)
from loadgen.command_line import (
    DEFAULT_SERVER,
    Misuse,
    allow_files,
    allowed_url,
    check_folder,
    loop_factory,
    number,
    pretty_json,
    whole,
    write_file,
)
from loadgen.completions import ChatSocket, chat_body
from loadgen.figures import Api, Exchange, Load, Report, StoppedBy, report
from loadgen.own_server import own_server
from loadgen.progress import Board, Display, display
from loadgen.prompts import prompt
from loadgen.tables import print_report

TICK_S = 0.1
"""How often the progress is drawn and the event loop's lag sampled."""
SPARE_FILES = 64
NULL_EXECUTOR = ("--kernels", "none")

ALL_FINISHED, SOME_DID_NOT, NO_RUN = 0, 1, 2
"""Exit codes: every request finished; some failed, were refused, dropped or cut off; usage or connection error."""


@dataclass(slots=True)
class Run:
    """How a run stands, and in the end how it went."""

    exchanges: list[Exchange]
    """Every planned request, socket by socket, before any is sent: so one that never was is counted too."""
    board: Board
    opened: int = 0
    not_opened: list[NotOpened] = field(default_factory=list)
    stopped_by: StoppedBy = "finished"
    lag_worst_s: float = 0.0


# -- the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `rota load`."""
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "url",
        nargs="?",
        default=DEFAULT_SERVER,
        metavar="URL",
        help="the server, as ws:// or http:// URL or host:port (default: %(default)s)",
    )
    where.add_argument(
        "--null-executor",
        action="store_true",
        help="start a server for this run, whose worker makes every token up at once: what all but the model takes",
    )
    add(
        "--api",
        choices=get_args(Api),
        default="responses",
        help="what it speaks: OpenAI's Responses API over WebSockets, or chat completions over HTTP "
        "(default: %(default)s)",
    )
    add(
        "--sockets",
        type=whole(1),
        default=16,
        metavar="N",
        help="sockets, all opened before the first request (default: %(default)s)",
    )
    add(
        "--requests",
        type=whole(1),
        default=1,
        metavar="M",
        help="requests on each socket, one after another (default: %(default)s)",
    )
    add("--max-output-tokens", type=whole(1), default=64, metavar="N", help="the longest answer (default: %(default)s)")
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers run to --max-output-tokens, so that all are equally long (default: yes; no is for servers that "
        "refuse the field)",
    )
    add("--temperature", type=number(0.0, 2.0), default=0.0, metavar="T", help="0 to 2 (default: 0, greedy)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--prompt-tokens",
        type=whole(1),
        default=140,
        metavar="N",
        help="about how long each prompt is; no two begin alike (default: %(default)s)",
    )
    which.add_argument(
        "--prompt", metavar="TEXT", help="send this text every time instead; a server that caches prefixes will find it"
    )
    add(
        "--seed",
        type=whole(0),
        metavar="N",
        help="which prompts: the same number repeats a run's (default: new ones, as a server may have kept the last)",
    )
    add(
        "--warmup",
        type=whole(0),
        default=1,
        metavar="K",
        help="requests sent before, one by one, and not counted (default: %(default)s)",
    )
    add(
        "--timeout-s",
        type=number(0.001, math.inf),
        default=300.0,
        metavar="S",
        help="stop after this many seconds, whatever is still running (default: %(default)g)",
    )
    add("--model", metavar="NAME", help="the model to ask for (default: the first the server lists)")
    add("--key", metavar="KEY", help="the API key, if the server wants one")
    add("--anywhere", action="store_true", help="allow a server on another machine")
    add("--json", type=Path, metavar="FILE", help="write the same figures, and those of each request, to FILE")
    add("--quiet", action="store_true", help="no progress on stderr, only the table at the end")


# -- a run


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed, print the figures, return the exit code. Errors are one sentence on stderr."""
    try:
        figures = _figures_of(args)
        print_report(figures, Console())
        if args.json is not None:
            write_file(args.json, pretty_json(figures))
    except (Misuse, Unreachable) as wrong:
        print(wrong, file=sys.stderr)
        return NO_RUN
    except KeyboardInterrupt:  # before the run, or a second time: the first in a run ends it with figures
        print("Stopped by hand, without figures.", file=sys.stderr)
        return NO_RUN
    return ALL_FINISHED if figures.all_finished else SOME_DID_NOT


def _figures_of(args: argparse.Namespace) -> Report:
    if args.null_executor and args.api != "responses":
        raise Misuse("--null-executor starts a rota of its own, and that speaks --api responses only.")
    url = "" if args.null_executor else allowed_url(args.url, args.anywhere, args.api)
    if args.json is not None:
        check_folder(args.json)
    allow_files(args.sockets + SPARE_FILES, "lower --sockets")
    model = args.model or ""
    if not (model or args.null_executor):
        model = first_model(url, args.key, min(CONNECT_TIMEOUT_S, args.timeout_s))
    load = Load(
        url=url,
        model=model,
        sockets=args.sockets,
        requests_per_socket=args.requests,
        max_output_tokens=args.max_output_tokens,
        ignore_eos=args.ignore_eos,
        temperature=args.temperature,
        prompt_tokens=None if args.prompt is not None else args.prompt_tokens,
        warmup=args.warmup,
        seed=random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed,
        timeout_s=args.timeout_s,
        api=args.api,
        null_executor=args.null_executor,
    )
    shown = display(Console(stderr=True), args.quiet)
    with shown, asyncio.Runner(loop_factory=loop_factory()) as runner:
        alone = _without_a_model if args.null_executor else measure
        return runner.run(alone(load, args.key, shown, args.prompt))


async def _without_a_model(load: Load, key: str | None, shown: Display, text: str | None) -> Report:
    """Start a server that needs none, and `measure`."""
    async with own_server(NULL_EXECUTOR) as server:
        return await measure(msgspec.structs.replace(load, url=server.url, model=server.model), key, shown, text)


async def measure(load: Load, key: str | None, shown: Display, text: str | None = None) -> Report:
    """Put the load on its server and add up what came of it. `text` is the prompt where the load has no length.

    Raises `Unreachable` when no socket opens; a cancel ends the run early, as with `drive`.
    """
    each = load.requests_per_socket
    exchanges = [Exchange(socket, number) for socket in range(load.sockets) for number in range(each)]
    bodies = [_body(load, index, text) for index in range(len(exchanges) + load.warmup)]
    outcome = Run(exchanges, Board(len(exchanges), load.max_output_tokens))
    await drive(load, key, bodies, outcome, shown)
    return report(
        load,
        exchanges,
        stopped_by=outcome.stopped_by,
        opened=outcome.opened,
        not_opened=[declined.code for declined in outcome.not_opened],
        client_lag_worst_s=outcome.lag_worst_s,
    )


def _body(load: Load, index: int, text: str | None) -> bytes:
    assert text is not None or load.prompt_tokens is not None
    make = chat_body if load.api == "chat" else request_body
    return make(
        load.model,
        prompt(load.seed, index, load.prompt_tokens) if load.prompt_tokens is not None else text or "",
        max_output_tokens=load.max_output_tokens,
        temperature=load.temperature,
        ignore_eos=load.ignore_eos,
    )


async def drive(load: Load, key: str | None, bodies: list[bytes], outcome: Run, shown: Display) -> None:
    """Warm up, open every socket, start them all at once, and fill `outcome` in.

    `bodies` holds a request for each of `outcome.exchanges`, in their order, and then the warm-up's. Raises
    `Unreachable` when no socket opens. A cancel (Ctrl-C under `asyncio.Runner`) ends the run early and is not passed
    on: `stopped_by` tells of it.
    """
    sockets: list[Askable] = []
    open_one: Open = ChatSocket.open if load.api == "chat" else Socket.open
    watcher = asyncio.create_task(_watch(outcome, shown))
    try:
        async with asyncio.timeout(load.timeout_s):
            outcome.board.phase = "warming up"
            await _warm_up(load.url, key, bodies[len(outcome.exchanges) :], open_one)
            outcome.board.phase = "opening sockets"
            for opened in await open_sockets(load.url, key, load.sockets, open_one):
                if isinstance(opened, NotOpened):
                    outcome.not_opened.append(opened)
                else:
                    sockets.append(opened)
            if not sockets:
                raise Unreachable(str(outcome.not_opened[0]))
            outcome.board.phase = "running"
            outcome.opened = outcome.board.open_sockets = len(sockets)
            outcome.lag_worst_s = 0.0  # what came before is no part of the measurement
            each = load.requests_per_socket
            async with asyncio.TaskGroup() as group:
                # No task runs before this loop is through: all of them start in the same turn of the event loop.
                for socket in sockets:
                    mine = slice(socket.number * each, (socket.number + 1) * each)
                    group.create_task(_use(socket, outcome.exchanges[mine], bodies[mine], outcome.board))
    except TimeoutError:
        outcome.stopped_by = "timeout"
    except asyncio.CancelledError:
        outcome.stopped_by = "interrupt"
        this = asyncio.current_task()
        assert this is not None
        this.uncancel()
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, *(socket.close() for socket in sockets), return_exceptions=True)


async def _warm_up(url: str, key: str | None, bodies: list[bytes], open_one: Open) -> None:
    """One request after another on a socket of their own. What goes wrong here goes wrong again where it is counted."""
    if not bodies:
        return
    try:
        socket = await open_one(url, key, 0)
    except NotOpened:
        return
    try:
        for number, body in enumerate(bodies):
            if not await socket.ask(body, Exchange(0, number)):
                return
    finally:
        await socket.close()


async def _use(socket: Askable, exchanges: list[Exchange], bodies: list[bytes], board: Board) -> None:
    """Send a socket's requests one after another, for as long as it lives."""
    usable = True
    for exchange, body in zip(exchanges, bodies, strict=True):
        if usable:
            usable = await socket.ask(body, exchange, board.text)
        board.end(len(exchange.texts_s))
    if not usable:
        board.open_sockets -= 1


async def _watch(outcome: Run, shown: Display) -> None:
    """Draw the progress and note how late the event loop is, the drawing included, until cancelled."""
    while True:
        began_s = time.perf_counter()
        shown.show(outcome.board, began_s)
        await asyncio.sleep(TICK_S)
        outcome.lag_worst_s = max(outcome.lag_worst_s, time.perf_counter() - began_s - TICK_S)
