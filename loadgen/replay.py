"""`rota replay`: puts a scenario on the real engine, once under each policy, and shows who waited how long.

Knows the command line, the order of it all (server, warm-up, scenario, the next policy) and the exit codes. What
happens on the server is in `stage`, what is counted in `comparison`, what is drawn in `picture`.
"""

import argparse
import asyncio
import math
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from loadgen.bodies import Prepared
from loadgen.chat_wire import harmless_line
from loadgen.client import CONNECT_TIMEOUT_S, NotOpened, Unreachable, first_model
from loadgen.command_line import Misuse, add_key, allow_files, allowed_url, loop_factory, pretty_json, write_file
from loadgen.comparison import compare, print_comparison, span
from loadgen.lanes import MOST_SOCKETS, Pool
from loadgen.output_files import check_files
from loadgen.own_server import OwnServer, own_server
from loadgen.picture import html, svg
from loadgen.progress import Board, Display, display
from loadgen.scene import context_for
from loadgen.stage import Played, play, requests_of
from loadgen.tables import LAG_WORTH_SAYING_MS
from loadgen.warm_up import Lengths, warm_up
from protocol.people import Person, Question, people
from protocol.scenario import Scenario, ScenarioError, is_trace, read_azure, read_scenario, with_targets
from protocol.scenario_arguments import number, targets, whole

POLICIES = ("slack", "fixed_chunk", "decode_first", "prefill_first")
LEAST_CONTEXT = 4096
"""Of a server of our own: the warm-up must fit as well."""
SPARE_FILES = 64

ALL_FINISHED, SOME_DID_NOT, NO_RUN, STOPPED = 0, 1, 2, 130
"""Exit codes: every request finished; some failed, were refused, dropped or cut off; usage or connection error; stopped
by hand, with or without figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `rota replay`."""
    add = parser.add_argument
    add("scenario", metavar="SCENARIO", help="one that comes with rota (laptops), a .toml file, or a .csv trace")
    add(
        "--policies",
        type=_policies,
        default=POLICIES,
        metavar="NAME,...",
        help=f"one run under each, on a server of its own (default: {','.join(POLICIES)})",
    )
    add("--model", metavar="MODEL", help="the model that the servers load (default: theirs)")
    add(
        "--serve-args",
        type=shlex.split,
        default=[],
        metavar="ARGS",
        help='more flags for the servers, such as "--device cpu --chunk-tokens 256"',
    )
    add("--server", metavar="URL", help="run once, on this server, as it is configured, in place of one a policy")
    add_key(parser)
    add("--anywhere", action="store_true", help="allow a --server on another machine")
    add("--alone", metavar="NAME", help="before each run, time the first token of this request with nobody else there")
    trace = parser.add_argument_group("a .csv trace (columns TIMESTAMP, ContextTokens, GeneratedTokens)")
    trace.add_argument("--first", type=whole(0), metavar="N", help="begin with request number N, from 0")
    trace.add_argument("--count", type=whole(1), metavar="N", help="so many requests at most (default: all)")
    trace.add_argument("--rate", type=number(1e-6, 1e6), metavar="X", help="arrivals X times as fast (default: 1)")
    trace.add_argument(
        "--tokens", type=number(1e-6, 1e6), metavar="X", help="prompts and answers X times as long (default: 1)"
    )
    add(
        "--targets",
        type=targets,
        default={},
        metavar="ttft=5s,itl=500ms",
        help="of every request, in place of the scenario's",
    )
    add("--timeout-s", type=number(0.001, math.inf), default=900.0, metavar="S", help="of each run (default: 900)")
    add("--seed", type=whole(0), metavar="N", help="which prompts; every policy gets the same (default: new ones)")
    add("--svg", type=Path, metavar="FILE", help="draw who ran and who waited")
    add("--html", type=Path, metavar="FILE", help="the same as a page, with its figures")
    add("--json", type=Path, metavar="FILE", help="write the figures, and those of each request")
    add("--quiet", action="store_true", help="no progress on stderr, only the tables at the end")


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().replace("-", "_") for name in text.split(",")))
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(POLICIES)}")
    return names


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed, print the figures, return the exit code. Errors are one sentence on stderr."""
    try:
        scenario = scenario_of(args)
        if args.alone is not None:
            alone(people(scenario), args.alone)
        check_files({"svg": args.svg, "html": args.html, "json": args.json})
        if args.server is not None and (args.model, args.serve_args, args.policies) != (None, [], POLICIES):
            raise Misuse("--policies, --model and --serve-args are for servers of our own: leave out --server.")
        replay = Replay(scenario, args)
        least = MOST_SOCKETS + SPARE_FILES
        allow_files(least, "nothing less will do", least + len(replay.people))
        with replay.heeding_interrupts(), replay.shown, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(replay.all())
        _tell(replay, args)
    except (Misuse, ScenarioError, Unreachable, NotOpened) as wrong:
        print(harmless_line(str(wrong)), file=sys.stderr)
        return NO_RUN
    except KeyboardInterrupt:
        print("Stopped by hand, without figures.", file=sys.stderr)
        return STOPPED
    finished = all(life.finished for played in replay.played for life in played.timeline.lives)
    if replay.broken is not None:
        print(harmless_line(f"Only the first runs are shown. {replay.broken}"), file=sys.stderr)
        return SOME_DID_NOT
    if replay.stopped:
        return STOPPED
    return ALL_FINISHED if finished else SOME_DID_NOT


def scenario_of(args: argparse.Namespace) -> Scenario:
    """The scenario that was named, with the targets that were given. Raises `ScenarioError` or `Misuse`."""
    part = {name: getattr(args, name) for name in ("first", "count", "rate", "tokens")}
    given = {name: value for name, value in part.items() if value is not None}
    if is_trace(args.scenario):
        scenario = read_azure(args.scenario, **given)
    elif given:
        raise Misuse(f"--{next(iter(given))} is for a .csv trace, and {args.scenario} is none.")
    else:
        scenario = read_scenario(args.scenario)
    return with_targets(scenario, args.targets)


def alone(everybody: Sequence[Person], name: str) -> Person:
    """Only that one's first request, at once, and only as far as its first token. Raises `Misuse`."""
    found = next((person for person in everybody if person.name == name), None)
    if found is None:
        names = ", ".join(person.name for person in everybody[:8])
        raise Misuse(f"--alone: the scenario has no request {name!r}, but {names}.")
    first = found.questions[0]
    return Person(
        name,
        (Question(first.prompt_tokens, 1),),
        service_tier=found.service_tier,
        ttft_target_s=found.ttft_target_s,
        itl_target_s=found.itl_target_s,
    )


