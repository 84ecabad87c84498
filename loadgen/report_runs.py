"""The exchanges of a run as arrays, which plots are made of.

Knows what is counted in a figure and when a request was over. Knows no plot.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.exchange import Exchange
from loadgen.figures import Report

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A run's figures, and those of its exchanges that are in them and were due, in the order of arrival."""

    report: Report
    exchanges: list[Exchange]
    zero_s: float
    """When the first was due: the plots count from here."""

    @classmethod
    def of(cls, report: Report, exchanges: Sequence[Exchange]) -> "Run":
        due = [each for each in exchanges if not each.warm_up and each.from_s is not None]
        due.sort(key=due_s)
        return cls(report, due, due_s(due[0]) if due else 0.0)

    @property
    def length_s(self) -> float:
        return max((over_s(each) - self.zero_s for each in self.exchanges), default=0.0)

    @property
    def groups(self) -> dict[str, list[Exchange]]:
        found: dict[str, list[Exchange]] = {}
        for each in self.exchanges:
            found.setdefault(each.group, []).append(each)
        return found

    def targets_s(self, of: Callable[[Exchange], float]) -> list[float]:
        """The different ones there are, ascending."""
        return sorted({target for target in map(of, self.exchanges) if target < math.inf})

    def times(self, of: Callable[[Exchange], float | None]) -> Floats:
        """Seconds from `zero_s`, ascending, of those that have one."""
        return np.sort(array(map(of, self.exchanges)) - self.zero_s)


def due_s(exchange: Exchange) -> float:
    """Of an exchange that was due."""
    assert exchange.from_s is not None
    return exchange.from_s


def over_s(exchange: Exchange) -> float:
    """When it was over: its end, its last text where the run ended before it, or when it was due."""
    ends = (exchange.ended_s, exchange.given_up_s, exchange.texts_s[-1] if exchange.texts_s else None)
    return max((end for end in ends if end is not None), default=due_s(exchange))


def first_text_s(exchange: Exchange) -> float | None:
    return exchange.texts_s[0] if exchange.texts_s else None


def array(values: Iterable[float | None]) -> Floats:
    """Of those that are not None."""
    return np.array([value for value in values if value is not None], np.float64)


def gaps_s(exchanges: Iterable[Exchange]) -> Floats:
    """Of all that read as fast as it came."""
    texts = [np.diff(each.texts_s) for each in exchanges if len(each.texts_s) > 1 and not each.slow_reader]
    return np.concatenate(texts) if texts else np.empty(0)
