"""Admitted sequences that hold no blocks, in the two orders in which they are asked for.

Knows arrival and first-token deadlines. Knows no memory and no policy.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice

from actors.scheduling.sequence import Sequence


def _by_deadline(one: Sequence) -> tuple[float, int]:
    return one.first_token_due, one.order


def _due(one: Sequence) -> float:
    return one.first_token_due


def _by_arrival(one: Sequence) -> int:
    return one.order


class Waiting:
    """Kept in order at every change, so that planning a step looks only at the few it needs."""

    def __init__(self) -> None:
        self._arrival: list[Sequence] = []
        self._deadline: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._arrival)

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, by arrival."""
        return iter(self._arrival)

    def add(self, one: Sequence) -> None:
        insort(self._arrival, one, key=_by_arrival)
        insort(self._deadline, one, key=_by_deadline)

    def remove(self, one: Sequence) -> None:
        """Raises ValueError when it is not here."""
        for held, key in ((self._arrival, _by_arrival), (self._deadline, _by_deadline)):
            place = bisect_left(held, key(one), key=key)
            if place == len(held) or held[place] is not one:
                raise ValueError(f"{one.request} does not wait")
            del held[place]

    def by_arrival(self) -> Iterator[Sequence]:
        """Those that may run, first come first."""
        return (one for one in self._arrival if not one.paused)

    def due_by(self, moment: float, most: int) -> list[Sequence]:
        """At most `most` of those that may run and whose first token was due before `moment`, longest ago first."""
        end = bisect_right(self._deadline, moment, key=_due)
        return list(islice((one for one in islice(self._deadline, end) if not one.paused), most))

    def due_after(self, moment: float, most: int) -> list[Sequence]:
        """At most `most` of those that may run and whose first token is due after `moment`, soonest first."""
        found: list[Sequence] = []
        for place in range(bisect_right(self._deadline, moment, key=_due), len(self._deadline)):
            if len(found) == most:
                break
            if not self._deadline[place].paused:
                found.append(self._deadline[place])
        return found
