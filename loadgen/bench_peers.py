"""`python -m loadgen.bench_peers`: rota and what a user might pick instead, in turn, under the same load.

Knows the command line, the order of the rounds and the exit codes. What a peer is and where, is in `peers`; how one is
run, in `peer_process`. Every engine gets the same weights, the same prompts (no two alike, so no cache finds them), and
before each load a short one of the same width that is not counted. A round runs every engine once, so that what else
the machine does meets all of them. Whatever was started is ended, on failure and on Ctrl-C too.
"""

import argparse
import asyncio
import math
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console

from loadgen.bench_table import OURS, Measured, print_table, sentences
from loadgen.client import Unreachable
from loadgen.command_line import Misuse, allow_files, check_folder, loop_factory, pretty_json, write_file
from loadgen.figures import Load, Report
from loadgen.load import SPARE_FILES, measure
from loadgen.own_server import own_server
from loadgen.peer_process import Measure, running
from loadgen.peers import PEERS, Missing, PipePeer, find
from loadgen.progress import Nothing
from protocol.scenario_arguments import number, whole

JSON_FORMAT = 1
MODEL = "SmolLM2-135M-Instruct"
STREAMS = (1, 16, 64)
BARE = f"bare {OURS} (in process)"
"""Our kernels without sockets and actors, beside those who are measured so."""
LEAST_REQUESTS = 4
"""In a load: fewer streams ask so often, one prompt after another."""
WARM_UP_TOKENS = 8
WIDTH = 120
"""Of the table where there is no terminal, in columns."""

ALL_FINISHED, SOME_DID_NOT, NO_RUN = 0, 1, 2
"""Exit codes: every engine that was found was measured whole; some were not; usage error, or nothing measured."""


class Engine(Struct, frozen=True):
    name: str
    start: Callable[[], AbstractAsyncContextManager[Measure]]
    """Raises `Unreachable`."""


