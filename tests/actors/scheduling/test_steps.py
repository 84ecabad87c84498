"""What a step holds, and what its result, an end or a new pool makes of it."""

import pytest

from actors.scheduling.blocks import BlockPool
from actors.scheduling.policy import FixedChunk
from actors.scheduling.schedule import Outcome, Schedule
from protocol.messages import SampledToken, StepDone
from tests.actors.recorders import enqueue
from tests.actors.scheduling.scenes import Scene


def test_a_step_runs_as_many_rows_as_it_may_and_they_take_turns() -> None:
    scene = Scene(blocks=16, step_rows=2)
    for name in "abcd":
        scene.add(name, prompt=4, output=3)
    assert scene.step() == ["a", "b"]
    assert [len(scene.step()) for _ in range(4)] == [2, 2, 2, 2]
    assert sorted(scene.run()) == ["a", "b", "c", "d"]


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
