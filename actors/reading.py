"""Whose bytes are read next, and how long all of them together are read in one turn of the event loop.

Knows who has something to read and when each was read last. Knows no sockets and no frames: what reading is, each says.
"""

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol
from weakref import WeakKeyDictionary

CallSoon = Callable[[Callable[[], None]], object]

TURN_S = 0.004
"""For reading, of one turn of the loop. The last piece may exceed it."""


class Unread(Protocol):
    """Somebody who has brought more than has been read."""

    read_at: float
    """When it was read last, 0 if never. Not to be changed from outside."""

    @property
    def burden_s(self) -> float:
        """By how much later than now it counts as read, for the part that has been read of what it brings, and what
        that will cost: 0 where nothing has been. Bounded."""
        ...

    def read_some(self) -> bool:
        """Read a bounded piece. Returns whether there is more that can be read now."""
        ...


class Reading:
    """Whoever was read longest ago is next, so that one who says little does not wait behind those who say much, be it
    often or at once (`burden_s`).

    However many there are, they share `TURN_S`. `call_soon(work)` has it done in the next turn of the loop.
    """

    def __init__(self, call_soon: CallSoon, clock: Callable[[], float] = time.perf_counter) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._waiting: list[tuple[float, int, Unread]] = []
        self._numbers = count()
        self._left_s = TURN_S
        self._turn_comes = False

    def wait(self, place: Unread) -> None:
        """It has something to be read in another turn. Each may wait once."""
        burden_s = place.burden_s
        counts_as_read_at = self._clock() + burden_s if burden_s else place.read_at
        heappush(self._waiting, (counts_as_read_at, next(self._numbers), place))
        self._look_for_a_turn()

    def come(self, place: Unread) -> None:
        """It has something to be read, now if there is time left. Each may wait once."""
        self.wait(place)
        self._go_on()

    def spend(self, seconds: float) -> None:
        """What is read now will take so long elsewhere in this turn."""
        self._left_s -= seconds

    def _go_on(self) -> None:
        try:
            while self._waiting and self._left_s > 0:
                _, _, place = heappop(self._waiting)
                began = self._clock()
                more = place.read_some()
                place.read_at = self._clock()
                self._left_s -= place.read_at - began
                if more:
                    self.wait(place)
        finally:
            if self._waiting:
                self._look_for_a_turn()

    def _look_for_a_turn(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_comes = False
        self._left_s = TURN_S
        self._go_on()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Reading] = WeakKeyDictionary()


def reading_of(loop: asyncio.AbstractEventLoop) -> Reading:
    """The one that all sockets of this loop share."""
    reading = _of_loops.get(loop)
    if reading is None:
        # Not the loop's own method, by which it would be kept for ever.
        reading = _of_loops[loop] = Reading(lambda work: asyncio.get_running_loop().call_soon(work))
    return reading