class Replay:
    """One scenario, once on each server; and one of its requests before, by itself, if that was asked for."""

    def __init__(self, scenario: Scenario, args: argparse.Namespace) -> None:
        self.scenario = scenario
        self.people = people(scenario)
        self.shown: Display = display(Console(stderr=True), args.quiet)
        self.played: list[Played] = []
        self.alone: dict[str, Played] = {}
        """By policy."""
        self.stopped = False
        self.crowded: float | None = None
        """The load average before the first run, where it was above the cores: others were at work."""
        self.broken: Exception | None = None
        """Why there was no next run, when there had been one."""
        self.model = ""
        self.timeout_s: float = args.timeout_s
        self._args = args
        self._seed = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
        self._requests: tuple[str, list[list[Prepared]]] | None = None
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    @contextmanager
    def heeding_interrupts(self) -> Iterator[None]:
        """A Ctrl-C or SIGTERM ends `all`. More of them are not heard: what is ended already takes its bounded time, and
        a second exception in the midst of it would leave servers behind."""

        def interrupt(signal_number: int, frame: FrameType | None) -> None:
            if not self.stopped:
                self.stopped = True
                if self._running is not None:
                    loop, task = self._running
                    loop.call_soon_threadsafe(task.cancel)

        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        heard = [each for each, handler in before.items() if handler is not signal.SIG_IGN]
        for each in heard:
            signal.signal(each, interrupt)
        try:
            yield
        finally:
            for each in heard:
                signal.signal(each, before[each])

    async def all(self) -> None:
        """Run after run. A cancel ends it, and the runs so far remain."""
        this = asyncio.current_task()
        assert this is not None
        self._running = asyncio.get_running_loop(), this
        if self.stopped:
            return
        try:
            for policy in ("server",) if self._args.server is not None else self._args.policies:
                self._look_for_others()
                self._show(policy, "starting rota serve")
                async with self._server(policy) as server:
                    self.played.append(await self._once(policy, server))
        except (Unreachable, NotOpened) as wrong:
            if not self.played:
                raise
            self.broken = wrong
        except asyncio.CancelledError:
            this.uncancel()
            self.stopped = True
        finally:
            self._running = None

    @asynccontextmanager
    async def _server(self, policy: str) -> AsyncIterator[OwnServer]:
        args = self._args
        if args.server is not None:
            url = allowed_url(args.server, args.anywhere)
            yield OwnServer(url, await asyncio.to_thread(first_model, url, args.key, CONNECT_TIMEOUT_S))
            return
        async with own_server(serve_arguments(self.people, policy, args.model, args.serve_args)) as server:
            yield server

    async def _once(self, policy: str, server: OwnServer) -> Played:
        async with AsyncExitStack() as stack:
            pool = Pool(server.url, self._args.key)
            stack.push_async_callback(pool.close)
            self._show(policy, "warming up")
            lengths = await self._warm(pool, server.model)
            self.model = server.model
            if self._args.alone is not None:
                only = (alone(self.people, self._args.alone),)
                # Prompts of its own: the scenario's are not to be found in the cache.
                request = await asyncio.to_thread(requests_of, only, lengths, server.model, self._seed + 1)
                phase = f"{policy}, {self._args.alone} alone"
                self.alone[policy] = await play(only, request, policy, pool, self.timeout_s, self.shown, phase=phase)
            if self._requests is None or self._requests[0] != server.model:
                self._show(policy, "writing prompts")
                made = await asyncio.to_thread(requests_of, self.people, lengths, server.model, self._seed)
                # The same for every policy: a schedule is compared, not prompts.
                self._requests = server.model, made
            return await play(self.people, self._requests[1], policy, pool, self._args.timeout_s, self.shown)

    def _look_for_others(self) -> None:
        """Nothing of ours is at work before the first run: whatever keeps the cores busy would be measured as well."""
        if not self.played:
            load = load_average()
            self.crowded = load if load > (os.cpu_count() or 1) else None

    async def _warm(self, pool: Pool, model: str) -> Lengths:
        socket = await pool.of("")
        longest = max(question.prompt_tokens for person in self.people for question in person.questions)
        try:
            async with asyncio.timeout(self._args.timeout_s):
                return await warm_up(socket, model, self._seed, longest)
        except TimeoutError:
            sentence = f"The first requests were not answered within {self._args.timeout_s:g} s (--timeout-s)."
            raise Unreachable(sentence) from None
        finally:
            pool.back("", socket)

    def _show(self, policy: str, phase: str) -> None:
        board = Board(sum(len(person.questions) for person in self.people), 1, phase=f"{policy}: {phase}")
        self.shown.show(board, time.perf_counter())


