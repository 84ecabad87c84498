"""Whose turn it is, against a cache that remembers what was written where.

The cache stands for the device: each step's chunks are written into it when the step is planned, as (history up to and
with the token, and whose it is), which is what keys and values at a position depend on. A chunk whose table does not
hold exactly its sequence's history before `start` would be answered wrongly. Blocks are shared by those who only read
them: one that is written belongs to one table, and no other step that reads or writes it is in flight.
"""

from typing import ClassVar

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

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
        self._slots: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self._block_size], position % self._block_size

    def holds(self, table: list[int], tenant: str, history: list[int]) -> bool:
        return all(
            self._slots.get(self._slot(table, position)) == (tenant, tuple(history[: position + 1]))
            for position in range(len(history))
        )

    def write(self, table: list[int], tenant: str, start: int, history: list[int]) -> None:
        for position in range(start, len(history)):
            self._slots[self._slot(table, position)] = tenant, tuple(history[: position + 1])


class Device:
    """Runs planned steps on a cache, and checks of each that it can be run as it is."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.cache = Cache(block_size)
        self.in_flight: list[Step] = []
        self.histories: dict[str, list[int]] = {}
        self.tenants: dict[str, str] = {}

    def written(self, chunk: Chunk) -> list[int]:
        """The blocks that it writes; those before them it only reads."""
        return tokens_in(chunk.blocks)[chunk.start // self.block_size :]

    def begin(self, step: Step) -> None:
        under_way = [chunk for earlier in self.in_flight for chunk in earlier.chunks]
        for chunk in step.chunks:
            history, tokens, table = self.histories[chunk.request], tokens_in(chunk.tokens), tokens_in(chunk.blocks)
            end = chunk.start + len(tokens)
            assert tokens, "an empty chunk"
            assert tokens == history[chunk.start : end]
            assert len(table) == len(set(table)) == -(-end // self.block_size)
            for other in (*under_way, *step.chunks):
                if other is not chunk:
                    assert not set(self.written(chunk)) & set(tokens_in(other.blocks)), "written, and another's too"
                    assert not set(self.written(other)) & set(table), "read before the step that writes it is done"
            tenant = self.tenants.get(chunk.request, "")
            assert self.cache.holds(table, tenant, history[: chunk.start]), "the table does not hold the history"
        for chunk in step.chunks:
            end = chunk.start + len(tokens_in(chunk.tokens))
            history = self.histories[chunk.request][:end]
            self.cache.write(tokens_in(chunk.blocks), self.tenants.get(chunk.request, ""), chunk.start, history)
        self.in_flight.append(step)

    def end(self) -> Step:
        """The oldest step: what it read and wrote must still be there."""
        step = self.in_flight.pop(0)
        for chunk in step.chunks:
            history = self.histories[chunk.request][: chunk.start + len(tokens_in(chunk.tokens))]
            assert self.cache.holds(tokens_in(chunk.blocks), self.tenants.get(chunk.request, ""), history)
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
        self.cached: dict[str, int] = {}
        """How much of its prompt each found in the cache when it started."""
        self.workers = 1
        self.stale: StepDone | None = None

    # --- rules ---

    @rule(data=st.data(), prompt=st.integers(1, 12), output=st.integers(0, 12))
    def arrive(self, data: st.DataObject, prompt: int, output: int) -> None:
        """Often with a beginning that another had: the same prompt, or the next turn."""
        tokens = data.draw(st.sampled_from([[], *map(list, self.device.histories.values())]))
        tokens += data.draw(st.lists(st.integers(1, 2), min_size=prompt, max_size=prompt))
        tokens = tokens[: min(12, self.max_context)]
        output = min(output, self.max_context - len(tokens))
        self.arrived += 1
        name = f"r{self.arrived}"
        self.device.tenants[name] = tenant = data.draw(st.sampled_from("ttu"))
        request = enqueue(name, tokens, max_output_tokens=output, end_tokens=(END,))
        self.alive[name] = self.schedule.add(structs.replace(request, tenant=tenant), self.now)
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
            for block in self.device.written(chunk):
                assert self.schedule.pool.references(block) == 1, "a shared block is written"
            if chunk.request not in self.started:
                assert chunk.start % self.device.block_size == 0, "only full blocks are taken up"
                self.cached[chunk.request] = chunk.start
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
        self.last: Step | None = None

    def add(self, name: str, prompt: int | list[int], output: int, tenant: str = "") -> Sequence:
        """A prompt of so many tokens is like no other."""
        if isinstance(prompt, int):
            start = 1000 * (1 + len(self.device.histories))
            prompt = list(range(start, start + prompt))
        self.device.histories[name] = list(prompt)
        self.device.tenants[name] = tenant
        request = enqueue(name, prompt, max_output_tokens=output)
        return self.schedule.add(structs.replace(request, tenant=tenant), 0.0)

    def plan(self) -> list[str]:
        """Names of those in the next step; it is left in flight."""
        step = self.schedule.plan(0.0)
        if step is None:
            return []
        self.device.begin(step)
        self.last = step
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
        scene.schedule.replace_pool(BlockPool(4, 4), "")
    scene.complete()
    with pytest.raises(AssertionError, match="outlived its pool"):
        scene.schedule.replace_pool(BlockPool(4, 4), "")


# --- what others have computed ---


def warmed(prompt: list[int], blocks: int = 16, tenant: str = "") -> Scene:
    """A scene in which somebody has had this prompt prefilled, and is gone."""
    scene = Scene(blocks)
    scene.add("first", prompt, output=0, tenant=tenant)
    scene.run()
    assert scene.schedule.pool.used == 0
    return scene


@pytest.mark.parametrize(("prompt", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12)])
def test_an_equal_prompt_finds_every_full_block_but_the_newest_tokens(prompt: int, cached: int) -> None:
    scene = warmed(list(range(prompt)))
    second = scene.add("second", list(range(prompt)), output=3)
    before = scene.computed
    scene.run()
    assert second.stats(0.0).cached_tokens == cached
    assert scene.computed - before == prompt - cached + 3 - 1


def test_equal_prompts_share_blocks_while_both_run() -> None:
    scene = Scene(blocks=16)
    prompt = list(range(9))
    first = scene.add("first", prompt, output=9)
    scene.step()
    second = scene.add("second", prompt, output=9)
    assert scene.step() == ["first", "second"]
    assert first.table.blocks[:2] == second.table.blocks[:2]
    assert set(first.table.blocks[2:]).isdisjoint(second.table.blocks[2:])
    assert scene.schedule.pool.used == 4
    assert scene.schedule.end(first, "cancelled")
    assert (scene.schedule.pool.used, scene.schedule.pool.cached) == (3, 0)
    scene.run()


def test_a_second_turn_finds_the_first_and_its_answer() -> None:
    scene = Scene(blocks=16)
    scene.add("first", 6, output=7)
    scene.run()
    history = scene.device.histories["first"]
    assert len(history) == 13
    second = scene.add("second", [*history, 1, 2, 3], output=2)
    scene.run()
    assert second.stats(0.0).cached_tokens == 12, "all but the last answered token, which nobody ran"


def test_a_prompt_finds_what_it_begins_with_and_no_more() -> None:
    scene = warmed(list(range(16)))
    other = scene.add("other", [*range(6), 99, *range(7, 16)], output=1)
    scene.run()
    assert other.stats(0.0).cached_tokens == 4
    behind = scene.add("behind", list(range(4, 16)), output=1)
    scene.run()
    assert behind.stats(0.0).cached_tokens == 0, "equal blocks behind another beginning are not the same"


@pytest.mark.parametrize("tenant", ["t", ""])
def test_tenants_never_share(tenant: str) -> None:
    scene = warmed(list(range(12)), tenant="other")
    first = scene.add("a", list(range(12)), output=9, tenant="other")
    second = scene.add("b", list(range(12)), output=9, tenant=tenant)
    assert scene.step() == ["a", "b"]
    assert set(first.table.blocks).isdisjoint(second.table.blocks)
    assert (first.stats(0.0).cached_tokens, second.stats(0.0).cached_tokens) == (8, 0)
    scene.run()
    again = scene.add("c", list(range(12)), output=1, tenant=tenant)
    scene.run()
    assert again.stats(0.0).cached_tokens == 8, "its own it finds"


def test_nothing_is_found_before_the_step_that_computes_it_has_succeeded() -> None:
    scene = Scene(blocks=16)
    prompt = list(range(12))
    first = scene.add("a", prompt, output=9)
    together = scene.add("b", prompt, output=9)
    assert scene.plan() == ["a", "b"]
    later = scene.add("c", prompt, output=9)
    assert scene.plan() == ["c"]
    scene.complete()
    after = scene.add("d", prompt, output=9)
    assert scene.plan() == ["a", "b", "d"]
    scene.complete()
    scene.complete()
    assert [one.stats(0.0).cached_tokens for one in (first, together, later, after)] == [0, 0, 0, 8]
    assert after.table.blocks[:2] == first.table.blocks[:2], "the first to publish a name keeps it"


def test_a_prefill_in_chunks_is_found_as_far_as_it_has_come() -> None:
    scene = Scene(blocks=16, chunk=6)
    scene.add("a", list(range(20)), output=1)
    scene.step()
    found = scene.add("b", list(range(20)), output=1)
    scene.schedule.sequences[0].set_paused(True, 0.0)
    assert scene.step() == ["b"]
    assert found.stats(0.0).cached_tokens == 4
    scene.schedule.sequences[0].set_paused(False, 0.0)
    scene.run()


@pytest.mark.parametrize("late", [True, False])
def test_the_step_of_a_lost_worker_publishes_nothing(late: bool) -> None:
    scene = Scene(blocks=16)
    prompt = list(range(12))
    lost = scene.add("a", prompt, output=4)
    scene.plan()
    assert scene.last is not None
    scene.device.lose()
    assert scene.schedule.forget_steps() == ()
    assert scene.schedule.end(lost, "failed")
    scene.schedule.audit()
    pool = scene.schedule.pool
    assert (pool.cached, pool.used) == (0, 0)
    if late:
        done = StepDone(scene.last.step, (SampledToken(7),), 0.01)
        assert scene.schedule.complete(done, 0.0) == Outcome((), (), ())
        assert pool.cached == 0
    again = scene.add("b", prompt, output=4)
    assert scene.run() == ["b"]
    assert again.stats(0.0).cached_tokens == 0


def test_what_a_cancelled_one_computed_in_earlier_steps_is_found() -> None:
    scene = Scene(blocks=16, chunk=8)
    gone = scene.add("a", list(range(20)), output=4)
    scene.step()
    scene.plan()
    assert not scene.schedule.end(gone, "cancelled")
    scene.complete()
    assert (scene.schedule.pool.cached, scene.schedule.pool.used) == (2, 0)
    second = scene.add("b", list(range(20)), output=1)
    scene.run()
    assert second.stats(0.0).cached_tokens == 8


def test_a_preempted_one_takes_up_again_what_is_still_cached() -> None:
    scene = Scene(blocks=6)
    one = scene.add("a", 9, output=8)
    scene.step()
    one.set_paused(True, 0.0)
    scene.add("b", 15, output=1)
    assert scene.step() == ["b"]
    assert one.waiting
    assert scene.schedule.pool.cached >= 1
    one.set_paused(False, 0.0)
    before = scene.computed
    assert scene.step() == ["a"]
    assert scene.computed - before == 10 - 8, "one block was taken, its own last one, which was not full"
    scene.run()
    assert (one.stats(0.0).preemptions, one.stats(0.0).cached_tokens) == (1, 0), "what it computed itself is no find"


def test_a_prefill_without_an_answer_warms() -> None:
    scene = warmed(list(range(9)))
    assert scene.schedule.pool.cached == 2
    assert scene.outcomes[-1].rows == ()
    second = scene.add("second", [*range(9), 50, 51], output=1)
    scene.run()
    assert second.stats(0.0).cached_tokens == 8


def test_a_prefill_of_what_is_cached_runs_the_newest_token_only_and_ends() -> None:
    scene = warmed(list(range(9)))
    before = scene.computed
    scene.add("again", list(range(9)), output=0)
    scene.run()
    assert scene.computed - before == 1


@pytest.mark.parametrize(("model", "cached"), [("", 8), ("another model", 0), ("\0rope", 0)])
def test_what_another_model_or_rope_has_computed_is_not_found(model: str, cached: int) -> None:
    scene = warmed(list(range(12)))
    scene.add("waits", list(range(12)), output=1)
    scene.schedule.replace_pool(scene.schedule.pool, model)
    scene.add("comes", list(range(12)), output=1)
    scene.run()
    found = [one.stats(0.0).cached_tokens for outcome in scene.outcomes for one in outcome.ended]
    assert found == [0, cached, cached]


def test_cached_blocks_give_way_to_whoever_needs_them_and_count_as_room() -> None:
    scene = warmed(list(range(16)), blocks=4)
    assert (scene.schedule.pool.cached, scene.schedule.pool.free) == (4, 0)
    scene.add("full", 16, output=0)
    assert scene.step() == ["full"]
    assert scene.schedule.preemptions == 0


def test_what_is_found_is_not_counted_as_room_for_the_rest() -> None:
    """Two of the three blocks are found and idle; the fourth block of its history does not fit beside a running one."""
    scene = warmed(list(range(9)), blocks=4)
    assert scene.schedule.pool.cached == 2
    scene.add("other", 4, output=4)
    scene.step()
    assert (scene.schedule.pool.free, scene.schedule.pool.cached) == (1, 2)
    scene.add("second", list(range(9)), output=1)
    assert scene.step() == ["other"], "the one free block is the other's next"


def test_paused_ones_are_not_preempted_for_blocks_that_others_hold_too() -> None:
    scene = Scene(blocks=6)
    scene.add("runs", list(range(9)), output=8)
    scene.step()
    paused = scene.add("paused", list(range(9)), output=8)
    assert scene.step() == ["runs", "paused"]
    assert (scene.schedule.pool.used, scene.schedule.pool.free) == (4, 2)
    paused.set_paused(True, 0.0)
    scene.add("long", 12, output=1)
    assert scene.step() == ["runs"], "3 blocks and the running one's next: 2 are free, and the paused one frees 1"
    assert paused.stats(0.0).preemptions == 0
    assert scene.schedule.waits_for_memory


def test_paused_ones_are_not_preempted_for_blocks_that_the_next_one_shares() -> None:
    scene = Scene(blocks=6)
    paused = scene.add("paused", list(range(9)), output=8)
    other = scene.add("runs", 8, output=4)
    scene.step()
    paused.set_paused(True, 0.0)
    assert (scene.schedule.pool.used, scene.schedule.pool.free) == (5, 1)
    scene.add("next", [*range(9), *range(50, 57)], output=0)
    assert scene.step() == ["runs"], "2 blocks and the running one's next: none is free, and the paused one frees 1"
    assert paused.stats(0.0).preemptions == 0
    assert scene.schedule.end(other, "cancelled")
    assert scene.step() == ["next"]
    assert paused.stats(0.0).preemptions == 0


def test_paused_ones_that_share_with_each_other_give_way_together() -> None:
    scene = Scene(blocks=5)
    one = scene.add("a", list(range(9)), output=8)
    scene.step()
    other = scene.add("b", list(range(9)), output=8)
    scene.step()
    assert scene.schedule.pool.used == 4
    one.set_paused(True, 0.0)
    other.set_paused(True, 0.0)
    scene.add("long", 16, output=4)
    assert scene.step() == ["long"]
    assert [each.stats(0.0).preemptions for each in (one, other)] == [1, 1]


def test_whoever_grows_passes_over_those_whose_blocks_others_hold_too() -> None:
    scene = Scene(blocks=5)
    first = scene.add("a", list(range(9)), output=10)
    scene.step()
    later = [scene.add(name, list(range(9)), output=10) for name in "bc"]
    assert scene.run() == ["a", "b", "c"]
    assert first.stats(0.0).preemptions == 0
    assert [one.stats(0.0).cached_tokens for one in later] == [8, 8]
