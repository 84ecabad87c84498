"""The device: its steps, how long each took, and whose time that was.

Knows steps, what is in them and what that costs. Knows no request's life beyond its name, and nothing of text.

A step's time is shared among its chunks in proportion to what each costs by the coefficients that the server had
learned (`actors/scheduling/costs.py`): a chunk of one token costs as a decode row does, any other its tokens, their
query-key pairs and the context it reads. What a step costs whatever is in it goes to all in the same proportion.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from protocol.kinds import RequestId
from protocol.trace import TraceLine

Chunk = tuple[RequestId, int, int, bool]
"""Of a step: whose, from which position, how many tokens, whether the next token is sampled."""
_TERMS = 6


class DeviceStep:
    """One step that was run. Times are Unix seconds; `at` is when the scheduler had its result."""

    __slots__ = ("at", "began", "chunks", "coefficients", "ended", "number", "planned", "took_s")

    def __init__(
        self,
        number: int,
        planned: float,
        ended: float,
        took_s: float,
        chunks: tuple[Chunk, ...],
        coefficients: tuple[float, ...],
    ) -> None:
        self.number = number
        self.planned = planned
        self.began = ended - took_s
        self.ended = ended
        self.at = ended
        self.took_s = took_s
        self.chunks = chunks
        self.coefficients = coefficients

    def chunk_of(self, request: RequestId) -> Chunk | None:
        return next((chunk for chunk in self.chunks if chunk[0] == request), None)

    def shares(self) -> list[float]:
        """Of its time, from 0 to 1, in the order of its chunks."""
        costs = [_cost(chunk, self.coefficients) for chunk in self.chunks]
        if not sum(costs) > 0:
            costs = [float(chunk[2]) for chunk in self.chunks]
        total = sum(costs)
        return [cost / total for cost in costs] if total > 0 else costs

    def share_of(self, request: RequestId) -> float:
        return sum(share for chunk, share in zip(self.chunks, self.shares(), strict=True) if chunk[0] == request)


def _cost(chunk: Chunk, coefficients: tuple[float, ...]) -> float:
    if len(coefficients) < _TERMS:
        return 0.0
    _, start, tokens, _ = chunk
    _, per_token, per_pair, per_context, per_row, per_row_context = coefficients[:_TERMS]
    if tokens == 1:
        return per_row + per_row_context * start
    pairs = tokens * start + tokens * (tokens + 1) / 2
    return per_token * tokens + per_pair * pairs + per_context * start


@dataclass
class Held:
    """Who had the device in a stretch of time, in seconds that add up to it."""

    span_s: float = 0.0
    steps: list[DeviceStep] = field(default_factory=list)
    prefill: dict[RequestId, float] = field(default_factory=dict)
    decode: dict[RequestId, float] = field(default_factory=dict)
    idle_s: float = 0.0
    """No step was running, and there was a worker."""
    idle: list[tuple[float, float]] = field(default_factory=list)
    """When no step was running."""
    down_s: float = 0.0
    """There was no worker: it was loading, or had been lost."""
    own_s: float = 0.0
    """Of the one who asks."""
    beside_s: float = 0.0
    """Of others, in steps in which the one who asks had a part."""
    without_s: float = 0.0
    """Of others, in steps in which it had none."""

    def add(self, other: "Held") -> None:
        """Together with another stretch that does not overlap."""
        self.span_s += other.span_s
        self.steps += other.steps
        self.idle += other.idle
        for mine, theirs in ((self.prefill, other.prefill), (self.decode, other.decode)):
            for request, seconds in theirs.items():
                mine[request] = mine.get(request, 0.0) + seconds
        self.idle_s += other.idle_s
        self.down_s += other.down_s
        self.own_s += other.own_s
        self.beside_s += other.beside_s
        self.without_s += other.without_s


class Device:
    """All steps of a trace, in order. Calls `ran` with each when the scheduler has its result."""

    def __init__(self, ran: Callable[[DeviceStep], None]) -> None:
        self._ran = ran
        self._planned: dict[int, tuple[float, tuple[Chunk, ...]]] = {}
        self._done: dict[int, DeviceStep] = {}
        """Those whose result the executor has, and the scheduler not yet."""
        self._coefficients: tuple[float, ...] = ()
        self._names: dict[RequestId, RequestId] = {}
        self._ends: list[float] = []
        self.steps: list[DeviceStep] = []
        self.down: list[tuple[float, float]] = []
        self._down_since: float | None = None
        self._restarts = 0

    # --- from lines ---

    def feed(self, line: TraceLine) -> None:
        """Take a line of one of `HEARD`."""
        match line.type:
            case "Step":
                if line.step is not None:
                    names = self._names
                    chunks = tuple(
                        (names.setdefault(request, request), start, tokens, sampled)
                        for request, start, tokens, sampled in line.chunks
                    )
                    self._planned[line.step] = (line.time, chunks)
            case "StepDone":
                self._step_done(line)
            case "StepFailed":
                # It was not run, and whatever was in it comes again.
                self._planned.pop(-1 if line.step is None else line.step, None)
            case "CostsLearned":
                if len(line.coefficients) >= _TERMS:
                    if not self._coefficients:
                        for step in self.steps:
                            step.coefficients = line.coefficients
                    self._coefficients = line.coefficients
            case "WorkerLost":
                self._lose(line.time)
            case "ModelReady":
                if self._down_since is not None:
                    self.down.append((self._down_since, line.time))
                    self._down_since = None

    def begin(self, at: float) -> None:
        """A run begins: its worker is still to load, and steps are counted anew."""
        self._planned.clear()
        self._done.clear()
        if self._down_since is None:
            self._down_since = at

    @property
    def restarts(self) -> int:
        """How often the worker was lost."""
        return self._restarts

    def _step_done(self, line: TraceLine) -> None:
        number = line.step
        if not number:  # 0: the answer of a worker without work that was asked whether it is there
            return
        if line.to == "scheduler":
            step = self._done.pop(number, None) or self._add(line, number)
            step.at = max(step.ended, line.time + line.waited_s)
            # Whose own line was lost: one result after the other comes in.
            for lost in [one for one in self._done.values() if one.ended < step.ended]:
                self._ran(self._done.pop(lost.number))
            self._ran(step)
        else:
            self._done[number] = self._add(line, number)

    def _add(self, line: TraceLine, number: int) -> DeviceStep:
        planned, chunks = self._planned.pop(number, (line.time - (line.took_s or 0.0), ()))
        step = DeviceStep(number, planned, line.time, line.took_s or 0.0, chunks, self._coefficients)
        # The device runs one after the other: what was measured late does not reach into the step before.
        step.began = min(step.ended, max(step.began, self._ends[-1] if self._ends else step.began))
        self._down_since = None
        self.steps.append(step)
        self._ends.append(step.ended)
        return step

    def _lose(self, at: float) -> None:
        if self._down_since is not None or any(since <= at <= to for since, to in self.down):
            return
        self._restarts += 1
        # A step that was never answered was no step: the worker had hung, or died of it.
        since = min([at, *(planned for planned, _ in self._planned.values())])
        # One that was planned behind another cannot have begun before that one had ended.
        self._down_since = max(since, self._ends[-1]) if self._ends else since
        self._planned.clear()
        self._done.clear()

    def finish(self, at: float) -> None:
        """The trace ends: a step that is still running has run until now."""
        for number, (planned, chunks) in list(self._planned.items()):
            began = max(planned, self._ends[-1] if self._ends else planned)
            if at > began:
                self.steps.append(DeviceStep(number, planned, at, at - began, chunks, self._coefficients))
                self._ends.append(at)
        self._planned.clear()
        if self._down_since is not None:
            self.down.append((self._down_since, at))
            self._down_since = None

    def forget(self, before: float) -> None:
        """Drop the steps that had ended by then: nobody will ask."""
        count = bisect_right(self._ends, before)
        if count > 1024:
            del self.steps[:count], self._ends[:count]
            kept = {chunk[0] for step in self.steps for chunk in step.chunks}
            self._names = {name: name for name in kept}
            self.down = [(began, ended) for began, ended in self.down if ended > before]

    # --- asked ---

    def between(self, began: float, ended: float) -> Iterator[tuple[DeviceStep, float]]:
        """The steps that ran then, each with how many seconds of it fell into the stretch."""
        for index in range(bisect_right(self._ends, began), len(self.steps)):
            step = self.steps[index]
            if step.began >= ended:
                return
            overlap = min(step.ended, ended) - max(step.began, began)
            if overlap > 0:
                yield step, overlap

    def held(self, began: float, ended: float, request: RequestId = "") -> Held:
        """Who had the device from `began` to `ended`, as seen by `request`."""
        held = Held(span_s=max(0.0, ended - began))
        busy_s, since = 0.0, began
        for step, overlap in self.between(began, ended):
            if step.began > since:
                held.idle.append((since, step.began))
            since = min(ended, step.ended)
            held.steps.append(step)
            busy_s += overlap
            shares = step.shares()
            own_s = 0.0
            for (whose, _, tokens, _), share in zip(step.chunks, shares, strict=True):
                seconds = overlap * share
                if whose == request:
                    own_s += seconds
                else:
                    into = held.decode if tokens == 1 else held.prefill
                    into[whose] = into.get(whose, 0.0) + seconds
            held.own_s += own_s
            if any(chunk[0] == request for chunk in step.chunks):
                held.beside_s += overlap - own_s
            else:
                held.without_s += overlap
        if ended > since:
            held.idle.append((since, ended))
        lost = [*self.down, *([(self._down_since, ended)] if self._down_since is not None else [])]
        held.down_s = sum(max(0.0, min(to, ended) - max(since, began)) for since, to in lost)
        held.down_s = min(held.down_s, max(0.0, held.span_s - busy_s))
        held.idle_s = max(0.0, held.span_s - busy_s - held.down_s)
        return held


HEARD = frozenset({"Step", "StepDone", "StepFailed", "CostsLearned", "WorkerLost", "ModelReady"})
"""The types of lines that `Device.feed` takes."""
