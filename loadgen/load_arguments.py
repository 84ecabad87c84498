"""The command line of `rota load`: its arguments.

Knows flags and what each may be. What they mean together is in `asked`.
"""

import argparse
import math
from pathlib import Path
from typing import Any, get_args

from loadgen.command_line import DEFAULT_SERVER, add_key
from loadgen.exchange import Api
from loadgen.wording import EXACT, LETTERS
from protocol.scenario_arguments import number, targets, whole

SOCKETS, REQUESTS = 16, 1
"""Of a load without people."""
PEOPLE, PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 64, 140, 64
CHUNKS, AWAY_S, CHUNKS_PER_S = 8, 5.0, 5.0
"""After so many pieces of text people leave, so long after it they come back, and so slowly others read."""


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
        "--scenario",
        metavar="NAME|FILE",
        help="play the people of a scenario: one that comes with rota (chat, laptops, long-documents, rush), a .toml "
        "file, or a .csv trace",
    )
    _add_plain(parser)
    _add_crowd(parser.add_argument_group("people who come by themselves, one after another (any of these flags)"))
    _add_trace(parser.add_argument_group("a .csv trace (columns TIMESTAMP, ContextTokens, GeneratedTokens)"))
    _add_requests(parser)
    _add_run(parser)


def _add_plain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--sockets",
        type=whole(1),
        metavar="N",
        help=f"sockets, all opened before the first request (default: {SOCKETS}); with people: everybody shares so "
        "many, each request on a lane of its own (default: a socket for each person)",
    )
    add(
        "--requests",
        type=whole(1),
        metavar="M",
        help=f"requests on each socket, one after another (default: {REQUESTS}); without people only",
    )
    add("--idle", type=whole(0), default=0, metavar="N", help="so many sockets more, that only stay open (default: 0)")
    add(
        "--connect-rate",
        type=number(0.001, 1e6),
        metavar="R",
        help="open at most so many sockets a second (default: 64 at a time, as fast as they open)",
    )


def _add_crowd(group: Any) -> None:
    add = group.add_argument
    add(
        "--arrive",
        choices=("together", "fixed", "poisson", "gamma"),
        help="when they come: all at once, evenly, at random, or in bursts (default: poisson with a rate, else "
        "together)",
    )
    add(
        "--rate",
        type=number(1e-6, 1e6),
        metavar="R",
        help="people a second, on average; of a scenario or trace: so many times as fast (default: 1)",
    )
    add(
        "--burstiness",
        type=number(0.01, 100),
        metavar="B",
        help="of gamma: the coefficient of variation of the gaps between arrivals; 1 is Poisson, 3 is bursts",
    )
    add("--people", type=whole(1), metavar="N", help=f"how many come (default: {PEOPLE})")
    add("--questions", type=whole(1), metavar="K", help="of each, one conversation (default: 1)")
    share, seconds = number(0.0, 1.0), number(0.0, 1e9)
    add("--think-s", type=seconds, metavar="T", help="from the end of an answer to the next question (default: 0)")
    add("--leave", type=share, metavar="SHARE", help="so many (0 to 1) close the page in the midst of their answer")
    add("--leave-after-s", type=seconds, metavar="S", help="so long after they asked,")
    add("--leave-after-chunks", type=whole(1), metavar="N", help=f"or after N pieces of text (default: {CHUNKS})")
    add("--come-back", type=share, metavar="SHARE", help="so many of them come back and ask again")
    add("--come-back-s", type=seconds, metavar="S", help=f"so long after they left (default: {AWAY_S:g})")
    add("--read-slowly", type=share, metavar="SHARE", help="so many take their text slowly from the socket")
    add("--chunks-per-s", type=number(1e-3, 1e6), metavar="R", help=f"pieces a second (default: {CHUNKS_PER_S:g})")
    add("--reconnect", type=share, metavar="SHARE", help="so many open another socket for each question")


def _add_trace(group: Any) -> None:
    add = group.add_argument
    add("--first", type=whole(0), metavar="N", help="begin with request number N, from 0")
    add("--count", type=whole(1), metavar="N", help="so many requests at most (default: all)")
    add("--tokens", type=number(1e-6, 1e6), metavar="X", help="prompts and answers X times as long (default: 1)")


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-output-tokens", type=whole(1), metavar="N", help=f"the longest answer (default: {MAX_OUTPUT_TOKENS})")
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
        metavar="N",
        help=f"about how long each prompt is; no two begin alike (default: {PROMPT_TOKENS})",
    )
    which.add_argument(
        "--prompt", metavar="TEXT", help="send this text every time instead; a server that caches prefixes will find it"
    )
    add(
        "--prompts",
        metavar="KIND|FILE",
        help=f"{LETTERS}: prose of about that length; {EXACT}: exactly so many tokens; or a file of real text, a "
        f'prompt a paragraph or, in .jsonl, a line with a "prompt" (default: the scenario\'s, or {LETTERS})',
    )
    add(
        "--seed",
        type=whole(0),
        metavar="N",
        help="which people and prompts: the same number repeats a run's (default: the scenario's; else new ones, as a "
        "server may have kept the last)",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--targets",
        type=targets,
        default={},
        metavar="ttft=1s,itl=100ms",
        help="of every request: goodput counts those that met them (default: the scenario's)",
    )
    add(
        "--rates",
        type=_rates,
        metavar="R,R,...",
        help="a sweep: the same people once at each --rate, one report for all",
    )
    add(
        "--warmup",
        type=whole(0),
        default=1,
        metavar="K",
        help="requests sent before, one by one, and not counted (default: %(default)s)",
    )
    add(
        "--warmup-s",
        type=number(0.0, 1e9),
        default=0.0,
        metavar="S",
        help="what is due in the first S seconds is played and not counted (default: 0)",
    )
    add(
        "--timeout-s",
        type=number(0.001, math.inf),
        default=300.0,
        metavar="S",
        help="stop after this many seconds, whatever is still running (default: %(default)g)",
    )
    add("--model", metavar="NAME", help="the model to ask for (default: the first the server lists)")
    add_key(parser)
    add("--anywhere", action="store_true", help="allow a server on another machine")
    add("--json", type=Path, metavar="FILE", help="write the same figures, and those of each request, to FILE")
    add("--html", type=Path, metavar="FILE", help="write a page with the figures and plots of them")
    add("--quiet", action="store_true", help="no progress on stderr, only the table at the end")


def _rates(text: str) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(number(1e-6, 1e6)(part) for part in text.split(",")))
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"{text} is one rate: a sweep has several, like 1,2,4")
    return found