class Bench(Struct, frozen=True):
    """The shape of `--json FILE`. `format` goes up when a field changes its meaning or goes; new fields may come."""

    format: int
    weights: str
    measured: list[Measured]
    """Every load of every round."""
    missing: list[Missing]
    failed: dict[str, str]
    """By engine: what it said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    add("--peers", type=Path, default=cache / "rota-peers", metavar="DIR", help="where they are (default: %(default)s)")
    add("--model", type=Path, metavar="DIR", help=f"the weights (default: {MODEL} as rota keeps it)")
    add("--only", type=_names, metavar="NAME,...", help="only engines whose names begin so, in any case")
    add("--streams", type=_streams, default=STREAMS, metavar="N,...", help="answers side by side (default: 1,16,64)")
    add(
        "--rounds", type=whole(1), default=2, metavar="N", help="of all engines in turn; the best is shown (default: 2)"
    )
    add("--prompt-tokens", type=whole(1), default=140, metavar="N", help="about (default: %(default)s)")
    add("--max-output-tokens", type=whole(2), default=64, metavar="N", help="of each answer (default: %(default)s)")
    add("--seed", type=whole(0), metavar="N", help="which prompts (default: new ones)")
    limit = number(0.001, math.inf)
    add("--start-s", type=limit, default=600.0, metavar="S", help="for a peer to be ready (default: %(default)g)")
    add("--timeout-s", type=limit, default=300.0, metavar="S", help="for one load (default: %(default)g)")
    add("--json", type=Path, metavar="FILE", help="write all figures of all rounds")


def _streams(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole(1)(part) for part in text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip().lower() for part in text.split(","))
    for name in names:
        if not any(known.lower().startswith(name) for known in (OURS, BARE, *PEERS)):
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join((OURS, BARE, *PEERS))}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_peers", description="Measures rota beside other engines.")
    add_arguments(parser)
    args = parser.parse_args(arguments)
    try:
        weights = args.model or default_weights()
        found, missing = find(args.peers, weights)
        bare = PipePeer(BARE, (sys.executable, "-m", "tests.kernels.in_process", str(weights.resolve())))
        found = [bare, *found]
        engines = [ours(weights), *(Engine(peer.name, partial(running, peer, args.start_s)) for peer in found)]
        return run(args, weights, engines, missing)
    except (Misuse, Unreachable) as wrong:
        print(wrong, file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopped by hand, without figures.", file=sys.stderr)
    return NO_RUN


def default_weights() -> Path:
    """The default model where rota keeps it, in the latest form. Raises `Misuse`."""
    models = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rota" / "models"
    kept = [file.parent for file in models.glob(f"{MODEL}-*/model.safetensors")]
    if not kept:
        raise Misuse(f"{MODEL} is not in {models} yet: start `make serve` once, or name a folder with --model.")
    return max(kept, key=lambda folder: folder.stat().st_mtime)


def ours(weights: Path) -> Engine:
    @asynccontextmanager
    async def start() -> AsyncIterator[Measure]:
        async with own_server(("--model", str(weights), "--dtype", "bfloat16")) as server:

            async def measure_it(load: Load) -> Report:
                return await measure(msgspec.structs.replace(load, url=server.url, model=server.model), None, Nothing())

            yield measure_it

    return Engine(OURS, start)


def run(args: argparse.Namespace, weights: Path, engines: Sequence[Engine], missing: Sequence[Missing]) -> int:
    """Measure the engines, print the table, return the exit code. Raises `Misuse`."""
    if args.json is not None:
        check_folder(args.json)
    allow_files(max(args.streams) + SPARE_FILES, "lower --streams")

    def wanted(name: str) -> bool:
        return args.only is None or name.lower().startswith(args.only)

    rounds = Rounds(args, [engine for engine in engines if wanted(engine.name)])
    missing = [one for one in missing if wanted(one.name)]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(rounds.all())
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    if rounds.measured:
        say(heading(args, weights))
        print_table(rounds.measured, console)
    for line in sentences(rounds.measured):
        say(line)
    for one in missing:
        say(f'{one.name} is not installed: {one.why} (CONTRIBUTING.md, "Beside other engines").')
    for name, why in rounds.failed.items():
        say(f"{name} was not measured to the end. {why}")
    if rounds.stopped:
        say("Stopped by hand.")
    if args.json is not None:
        bench = Bench(JSON_FORMAT, str(weights), rounds.measured, list(missing), rounds.failed)
        write_file(args.json, pretty_json(bench))
    if not rounds.measured:
        return NO_RUN
    whole_runs = all(one.report.all_finished for one in rounds.measured)
    return ALL_FINISHED if whole_runs and not rounds.failed and not rounds.stopped else SOME_DID_NOT


def heading(args: argparse.Namespace, weights: Path) -> str:
    return (
        f"{weights.name}, prompts of ~{args.prompt_tokens} tokens, {args.max_output_tokens} tokens out, greedy; the "
        f"best of {args.rounds} rounds. In brackets, {OURS} as a multiple of the row: more is better for tokens/s, "
        "less for times."
    )


class Rounds:
    """What has been measured, and what has not."""

    def __init__(self, args: argparse.Namespace, engines: Sequence[Engine]) -> None:
        self.measured: list[Measured] = []
        self.failed: dict[str, str] = {}
        self.stopped = False
        self._args = args
        self._engines = engines
        self._seed = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
        self._log = Console(stderr=True)

    async def all(self) -> None:
        """Round after round. A cancel (by Ctrl-C, SIGTERM or SIGHUP) ends it, and what there is remains."""
        this = asyncio.current_task()
        assert this is not None
        for ending in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(ending) is not signal.SIG_IGN:  # as under nohup
                asyncio.get_running_loop().add_signal_handler(ending, this.cancel)
        try:
            for turn in range(self._args.rounds):
                for engine in self._engines:
                    if engine.name not in self.failed:
                        await self._one(engine, turn)
        except asyncio.CancelledError:
            this.uncancel()
            self.stopped = True

    async def _one(self, engine: Engine, turn: int) -> None:
        self._say(f"round {turn + 1} of {self._args.rounds}: starting {engine.name}")
        try:
            async with engine.start() as put:
                for number, streams in enumerate(self._args.streams):
                    # The same prompts for every engine, and none that this process of it has seen.
                    load = self._load(streams, self._seed + 2 * (turn * len(self._args.streams) + number))
                    await self._put(put, self._warm_up(load))
                    measured = Measured(engine.name, streams, turn, await self._put(put, load))
                    self.measured.append(measured)
                    self._say(f"  {streams} streams: {measured.output_per_s or 0.0:,.1f} tokens/s")
        except Unreachable as wrong:
            self.failed[engine.name] = str(wrong)
            self._say(f"  {wrong}")

    async def _put(self, put: Measure, load: Load) -> Report:
        done = await put(load)
        if done.stopped_by == "interrupt":  # the load has dealt with the cancel that was meant for all of us
            raise asyncio.CancelledError
        return done

    def _load(self, streams: int, seed: int) -> Load:
        return Load(
            url="",
            model="",
            sockets=streams,
            requests_per_socket=-(-LEAST_REQUESTS // streams),
            max_output_tokens=self._args.max_output_tokens,
            ignore_eos=True,
            temperature=0.0,
            prompt_tokens=self._args.prompt_tokens,
            warmup=0,
            seed=seed,
            timeout_s=self._args.timeout_s,
        )

    def _warm_up(self, load: Load) -> Load:
        tokens = min(WARM_UP_TOKENS, load.max_output_tokens)
        return msgspec.structs.replace(load, requests_per_socket=1, max_output_tokens=tokens, seed=load.seed + 1)

    def _say(self, sentence: str) -> None:
        self._log.print(sentence, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
