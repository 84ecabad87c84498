"""The gallery's taps: what of all that actors say to one another it hears, and until when that waits for it.

Knows which messages are of interest, at whose mailbox each is heard (every thing once), and what is kept of it. Knows
nothing of what they mean. Shut, which is as long as nobody watches, nothing is kept.

Of what holds a row for every request only numbers and names are kept. Thousands of rows that outlive their handling
would have the garbage collector look at all there is, again and again: that costs many times what the rest does.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from actors.actor import SHUT, Clock, Tap
from protocol.messages import (
    Ended,
    Enqueue,
    Refused,
    Released,
    RequestId,
    Started,
    Step,
    StepDone,
    StepFailed,
    Tokens,
    WorkerLost,
)

MOST_HEARD = 8_192
"""That wait for the gallery, which comes eight times a second. A step of 64 rows holds some 2 KB."""


class HeardStep(Struct, frozen=True, gc=False):
    """A `Step`: of each chunk whose it is, from which position, and how many tokens. `behind`: as the step has it."""

    step: int
    requests: tuple[RequestId, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    behind: int = 0


class HeardDone(Struct, frozen=True, gc=False):
    """A `StepDone`."""

    step: int
    took_s: float


class HeardFailed(Struct, frozen=True, gc=False):
    """A `StepFailed`."""

    step: int


class HeardTokens(Struct, frozen=True, gc=False):
    """`Tokens`: whose, and when the step's result was there."""

    at: float
    requests: tuple[RequestId, ...]


class Anew(Struct, frozen=True, gc=False):
    """Heard of the engine itself: admission, scheduler and executor have started anew, and all they held is gone."""


def _step(step: Step) -> HeardStep:
    chunks = step.chunks
    return HeardStep(
        step.step,
        tuple([chunk.request for chunk in chunks]),
        tuple([chunk.start for chunk in chunks]),
        tuple([len(chunk.tokens) // 4 for chunk in chunks]),
        step.behind,
    )


def _as_it_is(message: Any) -> Any:
    return message


HEARD: dict[str, Mapping[type, Callable[[Any], Any]]] = {
    "admission": {Enqueue: _as_it_is},
    "scheduler": {
        StepDone: lambda done: HeardDone(done.step, done.took_s),
        StepFailed: lambda failed: HeardFailed(failed.step),
        WorkerLost: _as_it_is,
    },
    "executor": {Step: _step},
    "detokeniser": {Tokens: lambda tokens: HeardTokens(tokens.at, tuple([row.request for row in tokens.rows]))},
    "connection": {Refused: _as_it_is, Started: _as_it_is, Ended: _as_it_is},
    "reaper": {Released: _as_it_is},
}
"""By actor, what of its messages is kept."""


class _Ear(Tap):
    __slots__ = ("_kept", "_taps")

    def __init__(self, taps: "Taps", kept: Mapping[type, Callable[[Any], Any]]) -> None:
        super().__init__()
        self._taps = taps
        self._kept = kept

    def hear(self, message: object) -> None:
        kept = self._kept.get(type(message))
        if kept is not None:
            self._taps.keep(kept(message))


class Taps:
    """One at each kind of actor. What is heard is kept with the time; of more than `most` the rest is only counted."""

    def __init__(self, clock: Clock, most: int = MOST_HEARD) -> None:
        self._clock = clock
        self._most = most
        self._heard: deque[tuple[float, Any]] = deque()
        self._ears = {name: _Ear(self, kept) for name, kept in HEARD.items()}
        self.is_open = False
        self.lost = 0
        """Messages that found no room, since it was opened."""

    def at(self, name: str) -> Tap:
        """The tap at the mailbox of that name: `scheduler`, `connection 12`."""
        return self._ears.get(name.partition(" ")[0], SHUT)

    def open(self) -> None:
        self._turn(True)

    def shut(self) -> None:
        self.lost = 0
        self._turn(False)
        self._heard.clear()

    def _turn(self, is_open: bool) -> None:
        self.is_open = is_open
        for ear in self._ears.values():
            ear.open = is_open

    def start_anew(self) -> None:
        """Said by the engine between the last message of the old three and the first of the new."""
        if self.is_open:
            self.keep(Anew())

    def keep(self, heard: object) -> None:
        if len(self._heard) < self._most:
            self._heard.append((self._clock(), heard))
        else:
            self.lost += 1

    def take(self) -> list[tuple[float, Any]]:
        """All that was heard since the last time, oldest first."""
        heard = list(self._heard)
        self._heard.clear()
        return heard
