"""A minute of waits as a line of block characters: a column a second, the median of the second and its 99th percentile.

Knows samples in seconds and how high a block is. Knows no terminal, and no clock: time comes in as seconds.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import log
from typing import NamedTuple

from loadgen.distributions import percentile

COLUMNS = 60
"""Seconds that are kept."""
MOST_SAMPLES = 4096
"""Of one second, evenly taken from all: enough for a column, and sorted in well under a millisecond."""
LOG_FROM = 10.0
"""The scale is logarithmic when the highest is more than so many times the lowest."""
BLOCKS = "▁▂▃▄▅▆▇█"


class Second(NamedTuple):
    """Seconds."""

    p50: float
    p99: float


class Minute:
    """The last `COLUMNS` seconds of one kind of wait."""

    def __init__(self) -> None:
        self.seconds: deque[Second | None] = deque(maxlen=COLUMNS)
        """The oldest first; None where nothing came."""
        self._due_s: float | None = None

    def take(self, now_s: float, samples: deque[float]) -> None:
        """Once a second, make a column of `samples`, and empty them.

        When more than a second has gone by since, the column is repeated: the samples are of all that time.
        """
        if self._due_s is None:
            self._due_s = now_s + 1.0
        if now_s < self._due_s:
            return
        passed = 1 + int(now_s - self._due_s)
        self._due_s += passed
        made = second(samples)
        samples.clear()
        self.seconds.extend([made] * min(passed, COLUMNS))

    @property
    def latest(self) -> Second | None:
        """The last second in which something came."""
        return next((each for each in reversed(self.seconds) if each is not None), None)


def second(samples: Sequence[float] | deque[float]) -> Second | None:
    """None of no samples."""
    if not samples:
        return None
    every = -(-len(samples) // MOST_SAMPLES)
    ordered = sorted(list(samples)[::every])
    return Second(percentile(ordered, 50), percentile(ordered, 99))


class Scale(NamedTuple):
    """From the lowest block to the highest, in seconds; `low` is 0 of a linear one."""

    low: float
    high: float

    @property
    def logarithmic(self) -> bool:
        return self.low > 0

    def block(self, value: float | None) -> str:
        """A space where there is no value."""
        if value is None:
            return " "
        if self.logarithmic:
            share = log(max(value, self.low) / self.low) / log(self.high / self.low)
        else:
            share = value / self.high if self.high else 0.0
        return BLOCKS[min(len(BLOCKS) - 1, max(0, int(share * len(BLOCKS))))]


def scale(seconds: Iterable[Second | None]) -> Scale:
    """One for the medians and the 99th percentiles of these, so that they can be compared."""
    there = [each for each in seconds if each is not None]
    low = min((each.p50 for each in there), default=0.0)
    high = max((each.p99 for each in there), default=0.0)
    # Below a tenth of a millisecond lies what came in one read of the socket: no wait to make room for.
    low = max(low, 1e-4)
    return Scale(low if high > LOG_FROM * low else 0.0, high)
