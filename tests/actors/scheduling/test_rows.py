"""More rows than a step holds: readers who had stopped come back to find that others have their places."""

import pytest

from actors.scheduling.policies import POLICIES, PolicyName, policy_named
from tests.actors.scheduling.scenes import Scene
from tests.actors.scheduling.timed import Run

CHUNK = 32


def crowded(policy: PolicyName, rows: int, answer: int = 200) -> Run:
    """Twice as many decode as a step holds: the first of them had been paused."""
    run = Run(policy_named(policy, CHUNK), (0.01, 1e-5, 0, 0, 1e-4, 0), step_tokens=64, step_rows=rows)
    first = [run.add(8, answer, itl_target_s=0.05) for _ in range(rows)]
    run.until(lambda: all(one.has_begun for one in first), 100)
    for one in first:
        run.schedule.set_paused(one, True, run.now)
    others = [run.add(8, answer, itl_target_s=0.05) for _ in range(rows)]
    run.until(lambda: all(one.has_begun for one in others), 100)
    for one in first:
        run.schedule.set_paused(one, False, run.now)
    run.token_times.clear()
    return run


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_those_who_are_too_many_take_turns(policy: PolicyName, rows: int) -> None:
    run = crowded(policy, rows)
    run.until(lambda: len(run.schedule) < 2 * rows, 1000)
    longest = max(max(run.gaps(request)) for request in run.token_times)
    assert longest < 0.05, "every second step, of a hundredth of a second"
    assert len(run.token_times) == 2 * rows


@pytest.mark.parametrize("policy", ["slack", "fixed_chunk", "prefill_first"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_prompt_is_read_beside_rows_that_fill_the_step(policy: PolicyName, rows: int) -> None:
    run = crowded(policy, rows, answer=5000)
    one = run.add(5 * CHUNK, 1, ttft_target_s=60.0)
    run.until(lambda: one.reason is not None, 30)


def test_a_row_is_left_only_for_who_may_run() -> None:
    scene = Scene(blocks=64, step_rows=2)
    for name in "ab":
        scene.add(name, prompt=4, output=30)
    scene.step()
    waiting = scene.add("c", prompt=4, output=30)
    scene.pause(waiting)
    assert [scene.step() for _ in range(4)] == [["a", "b"]] * 4
    scene.resume(waiting)
    assert "c" in scene.step()


def test_whoever_has_run_last_waits_when_there_is_one_row_and_no_memory_for_another() -> None:
    scene = Scene(blocks=4, step_rows=1)
    scene.add("a", prompt=8, output=6)
    scene.step()
    scene.add("b", prompt=8, output=2)
    for _ in range(5):
        assert scene.step() == ["a"], "an idle step serves nobody"
    assert scene.run() == ["a", "b"]
