"""A step planned behind one that still runs: what it holds, what of it is wasted, and that memory stays safe."""

import pytest

from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import Costs, work_of
from actors.scheduling.policies import POLICIES, PolicyName, policy_named
from actors.scheduling.policy import FixedChunk, View, Wish
from actors.scheduling.schedule import Schedule
from actors.scheduling.sequence import Sequence
from protocol.messages import SampledToken, Step, StepDone
from tests.actors.recorders import enqueue, tokens_in
from tests.actors.scheduling.scenes import Scene

END = 3


class Overlapped(Scene):
    """Two steps are in flight whenever they can be."""

    def fill(self) -> list[list[str]]:
        """Plan as many steps as may be in flight. Who is in each."""
        planned = []
        while len(self.device.in_flight) < 2 and (names := self.plan()):
            planned.append(names)
        return planned

    def step(self) -> list[str]:
        self.fill()
        if not self.device.in_flight:
            return []
        names = [chunk.request for chunk in self.device.in_flight[0].chunks]
        self.complete()
        return names


def newest(scene: Scene) -> Step:
    assert scene.last is not None
    return scene.last


# --- what is in it ---


def test_a_row_follows_the_token_that_the_step_before_chooses() -> None:
    scene = Overlapped(blocks=16)
    scene.add("short", prompt=4, output=1)
    for name in "ab":
        scene.add(name, prompt=4, output=9)
    assert scene.plan() == ["short", "a", "b"]
    assert scene.plan() == ["a", "b"], "one token was to come of the first, and is not followed by another"
    assert newest(scene).behind == newest(scene).step - 1
    assert [(chunk.start, tokens_in(chunk.tokens), chunk.follows) for chunk in newest(scene).chunks] == [
        (4, [0], 1),
        (4, [0], 2),
    ]


def test_a_token_that_is_known_is_sent() -> None:
    scene = Scene(blocks=16)
    scene.add("a", prompt=4, output=9)
    scene.step()
    scene.plan()
    assert [(tokens_in(chunk.tokens), chunk.follows) for chunk in newest(scene).chunks] == [([7], -1)]
    assert newest(scene).behind == 0


def test_a_long_prompt_is_read_in_steps_that_follow_each_other() -> None:
    scene = Overlapped(blocks=16, chunk=5)
    scene.add("a", prompt=12, output=2)
    parts = []
    while scene.plan():
        parts += [(chunk.start, len(tokens_in(chunk.tokens)), chunk.follows) for chunk in newest(scene).chunks]
        if len(scene.device.in_flight) == 2:
            scene.complete()
    assert parts == [(0, 5, -1), (5, 5, -1), (10, 2, -1), (12, 1, 0)]


def test_a_prefill_without_an_answer_has_ended_when_its_last_chunk_has() -> None:
    scene = Overlapped(blocks=16, chunk=6)
    scene.add("a", prompt=12, output=0)
    assert scene.fill() == [["a"], ["a"]]
    assert scene.complete().ended == ()
    assert scene.plan() == [], "all of it is planned"
    assert [one.reason for one in scene.complete().ended] == ["prefilled"]


def test_what_is_planned_is_found_by_nobody_before_it_is_run() -> None:
    scene = Overlapped(blocks=32)
    prompt = list(range(500, 509))
    first = scene.add("a", prompt, output=9)
    scene.fill()
    scene.complete()
    again = scene.add("b", prompt, output=1)
    scene.fill()
    assert again.cached_tokens == 8
    assert again.table.blocks[:2] == first.table.blocks[:2]
    assert first.computed == 9
    assert first.planned == 11


def test_someone_who_is_paused_is_not_planned_further_and_goes_on_later() -> None:
    scene = Overlapped(blocks=16)
    one = scene.add("a", prompt=4, output=4)
    assert scene.fill() == [["a"], ["a"]]
    scene.pause(one)
    scene.complete()
    assert scene.fill() == []
    scene.complete()
    assert scene.fill() == []
    scene.resume(one)
    assert scene.run() == ["a"]
    assert scene.wasted == 0


# --- what is wasted ---


def test_an_answer_that_ends_at_its_limit_wastes_nothing() -> None:
    scene = Overlapped(blocks=64)
    for number in range(1, 6):
        scene.add(f"r{number}", prompt=5, output=number)
    scene.run()
    assert scene.wasted == 0


def test_an_end_token_wastes_one_row_and_memory_is_back_when_that_has_run() -> None:
    scene = Overlapped(blocks=16)
    one = scene.add("a", prompt=6, output=50, end_tokens=(END,))
    scene.add("b", prompt=6, output=50)
    scene.fill()
    outcome = scene.complete(END)
    assert (outcome.ended, outcome.released) == ((one,), ())
    assert scene.fill() == [["b"]]
    outcome = scene.complete()
    assert [row.request for row in outcome.rows] == ["b"]
    assert outcome.released == (one,)
    assert scene.wasted == 1


