"""Any order of arrivals, ends, pauses, steps, refused steps and lost workers, under every policy: nothing is lost, all
get on, and no more rows are wasted than were in flight."""

from collections import Counter
from typing import ClassVar, Literal

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import Costs, work_of
from actors.scheduling.policies import PolicyName, policy_named
from actors.scheduling.schedule import Outcome, Schedule
from actors.scheduling.sequence import Sequence
from protocol.messages import Chunk, Credit, FinishReason, Measured, SampledToken, Step, StepDone, Work
from tests.actors.recorders import enqueue, tokens_in
from tests.actors.scheduling.device import Device, sampled

END = 0
TRUTH = Costs(coefficients=(0.02, 0.01, 1e-4, 1e-4, 0.02, 1e-4))
"""What steps take here: of the order of the shortest targets, so that not everything can be in time."""
WORKS = [
    Work(tokens, tokens * start + tokens * (tokens + 1) // 2, start, rows, rows * context)
    for tokens, start in ((0, 0), (2, 0), (6, 0), (12, 8))
    for rows, context in ((0, 0), (1, 4), (4, 20))
]
CALIBRATION = [Measured(work, TRUTH.step_s(work)) for work in WORKS]
TTFT_TARGETS_S = (0.05, 0.5, 5.0, float("inf"))
ITL_TARGETS_S = (0.01, 0.06, 0.2, float("inf"))


class Requests(RuleBasedStateMachine):
    """The real schedule beside a plain account of what should be. What steps take is known, or learned, or neither."""

    policy: ClassVar[PolicyName]

    @initialize(
        blocks=st.integers(2, 10),
        block_size=st.integers(1, 4),
        chunk=st.integers(1, 9),
        step_tokens=st.integers(1, 12),
        step_rows=st.integers(1, 4),
        steps_ahead=st.integers(1, 2),
        costs=st.sampled_from(["unknown", "calibrated", "learned"]),
        by_credit=st.booleans(),
    )
    def engine(
        self,
        blocks: int,
        block_size: int,
        chunk: int,
        step_tokens: int,
        step_rows: int,
        steps_ahead: int,
        costs: Literal["unknown", "calibrated", "learned"],
        by_credit: bool,
    ) -> None:
        self.blocks = blocks
        self.max_context = blocks * block_size
        self.step_tokens = step_tokens
        self.step_rows = step_rows
        self.chunk = chunk
        self.steps_ahead = steps_ahead
        self.learns = costs != "unknown"
        self.by_credit = by_credit
        self.schedule = Schedule(
            BlockPool(blocks, block_size),
            policy_named(self.policy, chunk),
            step_tokens,
            step_rows,
            costs=Costs(CALIBRATION) if costs == "calibrated" else Costs(),
        )
        self.device = Device(block_size)
        self.now = 100.0
        self.arrived = 0
        self.arrived_tokens = 0
        self.credit = Credit(0, 0)
        self.alive: dict[str, Sequence] = {}
        self.touched: set[str] = set()
        """Those that have ended while a step in flight touched them."""
        self.finished: dict[str, FinishReason] = {}
        self.released: set[str] = set()
        self.started: set[str] = set()
        self.cached: dict[str, int] = {}
        """How much of its prompt each found in the cache when it started."""
        self.workers = 1
        self.stale: StepDone | None = None
        self.wasted: Counter[str] = Counter()
        self.refused = False
        """Whether the last step found no memory, so that those planned behind it will find none either."""

    # --- rules ---

    @precondition(lambda self: not self.by_credit or self.may_come)
    @rule(
        data=st.data(),
        prompt=st.integers(1, 12),
        output=st.integers(0, 12),
        ttft_target_s=st.sampled_from(TTFT_TARGETS_S),
        itl_target_s=st.sampled_from(ITL_TARGETS_S),
    )
    def arrive(self, data: st.DataObject, prompt: int, output: int, ttft_target_s: float, itl_target_s: float) -> None:
        """Often with a beginning that another had: the same prompt, or the next turn."""
        tokens = data.draw(st.sampled_from([[], *map(list, self.device.histories.values())]))
        tokens += data.draw(st.lists(st.integers(1, 2), min_size=prompt, max_size=prompt))
        tokens = tokens[: min(12, self.max_context)]
        self.arrived += 1
        self.arrived_tokens += len(tokens)
        name = f"r{self.arrived}"
        self.device.tenants[name] = tenant = data.draw(st.sampled_from("ttu"))
        request = enqueue(
            name,
            tokens,
            tenant=tenant,
            max_output_tokens=min(output, self.max_context - len(tokens)),
            end_tokens=(END,),
            received_at=self.now,
            ttft_target_s=ttft_target_s,
            itl_target_s=itl_target_s,
        )
        self.alive[name] = self.schedule.add(request, self.now)
        self.device.histories[name] = tokens

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.device.in_flight) < self.steps_ahead)
    @rule()
    def plan(self) -> None:
        runnable = [name for name, one in self.alive.items() if not one.paused and self.has_more(one)]
        ahead = len(self.device.in_flight)
        bounds = self.schedule.bounds
        line = [one for one in self.schedule.sequences if one.waiting and not one.paused]
        before = {name: one.preemptions for name, one in self.alive.items()}
        step = self.schedule.plan(self.now)
        chunks = step.chunks if step is not None else ()
        names = [chunk.request for chunk in chunks]
        sizes = [len(tokens_in(chunk.tokens)) for chunk in chunks]
        assert len(set(names)) == len(names)
        assert set(names) <= set(runnable), "paused and ended ones are left alone, and whoever has nothing to run"
        assert sum(sizes) <= bounds.tokens <= self.step_tokens
        assert len(chunks) <= bounds.rows <= self.step_rows
        assert not (chunks and self.refused), "it would fail too"
        if self.policy in ("slack", "fixed_chunk"):
            assert sum(size for size in sizes if size > 1) <= self.chunk
        if self.policy != "slack":
            line.sort(key=lambda one: one.order)
            came_in = [one.request in names for one in line]
            assert came_in == sorted(came_in, reverse=True), "somebody overtook the first who waits"
        self.check_who_gave_way(before)
        if step is None:
            if not ahead:
                assert not runnable, "nothing runs though something could"
            return
        for chunk in chunks:
            self.check_choice(chunk)
            for block in self.device.written(chunk):
                assert self.schedule.pool.references(block) == 1, "a shared block is written"
            if chunk.request not in self.started:
                assert chunk.start % self.device.block_size == 0, "only full blocks are taken up"
                self.cached[chunk.request] = chunk.start
        self.started.update(names)
        self.device.begin(step)

    def has_more(self, one: Sequence) -> bool:
        """Whether any of its tokens is in no step yet: those of its history, or the one that the last step chooses."""
        chunks = [chunk for step in self.device.in_flight for chunk in step.chunks if chunk.request == one.request]
        history = self.device.histories[one.request]
        if chunks and chunks[-1].sampling is not None:
            expected = sum(chunk.sampling is not None for chunk in chunks)
            return len(history) - one.prompt_tokens + expected < one.max_output_tokens
        if chunks:
            return chunks[-1].start + len(tokens_in(chunks[-1].tokens)) < len(history)
        return True

    def check_choice(self, chunk: Chunk) -> None:
        one = self.alive[chunk.request]
        newest = chunk.start + len(tokens_in(chunk.tokens)) >= len(self.device.histories[chunk.request])
        assert (chunk.sampling is not None) == (newest and one.max_output_tokens > 0)

    def check_who_gave_way(self, before: dict[str, int]) -> None:
        """`before`: how often each had been preempted."""
        gave_way = [one for name, one in self.alive.items() if one.preemptions > before[name] and not one.paused]
        for one in gave_way:
            for other in self.alive.values():
                if not other.waiting and not other.steps_in_flight:
                    assert not other.paused, "a paused one kept its memory, and one that was not lost it"
                    assert other.order < one.order, "the earlier one gave way"

    @precondition(lambda self: self.device.in_flight and not self.refused)
    @rule(data=st.data(), noise=st.sampled_from([0.5, 0.9, 1.0, 1.0, 1.1, 5.0]))
    def complete(self, data: st.DataObject, noise: float) -> None:
        step = self.device.end()
        count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
        chosen = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
        self.finish_step(step, chosen, noise)

    def finish_step(self, step: Step, chosen: list[int], noise: float = 1.0) -> Outcome:
        took_s = noise * TRUTH.step_s(work_of(step.chunks))
        self.now += took_s
        tokens = tuple(SampledToken(token) for token in chosen)
        outcome = self.schedule.complete(StepDone(step.step, tokens, took_s if self.learns else 0.0), self.now)
        expected = [(name, token) for name, token in zip(sampled(step), chosen, strict=True) if name in self.alive]
        assert [(row.request, row.token.token) for row in outcome.rows] == expected, "a token for everyone still here"
        self.wasted.update(name for name in sampled(step) if name not in self.alive)
        for row in outcome.rows:
            history, one = self.device.histories[row.request], self.alive[row.request]
            history.append(row.token.token)
            assert one.tokens.tolist() == history
            full = len(history) - one.prompt_tokens == one.max_output_tokens
            assert row.last == (full or row.token.token == END)
        self.device.chose(chosen)
        for one in outcome.ended:
            assert one.reason is not None
            self.finish(one, one.reason)
        ending = {row.request for row in outcome.rows if row.last}
        prefilled = {one.request for one in outcome.ended if one.reason == "prefilled"}
        assert {one.request for one in outcome.ended} == ending | prefilled
        for one in outcome.released:
            self.release(one)
        assert not self.touched - {chunk.request for each in self.device.in_flight for chunk in each.chunks}
        return outcome

    @precondition(lambda self: self.device.in_flight)
    @rule()
    def refuse(self) -> None:
        """The oldest step finds no memory."""
        step = self.device.refuse()
        size = sum(len(tokens_in(chunk.tokens)) for chunk in step.chunks)
        failure = self.schedule.fail(step.step, self.now)
        assert failure is not None
        assert (failure.tokens, failure.rows) == (size, len(step.chunks))
        assert failure.follows == self.refused
        self.refused = bool(self.device.in_flight)
        for one in failure.released:
            self.release(one)
        if failure.hopeless is not None:
            assert size == 1
            self.end_one(failure.hopeless, "failed")

    @rule(data=st.data(), reason=st.sampled_from(["cancelled", "deadline", "stop_text"]))
    def end(self, data: st.DataObject, reason: FinishReason) -> None:
        assume(self.alive)
        self.end_one(self.alive[data.draw(st.sampled_from(sorted(self.alive)))], reason)

    def end_one(self, one: Sequence, reason: FinishReason) -> None:
        held_by_step = self.in_flight(one.request)
        free = self.schedule.end(one, reason)
        assert free != held_by_step, "memory is back at once unless a step in flight touches it"
        self.finish(one, reason)
        if free:
            self.release(one)

    @rule(data=st.data(), paused=st.booleans())
    def pause(self, data: st.DataObject, paused: bool) -> None:
        assume(self.alive)
        one = self.alive[data.draw(st.sampled_from(sorted(self.alive)))]
        self.schedule.set_paused(one, paused, self.now)

    @precondition(lambda self: self.arrived)
    @rule(blocks_more=st.integers(0, 3))
    def lose_worker(self, blocks_more: int) -> None:
        if self.device.in_flight:
            step = self.device.in_flight[0]
            count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
            self.stale = StepDone(step.step, (SampledToken(1),) * count, 0.01)
        self.device.lose()
        self.refused = False
        for one in self.schedule.forget_steps():
            self.release(one)
        for one in self.schedule.sequences:
            assert one.started == (one.request in self.started)
            if one.started:
                self.end_one(one, "failed")
        self.blocks += blocks_more
        self.workers += 1
        self.schedule.replace_pool(BlockPool(self.blocks, self.device.block_size), f"model {self.workers}")
        assert not self.touched

    @precondition(lambda self: self.stale is not None)
    @rule()
    def late_result_of_a_lost_worker(self) -> None:
        assert self.stale is not None
        assert self.schedule.complete(self.stale, self.now) == Outcome((), (), ())
        self.stale = None

    # --- the plain account of what should be ---

    @property
    def may_come(self) -> bool:
        return self.arrived < self.credit.granted and self.arrived_tokens < self.credit.tokens

    def in_flight(self, name: str) -> bool:
        return any(chunk.request == name for step in self.device.in_flight for chunk in step.chunks)

    def finish(self, one: Sequence, reason: FinishReason) -> None:
        assert one.request not in self.finished, "finished twice"
        self.finished[one.request] = reason
        assert one.stats(self.now).cached_tokens == self.cached.get(one.request, 0)
        del self.alive[one.request]
        if self.in_flight(one.request):
            self.touched.add(one.request)

    def release(self, one: Sequence) -> None:
        assert one.request in self.finished
        assert one.request not in self.released, "released twice"
        self.released.add(one.request)
        self.touched.discard(one.request)

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "schedule"):
            return
        self.schedule.audit()
        assert {one.request for one in self.schedule.sequences} == set(self.alive), "a request is lost"
        assert len(self.schedule) == len(self.alive)
        assert set(self.schedule.requests) == set(self.alive) | self.touched
        assert set(self.finished) - self.released == self.touched
        assert self.schedule.steps_in_flight == len(self.device.in_flight)
        pool = self.schedule.pool
        assert pool.free + pool.cached + pool.used == pool.total == self.blocks
        assert pool.available == pool.free + pool.cached
        held: dict[str, set[int]] = {"t": set(), "u": set()}
        for one in self.alive.values():
            held[one.tenant].update(one.table.blocks)
        for step in self.device.in_flight:
            for chunk in step.chunks:
                held[self.device.tenants[chunk.request]].update(tokens_in(chunk.blocks))
        assert held["t"].isdisjoint(held["u"]), "tenants share a block"
        self.check_credit()

    def check_credit(self) -> None:
        line = [one for one in self.alive.values() if one.waiting and not one.paused]
        short = self.schedule.waits_for_memory
        assert short or not any(one.started for one in line), "a preempted one waits for memory"
        assert line or not short, "memory is waited for by nobody"
        before = self.credit
        self.credit = self.schedule.credit(self.step_rows)
        assert self.credit.granted >= before.granted
        assert self.credit.tokens >= before.tokens
        assert not short or self.credit == before, "somebody new may come in while memory is short"
        assert self.credit.granted - self.arrived <= self.step_rows, "the scheduler's lane holds all who may come"
        assert self.alive or self.may_come, "nobody is here, and nobody may come"

    def teardown(self) -> None:
        """With everyone resumed, steps alone finish everything, in a bounded number of them."""
        if not hasattr(self, "schedule"):
            return
        for one in self.alive.values():
            self.schedule.set_paused(one, False, self.now)
        bound = len(self.device.in_flight) + sum(self.most_steps(one) for one in self.alive.values())
        steps = 0
        while self.alive or self.device.in_flight:
            while len(self.device.in_flight) < self.steps_ahead:
                before = len(self.device.in_flight)
                self.plan()
                if len(self.device.in_flight) == before:
                    break
            if self.refused:
                self.refuse()
            else:
                step = self.device.end()
                self.finish_step(step, [1] * len(sampled(step)))
            self.everything_adds_up()
            steps += 1
            assert steps <= bound, "no progress"
        assert self.schedule.pool.used == 0
        assert self.released == set(self.finished) == set(self.device.histories)
        for name, wasted in self.wasted.items():
            reason = self.finished[name]
            most = {"length": 0, "stop": self.steps_ahead - 1}.get(reason, self.steps_ahead)
            assert wasted <= most, f"{wasted} rows of one that ended by {reason}"

    def most_steps(self, one: Sequence) -> int:
        """As if every token of its history had to be read again for each token of its answer."""
        longest = 1 if self.policy == "slack" else min(self.chunk, self.schedule.bounds.tokens)
        return (one.max_output_tokens + 2) * (2 + self.max_context // longest)


class SlackRequests(Requests):
    policy = "slack"


class FixedChunkRequests(Requests):
    policy = "fixed_chunk"


class DecodeFirstRequests(Requests):
    policy = "decode_first"


class PrefillFirstRequests(Requests):
    policy = "prefill_first"


FILTERS = [HealthCheck.filter_too_much]
"""A rule for somebody who is here is passed over while nobody is."""
SlackRequests.TestCase.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=FILTERS)
for plain in (FixedChunkRequests, DecodeFirstRequests, PrefillFirstRequests):
    plain.TestCase.settings = settings(max_examples=25, stateful_step_count=40, suppress_health_check=FILTERS)
TestSlackRequests = SlackRequests.TestCase
TestFixedChunkRequests = FixedChunkRequests.TestCase
TestDecodeFirstRequests = DecodeFirstRequests.TestCase
TestPrefillFirstRequests = PrefillFirstRequests.TestCase
