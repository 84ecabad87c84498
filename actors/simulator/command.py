"""`rota simulate`: a scenario or a trace under each policy, on a cost model, in virtual time.

Knows the command line, the order of it all and the exit codes. How a run goes is in `simulation`; what is counted and
drawn belongs to `loadgen`, and is handed in by the command line that may import it.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from actors.config import Config
from actors.scheduling.policies import POLICIES, PolicyName
from actors.simulator import find_rate, hardware, progress
from actors.simulator.arguments import policies
from actors.simulator.find_rate import Found, NoRate, RateSearch
from actors.simulator.hardware import Hardware, HardwareError
from actors.simulator.left_out import left_out
from actors.simulator.runs import PolicyRun, RunsFailed, long, run_all
from actors.simulator.simulation import Setup
from protocol.people import people
from protocol.scenario import Scenario, ScenarioError, is_trace
from protocol.scenario_arguments import SCENARIO, add_part, number, scenario_of, whole
from protocol.timeline import Timeline, percent

MOST_TURNS = 200_000
"""Parts of steps that are kept to be drawn."""
_DEFAULTS = Config()


class Misuse(Exception):
    """The command line asks for something that cannot be done. The message is one sentence."""


class Shown(Struct, frozen=True):
    """How timelines are told: `loadgen.comparison` and `loadgen.picture`, handed in."""

    table: Callable[[Sequence[Timeline], Console], None]
    svg: Callable[..., str]
    html: Callable[..., str]
    compare: Callable[[Sequence[Timeline], str], Struct]


class Simulate:
    """The command: `add_arguments`, then `run`."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("scenario", metavar="SCENARIO", nargs="?", help=SCENARIO)
        add("--policies", type=policies, default=POLICIES, metavar="NAME,...", help=f"of {', '.join(POLICIES)} [all]")
        names = ", ".join(each.name for each in hardware.BUILT_IN)
        add("--hardware", default="laptop", metavar="NAME|FILE", help=f"{names} or a .toml file [laptop]")
        seeds = "of people, in place of the scenario's; of prompts and of the noise on step times [0]"
        add("--seed", type=whole(0), metavar="N", help=seeds)
        add_part(parser)
        served = parser.add_argument_group("as it would be served (else as the hardware's profile says)")
        served.add_argument("--max-running", type=whole(1), metavar="N", help="requests on the device at once")
        served.add_argument("--chunk-tokens", type=whole(1), metavar="N", help="most prefill tokens in one step")
        for name, parse, about in (
            ("max_waiting", whole(0), "places in the waiting room"),
            ("max_wait_s", number(1e-3, math.inf), "longest time in it"),
            ("max_waiting_work_s", number(1e-3, math.inf), "most work in it, in predicted seconds"),
        ):
            default = getattr(_DEFAULTS, name)
            shown = f"{about} [{default:g}]"
            served.add_argument(f"--{name.replace('_', '-')}", type=parse, default=default, metavar="N", help=shown)
        rates = parser.add_argument_group("how much it can take")
        share = f"{find_rate.SHARE:.0%}".replace("%", "%%")
        rates.add_argument(
            "--find-rate", action="store_true", help=f"the highest rate at which {share} of requests meet their targets"
        )
        rates.add_argument(
            "--load", type=number(1e-9, 1e9), metavar="R", help="requests/s to find devices for [the scenario's own]"
        )
        add("--svg", type=Path, metavar="FILE", help="draw who ran and who waited")
        add("--html", type=Path, metavar="FILE", help="the same as a page, with its figures")
        add("--json", type=Path, metavar="FILE", help="write the figures, and those of each request")
        measured = parser.add_argument_group("another machine")
        measured.add_argument("--calibrate", type=Path, metavar="FILE", help="measure this machine for --hardware FILE")
        measured.add_argument("--model", metavar="MODEL", help=f"what to measure it with [{_DEFAULTS.model}]")

    def run(self, args: argparse.Namespace) -> int:
        """Do what was asked for, print what came of it, return the exit code. Errors are one sentence on stderr."""
        try:
            _check(args)
            if args.calibrate is not None:
                _calibrate(args)
            elif args.find_rate:
                _find_rate(args)
            else:
                self._compare(args)
        except (Misuse, ScenarioError, HardwareError, NoRate, RunsFailed) as wrong:
            print(f"rota: {wrong}", file=sys.stderr)
            return 2
        return 0

    def _compare(self, args: argparse.Namespace) -> None:
        profile = hardware.named(args.hardware)
        scenario, setup = scenario_of(args), setup_of(args, profile)
        jobs = [PolicyRun(scenario, policy, setup) for policy in args.policies]
        apart = long(scenario, len(jobs))
        with _far(args.policies, questions(scenario), "requests simulated", shown=apart) as far:
            timelines = run_all(jobs, far, apart=apart)
        console = Console()
        _say(console, heading(scenario, profile))
        self._shown.table(timelines, console)
        for sentence in left_out(scenario):
            _say(console, sentence)
        title, about = f"{scenario.name} · {profile.name}, simulated", scenario.told()
        if args.svg is not None:
            _write(args.svg, self._shown.svg(timelines, title=title, about=about))
        if args.html is not None:
            _write(args.html, self._shown.html(timelines, title=title, about=about))
        if args.json is not None:
            figures = msgspec.json.encode(self._shown.compare(timelines, scenario.name))
            _write(args.json, msgspec.json.format(figures, indent=2).decode() + "\n")


def setup_of(args: argparse.Namespace, profile: Hardware) -> Setup:
    return Setup(
        hardware=profile,
        max_running=args.max_running or profile.max_running,
        chunk_tokens=args.chunk_tokens or profile.chunk_tokens,
        max_waiting=args.max_waiting,
        max_wait_s=args.max_wait_s,
        max_waiting_work_s=args.max_waiting_work_s,
        seed=args.seed or 0,
        most_turns=MOST_TURNS,
    )


