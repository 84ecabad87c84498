"""Which steps are shown, and whose time each was.

Plain code: knows steps, what is in them and what that costs. Knows no request but by its name and number, no clock and
no watcher. A step's time is shared among its parts in proportion to what each costs by the coefficients that the
scheduler has learned (`scheduling/costs.py`); what a step costs whatever is in it goes to all in the same proportion.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec import Struct

from actors.gallery_taps import HeardDone, HeardFailed, HeardStep
from actors.scheduling.costs import Costs
from protocol.messages import RequestId
from protocol.turns import Kind, Part, TurnStep

MOST_STEPS = 40
"""In a frame; eight frames a second, on a page that is some thousand pixels wide and shows a minute."""
MOST_PARTS = 512
"""In all the steps of a frame: what keeps a frame of full steps within a millisecond or two of work."""
MOST_PARTS_OF_ONE = 64
"""In one step. Of more than that the smallest are put together, under the number of nobody."""
NOBODY = 0
"""The number of those who are not told apart."""
_KEPT = 4 * MOST_STEPS

Drawn = Callable[[RequestId], tuple[int, int] | None]
"""The number of a request that a shown step has a part of, and the length of its prompt, if it is known."""
_Shown = tuple[float, int, Kind, int, int]
"""What it costs, whose it is, its kind, from which position, how many tokens."""
_took = attrgetter("took_s")


class RunStep(Struct, frozen=True, gc=False):
    """`began`: on the engine's clock."""

    began: float
    took_s: float
    heard: HeardStep

    @property
    def parts(self) -> int:
        return len(self.heard.requests)


class Steps:
    """From steps that begin and end to what a frame shows of them: of too many, those that took longest."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[float, HeardStep]] = {}
        self._run: list[RunStep] = []
        self._free_at = 0.0
        """When the last step that was run ended: the device runs one at a time."""
        self._left_out = 0
        self._left_out_s = 0.0

    def begin(self, step: HeardStep, at: float) -> None:
        self._running[step.step] = (at, step)

    def fail(self, failed: HeardFailed) -> None:
        """It was not run."""
        self._running.pop(failed.step, None)

    def end(self, done: HeardDone, at: float) -> None:
        """One whose beginning nobody has heard is not shown."""
        begun = self._running.pop(done.step, None)
        # Of an earlier one the end was not heard: there is no room for everything.
        for earlier in [number for number in self._running if number < done.step]:
            del self._running[earlier]
        if begun is not None:
            began, step = begun
            if step.behind:
                # It waited for the one before. Its result is heard a little late, and so was that one's.
                began = max(began, self._free_at, at - done.took_s)
            self._free_at = began + done.took_s
            self._run.append(RunStep(began, done.took_s, step))
            if len(self._run) >= _KEPT:
                self._thin(MOST_STEPS)

    def lose(self) -> None:
        """The worker is gone: what it had begun will not end."""
        self._running.clear()

    def take(
        self, coefficients: Sequence[float], drawn: Drawn, unix_s: float
    ) -> tuple[tuple[TurnStep, ...], tuple[int, float]]:
        """Those that were run since the last time, oldest first; how many are not among them, and their milliseconds.

        `unix_s` is what makes Unix times of the engine's.
        """
        self._thin(MOST_STEPS, MOST_PARTS)
        costs = Costs(coefficients=coefficients) if coefficients else Costs()
        steps = tuple(_shown(one, costs, drawn, unix_s) for one in self._run)
        left_out = (self._left_out, round(self._left_out_s * 1e3, 3))
        self._run, self._left_out, self._left_out_s = [], 0, 0.0
        return steps, left_out

    def _thin(self, most: int, most_parts: int | None = None) -> None:
        """Leave out the shortest."""
        longest = sorted(self._run, key=_took, reverse=True)
        kept, parts = longest[:most], 0
        if most_parts is not None:
            for place, one in enumerate(kept):
                parts += min(one.parts, MOST_PARTS_OF_ONE)
                if parts > most_parts:
                    kept = kept[: max(1, place)]
                    break
        out = longest[len(kept) :]
        if out:
            self._left_out += len(out)
            self._left_out_s += sum(map(_took, out))
            kept.sort(key=attrgetter("began", "heard.step"))
            self._run = kept


def _shown(run: RunStep, costs: Costs, drawn: Drawn, unix_s: float) -> TurnStep:
    took_ms = round(run.took_s * 1e3, 3)
    return TurnStep(run.heard.step, round(run.began + unix_s, 6), took_ms, parts(run.heard, took_ms, costs, drawn))


def parts(step: HeardStep, took_ms: float, costs: Costs, drawn: Drawn) -> tuple[Part, ...]:
    """Whose each part of a step is, and its share. The shares add up to `took_ms`."""
    # Written out: this is most of what a frame of many rows takes to make.
    row, row_context = costs.coefficients[4:]
    shown: list[_Shown] = []
    for request, start, count in zip(step.requests, step.starts, step.counts, strict=True):
        number, prompt = drawn(request) or (NOBODY, 0)
        if count > 1:
            shown.append((costs.chunk_s(start, count), number, "prefill", start, count))
        else:
            # It costs as a row does, and may be the last of a prompt all the same.
            shown.append((row + row_context * start, number, "decode" if start >= prompt else "prefill", start, 1))
    whole = sum([one[0] for one in shown])
    if not whole > 0:
        shown = [(float(count), number, kind, start, count) for _, number, kind, start, count in shown]
        whole = sum([one[0] for one in shown])
    if len(shown) > MOST_PARTS_OF_ONE:
        shown = _together(shown)
    took_us = took_ms * 1e3
    shares_us = [int(took_us * one[0] / whole) for one in shown]
    if shares_us:
        # What rounding has taken is the largest one's.
        shares_us[shares_us.index(max(shares_us))] += round(took_us) - sum(shares_us)
    return tuple(
        [
            Part(number, kind, start, count, share_us / 1e3)
            for (_, number, kind, start, count), share_us in zip(shown, shares_us, strict=True)
        ]
    )


def _together(shown: list[_Shown]) -> list[_Shown]:
    """As many as are shown, the smallest of each kind as one."""
    by_size = sorted(range(len(shown)), key=lambda place: shown[place][0], reverse=True)
    apart = sorted(by_size[: MOST_PARTS_OF_ONE - 2])
    rest = [shown[place] for place in by_size[MOST_PARTS_OF_ONE - 2 :]]
    merged: list[_Shown] = []
    kinds: tuple[Kind, ...] = ("prefill", "decode")
    for kind in kinds:
        of_kind = [one for one in rest if one[2] == kind]
        if of_kind:
            merged.append((sum(one[0] for one in of_kind), NOBODY, kind, 0, sum(one[4] for one in of_kind)))
    return [shown[place] for place in apart] + merged
