"""The arguments that name a scenario and say what of it is wanted: the same for a simulation, a replay and a load.

Knows how they are written, and the flags of a trace. Knows nothing of what is done with the scenario.
"""

import argparse
import math
from collections.abc import Callable

import msgspec
from msgspec import structs

from protocol.distributions import Drawn
from protocol.scenario import (
    Scenario,
    ScenarioError,
    is_trace,
    read_azure,
    read_scenario,
    scaled,
    shipped,
    with_targets,
)

OF_A_TRACE = ("first", "count", "start_s", "for_s", "tokens")
"""The arguments, by their names in `argparse`, that only a trace has a use for."""


def whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (least <= value <= most and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return parse


def targets(text: str) -> dict[str, float]:
    """Seconds, by the field of a scenario that they are to stand in."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        field = {"ttft": "ttft_target_s", "itl": "itl_target_s"}.get(name)
        factor, bare = (1e-3, value.removesuffix("ms")) if value.endswith("ms") else (1.0, value.removesuffix("s"))
        try:
            seconds = math.inf if value == "none" else float(bare) * factor
        except ValueError:
            seconds = math.nan
        if field is None or not seconds > 0:
            raise argparse.ArgumentTypeError(f"{part!r} is not like ttft=5s, itl=500ms or itl=none")
        found[field] = seconds
    return found


def amount(text: str) -> float | Drawn:
    """A number, or how one is drawn, as in a scenario's file: "200", "from=100,to=400", "median=200,spread=0.5"."""
    try:
        if "=" not in text:
            return int(text) if text.strip().isdecimal() else float(text)
        pairs = (part.partition("=") for part in text.split(","))
        return msgspec.convert({name.strip(): float(value) for name, _, value in pairs}, Drawn)
    except msgspec.ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not like 200, from=100,to=400, median=200,spread=0.5 or mean=5"
        ) from None


SCENARIO = f"one that comes with rota ({', '.join(shipped())}), a .toml file, or a .csv trace"
"""What a scenario's argument may be."""


def add_part(parser: argparse.ArgumentParser) -> None:
    """What of the scenario is wanted: --rate, --targets, and the part of a trace."""
    add = parser.add_argument
    add("--rate", type=number(1e-6, 1e6), metavar="X", help="arrivals X times as fast [1]")
    add("--targets", type=targets, metavar="ttft=5s,itl=500ms", help="of every request, not the scenario's own")
    trace = parser.add_argument_group("a .csv trace (columns TIMESTAMP, ContextTokens, GeneratedTokens)")
    trace.add_argument("--first", type=whole(0), metavar="N", help="begin with request number N, from 0")
    trace.add_argument("--count", type=whole(1), metavar="N", help="so many requests at most")
    trace.add_argument("--start-s", type=number(0, 1e9), metavar="S", help="begin S seconds after its first")
    trace.add_argument("--for-s", type=number(1e-3, 1e9), metavar="S", help="only requests of S seconds")
    trace.add_argument("--tokens", type=number(1e-6, 1e6), metavar="X", help="prompts and answers X times as long")


def scenario_of(args: argparse.Namespace) -> Scenario:
    """What `args.scenario` names, as far, as fast and with the targets that `add_part` was given, and drawn with
    `args.seed` if there is one. Raises `ScenarioError`."""
    given = {name: getattr(args, name) for name in OF_A_TRACE if getattr(args, name) is not None}
    if is_trace(args.scenario):
        scenario = read_azure(args.scenario, rate=args.rate or 1.0, **given)
    elif given:
        flag = next(iter(given)).replace("_", "-")
        raise ScenarioError(f"--{flag} is for a .csv trace, and {args.scenario} is none.")
    else:
        scenario = read_scenario(args.scenario)
        if args.rate is not None:
            scenario = scaled(scenario, args.rate)
    if args.seed is not None:
        scenario = structs.replace(scenario, seed=args.seed)
    return with_targets(scenario, args.targets or {})
