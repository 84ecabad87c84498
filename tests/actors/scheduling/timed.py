"""A schedule in virtual time, on a device whose steps take exactly what they cost."""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import Costs, work_of
from actors.scheduling.policy import Policy
from actors.scheduling.schedule import Schedule
from actors.scheduling.sequence import Sequence
from protocol.messages import SampledToken, Step, StepDone
from tests.actors.recorders import enqueue


class Run:
    """Steps one after another. Costs are known from the start, and stay what they are.

    `flood` is asked before every step who comes now: it calls `add`. `margin` 1: every step ends when predicted.
    """

    def __init__(
        self,
        policy: Policy,
        coefficients: tuple[float, ...],
        *,
        blocks: int = 100_000,
        block_size: int = 16,
        step_tokens: int = 1024,
        step_rows: int = 256,
        margin: float = 1.0,
    ) -> None:
        self.costs = Costs(coefficients=coefficients)
        self.costs.margin = margin
        self.schedule = Schedule(BlockPool(blocks, block_size), policy, step_tokens, step_rows, costs=self.costs)
        self.now = 0.0
        self.steps = 0
        self.came = 0
        self.last: Step | None = None
        self.flood: Callable[[], None] = lambda: None
        self.due: dict[str, float] = {}
        self.token_times: dict[str, list[float]] = defaultdict(list)
        self.ended_at: dict[str, float] = {}
        self._came_at: float | None = None
        self._later: list[tuple[float, int, Callable[[], object]]] = []

    def add(
        self,
        prompt: int,
        output: int = 1,
        ttft_target_s: float = math.inf,
        itl_target_s: float = math.inf,
        name: str | None = None,
    ) -> Sequence:
        """It comes now, or came while the last step ran. Its prompt is like no other."""
        self.came += 1
        request = enqueue(
            name or f"r{self.came}",
            range(self.came * 10_000, self.came * 10_000 + prompt),
            max_output_tokens=output,
            received_at=self.now if self._came_at is None else self._came_at,
            ttft_target_s=ttft_target_s,
            itl_target_s=itl_target_s,
        )
        one = self.schedule.add(request, self.now)
        self.due[one.request] = one.first_token_due
        return one

    def at(self, moment: float, come: Callable[[], object]) -> None:
        """`come` is called before the first step that is planned after `moment`."""
        heapq.heappush(self._later, (moment, len(self._later) + self.steps, come))

    def step(self) -> Step | None:
        while self._later and (self._later[0][0] <= self.now or not len(self.schedule)):
            moment, _, come = heapq.heappop(self._later)
            self.now = max(self.now, moment)
            self._came_at = moment
            come()
            self._came_at = None
        self.flood()
        self.last = step = self.schedule.plan(self.now)
        if step is None:
            return None
        took_s = self.costs.step_s(work_of(step.chunks))
        self.now += took_s
        self.steps += 1
        margin = self.costs.margin
        count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
        outcome = self.schedule.complete(StepDone(step.step, (SampledToken(7),) * count, 0.0), self.now)
        assert self.costs.margin == margin, "nothing was learned"
        for row in outcome.rows:
            self.token_times[row.request].append(self.now)
        for one in outcome.ended:
            self.ended_at[one.request] = self.now
        return step

    def until(self, done: Callable[[], bool], most_steps: int) -> None:
        """Raises AssertionError when it is not `done` after so many more steps, or nothing runs."""
        last = self.steps + most_steps
        while not done():
            assert self.step() is not None, "nothing runs"
            assert self.steps <= last, f"not done after {most_steps} steps"

    def sizes(self) -> dict[str, int]:
        """Who is in the last step, with how many tokens."""
        return {} if self.last is None else {each.request: len(each.tokens) // 4 for each in self.last.chunks}

    def gaps(self, request: str) -> list[float]:
        """From one token of its answer to the next."""
        times = self.token_times[request]
        return [after - before for before, after in pairwise(times)]
