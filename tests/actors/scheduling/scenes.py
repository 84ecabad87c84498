"""A schedule that is stepped by hand, on a device that checks every step."""

from actors.scheduling.blocks import BlockPool
from actors.scheduling.policies import PolicyName, policy_named
from actors.scheduling.schedule import Outcome, Schedule
from actors.scheduling.sequence import Sequence
from protocol.messages import SampledToken, Step, StepDone
from tests.actors.recorders import enqueue, tokens_in
from tests.actors.scheduling.device import Device, sampled


class Scene:
    """One step at a time; no time passes."""

    def __init__(
        self,
        blocks: int,
        policy: PolicyName = "fixed_chunk",
        *,
        block_size: int = 4,
        chunk: int = 64,
        step_tokens: int = 64,
        step_rows: int = 64,
    ) -> None:
        self.schedule = Schedule(BlockPool(blocks, block_size), policy_named(policy, chunk), step_tokens, step_rows)
        self.device = Device(block_size)
        self.outcomes: list[Outcome] = []
        self.computed = 0
        """Tokens that were run, those that were run again among them."""
        self.wasted = 0
        """Rows whose tokens nobody took."""
        self.last: Step | None = None

    def add(
        self, name: str, prompt: int | list[int], output: int, tenant: str = "", end_tokens: tuple[int, ...] = ()
    ) -> Sequence:
        """A prompt of so many tokens is like no other."""
        if isinstance(prompt, int):
            start = 1000 * (1 + len(self.device.histories))
            prompt = list(range(start, start + prompt))
        request = enqueue(
            name,
            prompt,
            tenant=tenant,
            max_output_tokens=output,
            end_tokens=end_tokens,
            received_at=float(len(self.device.histories)),
        )
        self.device.histories[name] = list(prompt)
        self.device.tenants[name] = tenant
        return self.schedule.add(request, 0.0)

    def pause(self, *sequences: Sequence) -> None:
        for one in sequences:
            self.schedule.set_paused(one, True, 0.0)

    def resume(self, *sequences: Sequence) -> None:
        for one in sequences:
            self.schedule.set_paused(one, False, 0.0)

    def plan(self) -> list[str]:
        """Names of those in the next step; it is left in flight."""
        step = self.schedule.plan(0.0)
        self.schedule.audit()
        if step is None:
            return []
        self.device.begin(step)
        self.last = step
        self.computed += sum(len(tokens_in(chunk.tokens)) for chunk in step.chunks)
        return [chunk.request for chunk in step.chunks]

    def complete(self, token: int = 7) -> Outcome:
        """The oldest step has ended; everybody gets `token`."""
        step = self.device.end()
        count = len(sampled(step))
        outcome = self.schedule.complete(StepDone(step.step, (SampledToken(token),) * count, 0.01), 0.0)
        for row in outcome.rows:
            self.device.histories[row.request].append(row.token.token)
        self.wasted += count - len(outcome.rows)
        self.device.chose([token] * count)
        self.schedule.audit()
        self.outcomes.append(outcome)
        return outcome

    def step(self) -> list[str]:
        names = self.plan()
        if names:
            self.complete()
        return names

    def run(self) -> list[str]:
        """To the end. Who ended, in order."""
        while len(self.schedule):
            assert self.step(), "nothing runs though something is here"
        return [one.request for outcome in self.outcomes for one in outcome.ended]
