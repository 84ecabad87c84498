"""The steps in flight: what each touches until its result is in, and when the device is through with them.

Knows steps as they were planned and what they are predicted to take. Knows no policy and no results.
"""

from collections.abc import Iterator

from msgspec import Struct

from actors.scheduling.costs import Costs
from actors.scheduling.filling import Part
from actors.scheduling.sequence import Sequence
from protocol.messages import Work


class InFlight(Struct):
    """A planned step whose result is not in: what it touches, so that nothing of it is reused before."""

    parts: list[Part]
    work: Work
    begins_at: float
    """When it was planned, or when the step before it ended if that was later. Before the end: as predicted."""
    doomed: bool = False
    """Whether a step that it was planned behind has failed, so that it will too."""

    @property
    def tokens(self) -> int:
        return self.work.prefill_tokens + self.work.decode_rows


class Flight:
    """All steps in flight, in order. The device runs one at a time."""

    def __init__(self) -> None:
        self._steps: dict[int, InFlight] = {}
        self._doomed = 0

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[InFlight]:
        return iter(self._steps.values())

    @property
    def newest(self) -> int:
        """Number of the newest step, 0 when there is none."""
        return next(reversed(self._steps), 0)

    @property
    def doomed(self) -> bool:
        """Whether what is in flight will fail: nothing can be planned behind it."""
        return self._doomed > 0

    def ends_at(self, costs: Costs, now: float) -> float:
        """When all of them are predicted to have ended: `now` when there are none."""
        ends_at = now
        for place, step in enumerate(self._steps.values()):
            begins_at = ends_at if place else step.begins_at
            ends_at = max(now, begins_at + costs.step_s(step.work) + costs.overhead_s)
        return ends_at

    def begin(self, number: int, step: InFlight) -> None:
        self._steps[number] = step

    def end(self, number: int, now: float) -> InFlight | None:
        """Its result is in: the next one begins. None when it is not in flight, as its worker was lost."""
        step = self._steps.pop(number, None)
        if step is not None:
            self._doomed -= step.doomed
            following = next(iter(self._steps.values()), None)
            if following is not None:
                following.begins_at = now
        return step

    def doom(self) -> None:
        """One has failed: so will all that were planned behind it."""
        for step in self._steps.values():
            step.doomed = True
        self._doomed = len(self._steps)

    def forget(self) -> list[Sequence]:
        """Let go of everything: those that had ended and are free only now."""
        released = [one for step in self._steps.values() for one in let_go(step)]
        self._steps.clear()
        self._doomed = 0
        return released


def let_go(step: InFlight) -> list[Sequence]:
    """It was not run, and nothing of it counts. Those that had ended and that no other step touches."""
    released = []
    for sequence, table, tokens, chosen in step.parts:
        table.drop()
        sequence.leave_step(tokens, chosen)
        if sequence.reason is not None and not sequence.steps_in_flight:
            released.append(sequence)
    return released