def load_average() -> float:
    """How many processes wanted to run, over the last minute; 0 where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def serve_arguments(people: Sequence[Person], policy: str, model: str | None, more: Sequence[str]) -> list[str]:
    """For `rota serve`: the policy, and a context in which every request of everybody fits. `more` wins."""
    context = max(LEAST_CONTEXT, context_for(people))
    named = ["--model", model] if model is not None else []
    return ["--policy", policy, "--max-context", str(context), *named, *more]


def _tell(replay: Replay, args: argparse.Namespace) -> None:
    scenario, timelines = replay.scenario, [played.timeline for played in replay.played]
    if replay.stopped and not timelines:
        raise KeyboardInterrupt
    console = Console()

    def say(sentence: str) -> None:
        console.print(harmless_line(sentence), markup=False, highlight=False, soft_wrap=True)

    say(heading(scenario, replay.people, replay.model))
    print_comparison(timelines, console)
    for sentence in sentences(replay):
        say(sentence)
    title, about = f"{scenario.name} · {replay.model}", scenario.told()
    if args.svg is not None:
        write_file(args.svg, svg(timelines, title=title, about=about).encode())
    if args.html is not None:
        write_file(args.html, html(timelines, title=title, about=about).encode())
    if args.json is not None:
        write_file(args.json, pretty_json(compare(timelines, scenario.name)))
    for file in (args.svg, args.html):
        if file is not None:
            say(f"The picture: {file}")


def heading(scenario: Scenario, people: Sequence[Person], model: str) -> str:
    questions = [question for person in people for question in person.questions]
    prompts, answers = (sum(getattr(each, name) for each in questions) for name in ("prompt_tokens", "output_tokens"))
    wanted = scenario.wanted()
    return f"{scenario.name} on {model}: {len(questions):,} requests, {prompts:,} tokens in, {answers:,} out; {wanted}"


def sentences(replay: Replay) -> list[str]:
    """What the tables do not say: what to beware of in these figures."""
    lines = []
    for played in replay.played:
        policy = played.timeline.policy
        chunks = sum(len(life.token_times) for life in played.timeline.lives)
        if chunks < played.output_tokens:
            lines.append(f"{policy}: {played.output_tokens:,} tokens came in {chunks:,} chunks of text.")
        if played.timed_out:
            lines.append(f"{policy}: stopped after {replay.timeout_s:g} s (--timeout-s).")
        said = next((exchange.message for exchange in played.exchanges if exchange.message), None)
        if said is not None:
            lines.append(f"{policy}: the first that went wrong: {said}")
        if played.mostly_cached:
            lines.append(f"{policy}: {played.mostly_cached:,} prompts were mostly in the server's cache, and not read.")
        if played.late_worst_s * 1e3 >= LAG_WORTH_SAYING_MS:
            lines.append(
                f"{policy}: this client was late by up to {played.late_worst_s * 1e3:,.0f} ms itself: "
                "waits of that size may be its own."
            )
    for played in replay.played:
        lines += _beside_alone(played, replay.alone.get(played.timeline.policy))
    if replay.crowded is not None:
        lines.append(
            f"This machine was busy with other things (load average {replay.crowded:.1f} on {os.cpu_count() or 1} "
            "cores before anything here ran): waits are longer than they would be, not equally so under each policy."
        )
    if replay.stopped:
        lines.append("Stopped by hand: only the runs that were complete are shown.")
    return lines


def _beside_alone(played: Played, by_itself: Played | None) -> list[str]:
    """How much later a first token came for the others' sake."""
    if by_itself is None:
        return []
    policy, (only,) = played.timeline.policy, by_itself.timeline.lives
    (same,) = (life for life in played.timeline.lives if life.name == only.name)
    if only.ttft_s is None or same.ttft_s is None:
        return [f"{policy}: {only.name} had no first token to compare."]
    return [
        f"{policy}: {only.name} alone has its first token after {span(only.ttft_s)}, "
        f"beside the others after {span(same.ttft_s)}: {same.ttft_s / only.ttft_s:.2f} x."
    ]
