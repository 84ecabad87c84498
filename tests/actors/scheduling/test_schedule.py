"""Whose turn it is, against a cache that remembers what was written where.

The cache stands for the device: each step's chunks are written into it when the step is planned, as (history up to and
with the token), which is what keys and values at a position depend on. A chunk whose table does not hold exactly its
sequence's history before `start` would be answered wrongly.
"""

from typing import ClassVar

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.scheduling.blocks import BlockPool
from actors.scheduling.policy import FixedChunk
from actors.scheduling.schedule import Outcome, Schedule
from actors.scheduling.sequence import Sequence
from protocol.messages import Chunk, FinishReason, SampledToken, Step, StepDone
from tests.actors.recorders import enqueue, tokens_in

END = 0


class Cache:
    """What each slot of each block holds: the history that its keys and values were computed from."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[int, int], tuple[int, ...]] = {}

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self._block_size], position % self._block_size

    def holds(self, table: list[int], history: list[int]) -> bool:
        return all(
            self._slots.get(self._slot(table, position)) == tuple(history[: position + 1])
            for position in range(len(history))
        )

    def write(self, table: list[int], start: int, history: list[int]) -> None:
        for position in range(start, len(history)):
            self._slots[self._slot(table, position)] = tuple(history[: position + 1])


class Device:
    """Runs planned steps on a cache, and checks of each that it can be run as it is."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.cache = Cache(block_size)
        self.in_flight: list[Step] = []
        self.histories: dict[str, list[int]] = {}

    def begin(self, step: Step) -> None:
        busy = {block for earlier in self.in_flight for chunk in earlier.chunks for block in tokens_in(chunk.blocks)}
        touched: set[int] = set()
        for chunk in step.chunks:
            history, tokens, table = self.histories[chunk.request], tokens_in(chunk.tokens), tokens_in(chunk.blocks)
            end = chunk.start + len(tokens)
            assert tokens, "an empty chunk"
            assert tokens == history[chunk.start : end]
            assert len(table) == -(-end // self.block_size)
            assert not touched.intersection(table), "two owners touch one block in one step"
            assert not busy.intersection(table), "a block that a step in flight touches is used again"
            assert self.cache.holds(table, history[: chunk.start]), "the table does not hold the history"
            touched.update(table)
        for chunk in step.chunks:
            end = chunk.start + len(tokens_in(chunk.tokens))
            self.cache.write(tokens_in(chunk.blocks), chunk.start, self.histories[chunk.request][:end])
        self.in_flight.append(step)

    def end(self) -> Step:
        """The oldest step: what it read and wrote must still be there."""
        step = self.in_flight.pop(0)
        for chunk in step.chunks:
            end = chunk.start + len(tokens_in(chunk.tokens))
            assert self.cache.holds(tokens_in(chunk.blocks), self.histories[chunk.request][:end])
        return step

    def lose(self) -> None:
        self.in_flight.clear()
        self.cache = Cache(self.block_size)


class Requests(RuleBasedStateMachine):
    """Any order of arrivals, ends, pauses, steps and lost workers."""

    steps_ahead: ClassVar[int] = 1

    @initialize(
        blocks=st.integers(2, 10),
        block_size=st.integers(1, 4),
        chunk=st.integers(1, 9),
        step_tokens=st.integers(1, 12),
        step_rows=st.integers(1, 4),
    )
    def engine(self, blocks: int, block_size: int, chunk: int, step_tokens: int, step_rows: int) -> None:
        self.blocks = blocks
        self.max_context = blocks * block_size
        self.step_tokens = step_tokens
        self.step_rows = step_rows
        self.chunk = chunk
        self.schedule = Schedule(BlockPool(blocks, block_size), FixedChunk(chunk), step_tokens, step_rows)
        self.device = Device(block_size)
        self.now = 0.0
        self.arrived = 0
        self.alive: dict[str, Sequence] = {}
        self.touched: set[str] = set()
        """Those that have ended while a step in flight touched them."""
        self.finished: dict[str, FinishReason] = {}
        self.released: set[str] = set()
        self.started: set[str] = set()
        self.stale: StepDone | None = None

    # --- rules ---

    @rule(data=st.data(), prompt=st.integers(1, 12), output=st.integers(0, 12))
    def arrive(self, data: st.DataObject, prompt: int, output: int) -> None:
        prompt = min(prompt, self.max_context)
        output = min(output, self.max_context - prompt)
        tokens = data.draw(st.lists(st.integers(1, 5), min_size=prompt, max_size=prompt))
        self.arrived += 1
        name = f"r{self.arrived}"
        self.alive[name] = self.schedule.add(
            enqueue(name, tokens, max_output_tokens=output, end_tokens=(END,)), self.now
        )
        self.device.histories[name] = tokens

    @precondition(lambda self: len(self.device.in_flight) < self.steps_ahead)
    @rule()
    def plan(self) -> None:
        runnable = [
            name for name, one in self.alive.items() if not one.paused and not self.in_flight(name) and one.remaining
        ]
        line = [one for one in self.schedule.sequences if one.waiting and not one.paused]
        step = self.schedule.plan(self.now)
        chunks = step.chunks if step is not None else ()
        names = [chunk.request for chunk in chunks]
        assert len(set(names)) == len(names)
        assert set(names) <= set(runnable), "paused, ended and planned ones are left alone"
        assert sum(len(tokens_in(chunk.tokens)) for chunk in chunks) <= self.step_tokens
        assert len(chunks) <= self.step_rows
        line.sort(key=lambda one: one.order)
        came_in = [one.request in names for one in line]
        assert came_in == sorted(came_in, reverse=True), "somebody overtook the first who waits"
        if step is None:
            if not self.device.in_flight:
                assert not runnable, "nothing runs though something could"
            return
        for chunk in chunks:
            self.check_choice(chunk)
        self.started.update(names)
        self.device.begin(step)

    def check_choice(self, chunk: Chunk) -> None:
        one = self.alive[chunk.request]
        newest = chunk.start + len(tokens_in(chunk.tokens)) == len(self.device.histories[chunk.request])
        assert (chunk.sampling is not None) == (newest and one.max_output_tokens > 0)

    @precondition(lambda self: self.device.in_flight)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        step = self.device.end()
        count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
        chosen = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
        self.finish_step(step, chosen)

    def finish_step(self, step: Step, chosen: list[int]) -> Outcome:
        self.now += 1.0
        done = StepDone(step.step, tuple(SampledToken(token) for token in chosen), 0.01)
        outcome = self.schedule.complete(done, self.now)
        sampled = [chunk.request for chunk in step.chunks if chunk.sampling is not None]
        expected = [(name, token) for name, token in zip(sampled, chosen, strict=True) if name in self.alive]
        assert [(row.request, row.token.token) for row in outcome.rows] == expected, "a token for everyone still here"
        for row in outcome.rows:
            history, one = self.device.histories[row.request], self.alive[row.request]
            history.append(row.token.token)
            assert one.tokens.tolist() == history
            full = len(history) - one.prompt_tokens == one.max_output_tokens
            assert row.last == (full or row.token.token == END)
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
        self.alive[data.draw(st.sampled_from(sorted(self.alive)))].set_paused(paused, self.now)

    @precondition(lambda self: self.arrived)
    @rule(blocks_more=st.integers(0, 3))
    def lose_worker(self, blocks_more: int) -> None:
        if self.device.in_flight:
            step = self.device.in_flight[0]
            count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
            self.stale = StepDone(step.step, (SampledToken(1),) * count, 0.01)
        self.device.lose()
        for one in self.schedule.forget_steps():
            self.release(one)
        for one in self.schedule.sequences:
            assert one.started == (one.request in self.started)
            if one.started:
                self.end_one(one, "failed")
        self.blocks += blocks_more
        self.schedule.replace_pool(BlockPool(self.blocks, self.device.block_size))
        assert not self.touched

    @precondition(lambda self: self.stale is not None)
    @rule()
    def late_result_of_a_lost_worker(self) -> None:
        assert self.stale is not None
        assert self.schedule.complete(self.stale, self.now) == Outcome((), (), ())
        self.stale = None

    # --- the plain account of what should be ---

    def in_flight(self, name: str) -> bool:
        return any(chunk.request == name for step in self.device.in_flight for chunk in step.chunks)

    def finish(self, one: Sequence, reason: FinishReason) -> None:
        assert one.request not in self.finished, "finished twice"
        self.finished[one.request] = reason
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
        assert self.schedule.waits_for_memory == any(one.waiting and not one.paused for one in self.alive.values())

    def teardown(self) -> None:
        """With everyone resumed, steps alone finish everything, in a bounded number of them."""
        if not hasattr(self, "schedule"):
            return
        for one in self.alive.values():
            one.set_paused(False, self.now)
        longest = min(self.chunk, self.step_tokens)
        bound = sum(
            (one.max_output_tokens + 2) * (2 + self.max_context // longest) for one in self.alive.values()
        ) + len(self.device.in_flight)
        steps = 0
        while self.alive or self.device.in_flight:
            while len(self.device.in_flight) < self.steps_ahead:
                before = len(self.device.in_flight)
                self.plan()
                if len(self.device.in_flight) == before:
                    break
            step = self.device.end()
            self.finish_step(step, [1] * sum(1 for chunk in step.chunks if chunk.sampling is not None))
            self.everything_adds_up()
            steps += 1
            assert steps <= bound, "no progress"
        assert self.schedule.pool.used == 0
        assert self.released == set(self.finished) == set(self.device.histories)


class RequestsTwoStepsAhead(Requests):
    steps_ahead = 2


Requests.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
RequestsTwoStepsAhead.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRequests = Requests.TestCase
TestRequestsTwoStepsAhead = RequestsTwoStepsAhead.TestCase


# --- scenes ---


class Scene:
    """A schedule that is stepped to its end, one step at a time."""

    def __init__(
        self, blocks: int, block_size: int = 4, chunk: int = 64, step_tokens: int = 64, step_rows: int = 64
    ) -> None:
        self.schedule = Schedule(BlockPool(blocks, block_size), FixedChunk(chunk), step_tokens, step_rows)
        self.device = Device(block_size)
        self.outcomes: list[Outcome] = []
        self.computed = 0

    def add(self, name: str, prompt: int, output: int) -> Sequence:
        self.device.histories[name] = list(range(10, 10 + prompt))
        return self.schedule.add(enqueue(name, prompt, max_output_tokens=output), 0.0)

    def plan(self) -> list[str]:
        """Names of those in the next step; it is left in flight."""
        step = self.schedule.plan(0.0)
        if step is None:
            return []
        self.device.begin(step)
        self.computed += sum(len(tokens_in(chunk.tokens)) for chunk in step.chunks)
        return [chunk.request for chunk in step.chunks]

    def complete(self) -> Outcome:
        step = self.device.end()
        count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
        outcome = self.schedule.complete(StepDone(step.step, (SampledToken(7),) * count, 0.01), 0.0)
        for row in outcome.rows:
            self.device.histories[row.request].append(row.token.token)
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


def test_a_pool_of_one_full_context_serves_several_without_thrashing() -> None:
    scene = Scene(blocks=8)
    for name in "abcd":
        scene.add(name, prompt=8, output=24)
    assert scene.run() == list("abcd")
    assert all(outcome.rows for outcome in scene.outcomes), "every step gives somebody a token"
    least = 4 * (8 + 24 - 1)
    assert scene.computed <= 3 * least, "more is computed again than computed"


def test_two_that_together_exceed_the_memory_both_finish() -> None:
    scene = Scene(blocks=6)
    scene.add("a", prompt=8, output=12)
    scene.add("b", prompt=8, output=12)
    assert scene.run() == ["a", "b"]
    assert scene.schedule.preemptions >= 1


def test_the_first_to_come_is_never_preempted_for_later_ones() -> None:
    scene = Scene(blocks=6)
    first = scene.add("a", prompt=4, output=20)
    for name in "bcd":
        scene.add(name, prompt=4, output=20)
    scene.run()
    assert first.stats(0.0).preemptions == 0


@pytest.mark.parametrize("prompt", [1, 2])
def test_nobody_overtakes_the_first_that_waits_for_memory(prompt: int) -> None:
    scene = Scene(blocks=4)
    scene.add("running", prompt=8, output=8)
    scene.step()
    scene.add("long", prompt=12, output=2)
    scene.add("short", prompt=prompt, output=1)
    while "long" not in (names := scene.plan()):
        assert names == ["running"]
        scene.complete()


def test_one_starts_only_beside_the_next_block_of_everyone_who_runs() -> None:
    scene = Scene(blocks=4)
    scene.add("a", prompt=5, output=8)
    scene.step()
    scene.add("b", prompt=8, output=2)
    assert scene.step() == ["a"], "two blocks are free, but one of them is a's next"


def test_whoever_a_step_in_flight_includes_is_not_preempted_and_the_first_sits_that_step_out() -> None:
    scene = Scene(blocks=3)
    first = scene.add("a", prompt=4, output=4)
    later = scene.add("b", prompt=2, output=8)
    assert scene.step() == ["a", "b"]
    first.set_paused(True, 0.0)
    while scene.schedule.pool.free:
        assert scene.plan() == ["b"]
        if scene.schedule.pool.free:
            scene.complete()
    first.set_paused(False, 0.0)
    assert scene.plan() == [], "a needs a block, and b's is being written"
    scene.complete()
    assert scene.step() == ["a"]
    assert [one.stats(0.0).preemptions for one in (first, later)] == [0, 1]


def test_paused_ones_give_way_the_latest_first() -> None:
    scene = Scene(blocks=4)
    paused = [scene.add(name, prompt=4, output=8) for name in "ab"]
    scene.step()
    for one in paused:
        one.set_paused(True, 0.0)
    scene.add("c", prompt=12, output=2)
    assert scene.step() == ["c"]
    assert [one.stats(0.0).preemptions for one in paused] == [0, 1]


def test_paused_ones_are_not_preempted_in_vain() -> None:
    scene = Scene(blocks=4)
    paused = scene.add("a", prompt=4, output=8)
    scene.add("b", prompt=8, output=4)
    scene.step()
    paused.set_paused(True, 0.0)
    scene.add("c", prompt=12, output=2)
    assert scene.step() == ["b"]
    assert paused.stats(0.0).preemptions == 0, "its blocks would not have been enough"


def test_a_paused_one_that_was_preempted_stays_away_until_it_is_resumed() -> None:
    scene = Scene(blocks=4)
    paused = scene.add("a", prompt=4, output=4)
    scene.step()
    paused.set_paused(True, 0.0)
    scene.add("b", prompt=16, output=0)
    assert scene.step() == ["b"]
    assert not scene.schedule.waits_for_memory
    assert scene.step() == []
    paused.set_paused(False, 0.0)
    assert scene.schedule.waits_for_memory
    assert scene.run() == ["b", "a"]


def test_a_step_runs_as_many_rows_as_it_may_and_the_first_to_come_first() -> None:
    scene = Scene(blocks=16, step_rows=2)
    for name in "abcd":
        scene.add(name, prompt=4, output=3)
    assert scene.step() == ["a", "b"]
    assert scene.step() == ["a", "b"]
    assert scene.step() == ["a", "b"]
    assert scene.step() == ["c", "d"]
    assert scene.run() == ["a", "b", "c", "d"]


def test_whoever_a_full_step_leaves_out_has_taken_no_memory() -> None:
    scene = Scene(blocks=16, step_rows=1)
    scene.add("a", prompt=4, output=2)
    left_out = scene.add("b", prompt=4, output=2)
    assert scene.plan() == ["a"]
    assert left_out.waiting
    assert scene.schedule.pool.used == 1


def test_prefill_only_ends_without_a_token() -> None:
    scene = Scene(blocks=4, chunk=4)
    scene.add("a", prompt=6, output=0)
    scene.plan()
    assert scene.complete() == Outcome((), (), ())
    scene.plan()
    outcome = scene.complete()
    assert outcome.rows == ()
    assert [one.reason for one in outcome.ended] == ["prefilled"]
    assert outcome.ended == outcome.released


def test_a_cancel_with_a_step_in_flight_returns_the_blocks_when_the_step_is_done() -> None:
    scene = Scene(blocks=4)
    one = scene.add("a", prompt=6, output=4)
    scene.plan()
    assert not scene.schedule.end(one, "cancelled")
    assert scene.schedule.pool.used == 2
    assert scene.schedule.requests == ("a",)
    outcome = scene.complete()
    assert (outcome.rows, outcome.ended, outcome.released) == ((), (), (one,))
    assert scene.schedule.pool.used == 0
    assert len(scene.schedule.requests) == 0


def test_a_cancel_without_a_step_in_flight_returns_the_blocks_at_once() -> None:
    scene = Scene(blocks=4)
    one = scene.add("a", prompt=6, output=4)
    scene.step()
    assert scene.schedule.end(one, "cancelled")
    assert scene.schedule.pool.used == 0


def test_an_end_token_at_the_output_limit_is_a_stop() -> None:
    schedule = Schedule(BlockPool(4, 4), FixedChunk(8), 8)
    schedule.add(enqueue("a", 4, max_output_tokens=1, end_tokens=(5,)), 0.0)
    assert schedule.plan(0.0) is not None
    outcome = schedule.complete(StepDone(1, (SampledToken(5),), 0.01), 0.0)
    assert [one.reason for one in outcome.ended] == ["stop"]


def test_a_request_that_comes_twice_is_a_defect() -> None:
    scene = Scene(blocks=4)
    scene.add("a", prompt=4, output=4)
    with pytest.raises(AssertionError, match="came twice"):
        scene.add("a", prompt=4, output=4)


def test_a_new_pool_while_steps_or_running_ones_are_here_is_a_defect() -> None:
    scene = Scene(blocks=4)
    scene.add("a", prompt=4, output=4)
    scene.plan()
    with pytest.raises(AssertionError, match="still in flight"):
        scene.schedule.replace_pool(BlockPool(4, 4))
    scene.complete()
    with pytest.raises(AssertionError, match="outlived its pool"):
        scene.schedule.replace_pool(BlockPool(4, 4))
