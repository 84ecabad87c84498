"""A step that finds no memory on the device: nothing of it counts, smaller ones follow, and nobody is lost."""

import pytest

from actors.scheduling.policies import POLICIES, PolicyName
from actors.scheduling.schedule import Failure
from actors.scheduling.step_bounds import GROW_AFTER, StepBounds
from tests.actors.scheduling.test_overlap import Overlapped

# --- the bounds ---


def test_half_the_tokens_fit_from_then_on() -> None:
    bounds = StepBounds(64, 16)
    assert bounds.shrink(tokens=41, rows=4)
    assert (bounds.tokens, bounds.rows, bounds.most_rows) == (20, 16, 16)


def test_of_decode_rows_alone_half_the_rows_fit_and_prompts_are_cut_as_before() -> None:
    bounds = StepBounds(64, 16)
    assert bounds.shrink(tokens=11, rows=11)
    assert (bounds.tokens, bounds.rows, bounds.most_rows) == (64, 5, 5)


def test_one_token_has_no_half() -> None:
    bounds = StepBounds(64, 16)
    assert not bounds.shrink(tokens=1, rows=1)
    assert (bounds.tokens, bounds.rows) == (64, 16)


def test_twice_as_much_is_tried_after_so_many_steps_without_a_failure() -> None:
    bounds = StepBounds(48, 10)
    bounds.shrink(40, 3)
    bounds.shrink(9, 9)
    for _ in range(GROW_AFTER - 1):
        bounds.ran()
    assert (bounds.tokens, bounds.rows) == (20, 4)
    bounds.ran()
    assert (bounds.tokens, bounds.rows) == (40, 8)
    for _ in range(GROW_AFTER):
        bounds.ran()
    assert (bounds.tokens, bounds.rows) == (48, 10), "never more than configured"


def test_a_failure_begins_the_count_anew() -> None:
    bounds = StepBounds(64, 64)
    bounds.shrink(64, 2)
    for _ in range(GROW_AFTER - 1):
        bounds.ran()
    bounds.shrink(32, 2)
    bounds.ran()
    assert bounds.tokens == 16


# --- the schedule ---


class Tight(Overlapped):
    """A device that runs no step of more than so many tokens."""

    def __init__(self, most: int, policy: PolicyName = "fixed_chunk", *, depth: int = 2) -> None:
        super().__init__(64, policy)
        self.most = most
        self.depth = depth
        self.failures: list[Failure] = []

    def advance(self) -> None:
        """The next result, whatever it is."""
        while len(self.device.in_flight) < self.depth and self.plan():
            pass
        step = self.device.in_flight[0]
        behind_refused = bool(self.failures) and step.behind == self.refused
        if sum(len(chunk.tokens) // 4 for chunk in step.chunks) > self.most or behind_refused:
            self.refuse()
        else:
            self.complete()

    def refuse(self) -> Failure:
        step = self.device.refuse()
        self.refused = step.step
        failure = self.schedule.fail(step.step, 0.0)
        self.schedule.audit()
        assert failure is not None
        self.failures.append(failure)
        if failure.hopeless is not None:
            self.schedule.end(failure.hopeless, "failed")
        return failure


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("most", [1, 2, 3, 7, 20])
def test_everyone_ends_on_a_device_that_runs_small_steps_only(most: int, policy: PolicyName, depth: int) -> None:
    scene = Tight(most, policy, depth=depth)
    for number, prompt in enumerate((30, 5, 1, 12)):
        scene.add(f"r{number}", prompt, output=20)
    results = 0
    while len(scene.schedule):
        scene.advance()
        results += 1
        assert results < 2_000, "it fails for ever"
    assert {one.reason for outcome in scene.outcomes for one in outcome.ended} == {"length"}
    assert sum(len(outcome.rows) for outcome in scene.outcomes) == 80
    assert scene.failures, "nothing was refused"
    assert not any(failure.hopeless for failure in scene.failures)
    assert scene.schedule.pool.used == 0


def test_what_was_planned_behind_it_fails_too_and_nothing_is_planned_until_then() -> None:
    scene = Tight(0)
    one = scene.add("a", prompt=8, output=9)
    assert scene.fill() == [["a"], ["a"]]
    failure = scene.refuse()
    assert (failure.tokens, failure.rows, failure.follows) == (8, 1, False)
    assert scene.plan() == []
    assert scene.refuse().follows
    assert scene.schedule.bounds.tokens == 4, "it was halved once"
    assert (one.computed, one.planned, one.expected, one.steps_in_flight) == (0, 0, 0, 0)
    assert scene.fill() == [["a"], ["a"]]
    assert [len(chunk.tokens) // 4 for step in scene.device.in_flight for chunk in step.chunks] == [4, 4]


def test_only_the_step_behind_may_fail() -> None:
    scene = Tight(0)
    one = scene.add("a", prompt=8, output=9)
    scene.add("b", prompt=8, output=9)
    scene.fill()
    scene.complete()
    assert not scene.refuse().follows
    assert (one.computed, one.planned, len(one.tokens)) == (8, 8, 9)
    assert scene.plan() == ["a"], "half of the rows"
    assert [chunk.follows for step in scene.device.in_flight for chunk in step.chunks] == [-1], "its token is known now"


def test_larger_steps_come_back_when_they_are_run() -> None:
    scene = Tight(64, depth=1)
    scene.add("a", prompt=8, output=GROW_AFTER + 9)
    scene.plan()
    scene.refuse()
    for _ in range(GROW_AFTER):
        assert scene.schedule.bounds.tokens == 4
        scene.advance()
    assert scene.schedule.bounds.tokens == 8


def test_one_token_that_finds_no_memory_is_its_requests_end_and_no_others() -> None:
    scene = Tight(64, depth=1)
    first, other = scene.add("a", prompt=1, output=9), scene.add("b", prompt=1, output=9)
    scene.pause(other)
    scene.plan()
    failure = scene.refuse()
    assert failure.hopeless is first
    scene.resume(other)
    assert scene.run() == ["b"]
    assert scene.schedule.pool.used == 0


def test_who_had_ended_is_released_when_the_step_has_failed() -> None:
    scene = Tight(0, depth=1)
    one = scene.add("a", prompt=1, output=9)
    scene.plan()
    assert not scene.schedule.end(one, "cancelled")
    failure = scene.refuse()
    assert (failure.released, failure.hopeless) == ((one,), None)
    assert scene.schedule.pool.used == 0


def test_a_failure_of_a_step_that_is_not_in_flight_changes_nothing() -> None:
    scene = Tight(0)
    assert scene.schedule.fail(5, 0.0) is None
    assert scene.schedule.bounds.tokens == 64
