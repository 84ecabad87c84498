"""When Python looks for rubbish among all objects: a little at a time while answers are written, the rest when none is.

What refers to itself in a circle is found only by looking through everything, for which all answers stand still: nearly
a second where ten thousand sockets are open, and by itself Python does that each time a quarter more objects are there.
Here what has been looked through once is set aside (`gc.freeze`), and only what came since is looked through; all of it
when nothing is written, or when so much more has come that it must be.

Knows the collector and when to ask it. Knows nothing of what the objects are.
"""

import gc
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

LOOK_S = 0.25
"""How often to look, in seconds. In so much time 120 connections come at 500 a second: 11 ms of looking through."""
NEW = 20_000
"""Objects that have come: fewer are not worth looking through."""
QUIET_SHARE = 0.25
"""By how much more than was left last time, everything is looked through while nothing is written."""
MOST = 2_000_000
"""The same while something is: by so many, or by as many as were left. They take about 300 MB if all are rubbish."""
NEVER = 2**31 - 1


class Collector(Protocol):
    """The functions of the module `gc` that are used here."""

    def get_threshold(self) -> tuple[int, int, int]: ...
    def set_threshold(self, young: int, middle: int, old: int, /) -> None: ...
    def get_count(self) -> tuple[int, int, int]: ...
    def collect(self) -> int: ...
    def freeze(self) -> None: ...
    def unfreeze(self) -> None: ...
    def get_freeze_count(self) -> int: ...


class Rubbish:
    """A context, inside of which `look` has to be called now and then (`LOOK_S`).

    `written()`: a number that changes whenever something has been written to anybody.
    """

    def __init__(self, written: Callable[[], float], collector: Collector = gc) -> None:
        self._written = written
        self._collector = collector
        self._thresholds = collector.get_threshold()
        self._aside = 0
        """At most so many objects are set aside: what goes by itself is not noticed."""
        self._left = 0
        """So many were, when all had been looked through."""
        self._written_before = written()

    def __enter__(self) -> Self:
        young, middle, _ = self._thresholds
        # The young ones stay Python's: that takes microseconds.
        self._collector.set_threshold(young, middle, NEVER)
        self._look_through_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._collector.unfreeze()
        self._collector.set_threshold(*self._thresholds)

    def look(self) -> None:
        written = self._written()
        quiet = written == self._written_before
        self._written_before = written
        young, middle, _ = self._thresholds
        new = self._collector.get_count()[2] * young * middle
        if new >= NEW:
            self._collector.collect()
            self._collector.freeze()
            self._aside += new
        more = max(NEW, QUIET_SHARE * self._left) if quiet else max(MOST, self._left)
        if self._aside - self._left > more:
            self._aside = self._collector.get_freeze_count()
            self._left = min(self._left, self._aside)
            if self._aside - self._left > more:
                self._look_through_all()

    def _look_through_all(self) -> None:
        self._collector.unfreeze()
        self._collector.collect()
        self._collector.freeze()
        self._aside = self._left = self._collector.get_freeze_count()