def _check(args: argparse.Namespace) -> None:
    """What argparse cannot tell. Raises Misuse."""
    if (args.scenario is None) == (args.calibrate is None):
        raise Misuse("Name a scenario, such as laptops, or a file with --calibrate, but not both.")
    if args.model is not None and args.calibrate is None:
        raise Misuse("--model is for --calibrate: a simulation takes its model from the hardware's profile.")
    if args.load is not None and not args.find_rate:
        raise Misuse("--load is for --find-rate.")
    files = {"svg": args.svg, "html": args.html, "json": args.json}
    for name, file in files.items():
        if file is not None and args.find_rate:
            raise Misuse(f"--find-rate draws no picture and writes no figures: leave out --{name}.")
    check_files({**files, "calibrate": args.calibrate})


def check_files(files: Mapping[str, Path | None]) -> None:
    """Whether each, by its flag, could be written, before there is anything to write. Raises Misuse."""
    flags: dict[Path, str] = {}
    for flag, file in files.items():
        if file is None:
            continue
        folder = file.absolute().parent
        if not folder.is_dir():
            raise Misuse(f"{file} cannot be written: there is no folder {folder}.")
        _try_writing(file)
        other = flags.setdefault(file.resolve(), flag)
        if other != flag:
            raise Misuse(f"--{other} and --{flag} name the same file: {file}.")


def _try_writing(file: Path) -> None:
    """Leaves what is there as it is. Raises Misuse."""
    new = not file.exists()
    if not new and not (file.is_file() or file.is_dir()):
        return  # whoever reads from a pipe would take this for all there is
    try:
        file.open("ab").close()
    except OSError as failed:
        raise Misuse(f"{file} cannot be written: {failed.strerror}.") from None
    if new:
        file.unlink()


def questions(scenario: Scenario) -> int:
    """How many requests there are."""
    return sum(len(person.questions) for person in people(scenario))


def heading(scenario: Scenario, profile: Hardware) -> str:
    asked = [question for person in people(scenario) for question in person.questions]
    prompts = sum(question.prompt_tokens for question in asked)
    answers = sum(question.output_tokens for question in asked)
    return (
        f"{scenario.name} on {profile.name}, simulated: {len(asked):,} requests, {prompts:,} tokens in, "
        f"{answers:,} out; {scenario.wanted()}. {profile.about}"
    )


# --- how much it can take ---


def _find_rate(args: argparse.Namespace) -> None:
    profile = hardware.named(args.hardware)
    scenario, setup = scenario_of(args), setup_of(args, profile)
    own = find_rate.own_rate(scenario)
    jobs = [RateSearch(scenario, policy, setup) for policy in args.policies]
    apart = long(scenario, len(jobs))
    with _far(args.policies, find_rate.USUAL_RUNS, "runs or so", shown=apart) as far:
        found = run_all(jobs, far, apart=apart)
    console = Console()
    _say(console, heading(scenario, profile))
    least_s = find_rate.least_span_s(scenario)
    console.print(rates(found, args.load or own, profile.name, least_s), highlight=False)
    for sentence in caveats(found, scenario, least_s, trace=is_trace(args.scenario)) + left_out(scenario):
        _say(console, sentence)


def rates(found: Sequence[Found], load_per_s: float, device: str, least_s: float) -> Table:
    """A row a policy; those whose requests did not take `least_s` to arrive are marked, and sure of no number."""
    table = Table("policy", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("rate", "requests/s", "met targets", f"{device}s for {load_per_s:,.4g}/s"):
        table.add_column(column, justify="right")
    for each in found:
        devices = each.devices(load_per_s)
        if devices is None:
            table.add_row(each.policy, "-", "none", f"under {find_rate.SHARE:.0%}", "-")
            continue
        name, number = each.policy, f"{devices:,}"
        if each.span_s < least_s:
            name, number = f"{name} *", f"{number} or more"
        table.add_row(name, f"{each.times:.3g}x", f"{each.per_s:,.3g}", percent(each.met, digits=1), number)
    return table


def caveats(found: Sequence[Found], scenario: Scenario, least_s: float, *, trace: bool) -> list[str]:
    """What to beware of in these rates."""
    requests = questions(scenario)
    return [
        f"* {each.policy}: at that rate all {requests:,} requests have arrived within {each.span_s:,.0f} s, too short "
        f"to tell a burst from what lasts: take {find_rate.enough_requests(each.per_s, least_s):,} requests or more"
        f"{' (--count)' if trace else ''}."
        for each in found
        if each.per_s and each.span_s < least_s
    ]


# --- this machine ---


def _calibrate(args: argparse.Namespace) -> None:
    from actors.simulator import calibrate
    from actors.worker_process import WorkerProcess

    file: Path = args.calibrate
    print("Measuring: nothing else should run on this machine for a minute.", file=sys.stderr)
    profile = calibrate.measure(args.model or _DEFAULTS.model, file.stem, WorkerProcess)
    _write(file, hardware.as_toml(profile))
    print(f"{file} is written: rota simulate SCENARIO --hardware {file}")


# --- what is written and shown ---


def _far(names: Sequence[PolicyName], most: int, what: str, *, shown: bool) -> progress.Bars | progress.Lines:
    """`shown`: else it is over before there is anything to look at."""
    return progress.display(Console(stderr=True, quiet=not shown), names, most, what)


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _write(file: Path, content: str) -> None:
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as failed:
        raise Misuse(f"{file} cannot be written: {failed.strerror}.") from failed