@pytest.mark.parametrize("completed", [0, 1, 2, 5])
def test_a_cancel_wastes_the_rows_in_flight_and_no_other(completed: int) -> None:
    scene = Overlapped(blocks=16)
    one = scene.add("a", prompt=6, output=50)
    other = scene.add("b", prompt=6, output=50)
    for _ in range(completed):
        scene.step()
    scene.fill()
    assert not scene.schedule.end(one, "cancelled")
    assert scene.complete().released == ()
    assert scene.fill() == [["b"]]
    assert scene.complete().released == (one,)
    assert scene.wasted == 2
    assert scene.schedule.pool.used == len(other.table.blocks)


# --- memory ---


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [4, 5, 7, 9])
def test_where_memory_is_short_the_result_is_waited_for_and_all_end_as_they_would_alone(
    policy: PolicyName, blocks: int
) -> None:
    """The device checks that nothing is read or written that belongs to another."""
    scene = Overlapped(blocks, policy)
    for name in "abc":
        scene.add(name, prompt=6, output=10)
    assert sorted(scene.run()) == ["a", "b", "c"]
    assert scene.schedule.pool.used == 0
    assert scene.wasted == 0, "whoever is in flight was not preempted"


def test_whoever_finds_no_block_waits_for_the_result_and_is_not_passed_over() -> None:
    scene = Overlapped(blocks=5)
    for name in "ab":
        scene.add(name, prompt=7, output=4)
    assert scene.fill() == [["a", "b"], ["a", "b"]], "the prompt's last block has one place more"
    scene.complete()
    assert scene.fill() == [], "nobody can give way, and there is one block for two"
    scene.complete()
    assert scene.fill()[0] == ["a"], "the later one has given way"
    assert scene.schedule.preemptions == 1


# --- when ---


class Watched(FixedChunk):
    """Notes what it sees."""

    def __init__(self) -> None:
        super().__init__(64)
        self.seen: list[tuple[float, list[float]]] = []

    def wishes(self, view: View) -> list[Wish]:
        self.seen.append((view.now, [one.waits_since for one in view.decodes]))
        return super().wishes(view)


def timed(overhead_s: float = 0.0) -> tuple[Schedule, Watched, Sequence]:
    """A step takes a second, and a tenth for each row."""
    costs = Costs(coefficients=(1.0, 0.0, 0.0, 0.0, 0.1, 0.0))
    costs.overhead_s = overhead_s
    watched = Watched()
    schedule = Schedule(BlockPool(64, 4), watched, 64, costs=costs)
    return schedule, watched, schedule.add(enqueue("a", 1, max_output_tokens=50), 5.0)


def result(step: Step | None, took_s: float) -> StepDone:
    assert step is not None
    return StepDone(step.step, tuple(SampledToken(7) for chunk in step.chunks if chunk.sampling is not None), took_s)


def test_the_policy_sees_the_time_at_which_the_step_begins_and_since_when_each_row_waits_then() -> None:
    schedule, watched, one = timed(overhead_s=0.5)
    schedule.plan(10.0)
    schedule.plan(10.25)
    (first_at, first_rows), (second_at, second_rows) = watched.seen
    assert (first_at, first_rows) == (10.0, [])
    assert second_at == pytest.approx(11.6)
    assert second_rows == [second_at]
    assert one.started_at == 10.0


def test_a_step_that_is_overdue_is_predicted_to_end_at_once() -> None:
    schedule, watched, _ = timed()
    schedule.plan(10.0)
    schedule.plan(15.0)
    assert watched.seen[-1] == (15.0, [15.0])


def test_a_step_begins_when_the_one_before_has_ended_in_truth() -> None:
    schedule, watched, _ = timed()
    late = schedule.plan(10.0)
    schedule.plan(10.0)
    schedule.complete(result(late, 0.0), 14.0)
    schedule.plan(14.25)
    assert watched.seen[-1][0] == pytest.approx(15.1)


def test_what_is_told_of_a_token_is_when_it_came() -> None:
    schedule, _, one = timed()
    first = schedule.plan(10.0)
    schedule.plan(10.0)
    schedule.complete(result(first, 1.1), 12.0)
    assert one.last_token_at == 12.0
    assert one.stats(12.0).first_token_at == 12.0


def test_the_wait_behind_another_step_is_no_overhead() -> None:
    schedule, _, _ = timed()
    costs, now = schedule.costs, 0.0
    flying = [schedule.plan(0.0), schedule.plan(0.0)]
    for _ in range(20):
        step = flying.pop(0)
        assert step is not None
        now += costs.step_s(work_of(step.chunks))
        schedule.complete(result(step, costs.step_s(work_of(step.chunks))), now)
        flying.append(schedule.plan(now))
    assert costs.overhead_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_row_that_can_be_is_in_every_step(policy: PolicyName) -> None:
    """Whoever is in the step in flight is in the one behind it too: no two groups that take turns."""
    schedule = Schedule(BlockPool(256, 4), policy_named(policy, 64), 64)
    for name in "abcd":
        schedule.add(enqueue(name, 4, max_output_tokens=50), 0.0)
    flying: list[Step] = []
    now, rows = 0.0, []
    for _ in range(30):
        while len(flying) < 2 and (step := schedule.plan(now)) is not None:
            flying.append(step)
            rows.append(len(step.chunks))
        now += 0.01
        schedule.complete(result(flying.pop(0), 0.01), now)
    assert rows[8:] == [4] * len(rows[8:])
