"""What the arguments of `rota simulate` may be: whole numbers, numbers, policies and targets.

Knows how they are written. Knows nothing of what they are for.
"""

import argparse
import math
from collections.abc import Callable

from actors.scheduling.policies import POLICIES, PolicyName


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
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return parse


def policies(text: str) -> tuple[PolicyName, ...]:
    names = dict.fromkeys(name.strip().replace("-", "_") for name in text.split(","))
    found: list[PolicyName] = []
    for name in names:
        policy = next((each for each in POLICIES if each == name), None)
        if policy is None:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(POLICIES)}")
        found.append(policy)
    return tuple(found)


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
