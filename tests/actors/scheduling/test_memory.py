"""Who keeps memory and who gives way: by arrival, the paused first; and nobody thrashes, under any policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.scheduling.policies import POLICIES, PolicyName
from tests.actors.recorders import tokens_in
from tests.actors.scheduling.scenes import Scene


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> PolicyName:
    name: PolicyName = request.param
    return name


def test_a_pool_of_one_full_context_serves_several_without_thrashing(policy: PolicyName) -> None:
    scene = Scene(8, policy)
    for name in "abcd":
        scene.add(name, prompt=8, output=24)
    assert scene.run() == list("abcd")
    assert all(outcome.rows for outcome in scene.outcomes), "every step gives somebody a token"
    least = 4 * (8 + 24 - 1)
    assert scene.computed <= 3 * least, "more is computed again than computed"


def test_two_that_together_exceed_the_memory_both_finish(policy: PolicyName) -> None:
    scene = Scene(6, policy)
    scene.add("a", prompt=8, output=12)
    scene.add("b", prompt=8, output=12)
    assert scene.run() == ["a", "b"]
    assert scene.schedule.preemptions >= 1


def test_the_first_to_come_is_never_preempted_for_later_ones(policy: PolicyName) -> None:
    scene = Scene(6, policy)
    first = scene.add("a", prompt=4, output=20)
    for name in "bcd":
        scene.add(name, prompt=4, output=20)
    scene.run()
    assert first.stats(0.0).preemptions == 0


SHAPES = st.tuples(
    st.integers(1, 4), st.integers(2, 8), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)
)
"""Block size, blocks, and requests: how much of a full context each is, and how much of that its answer."""


@pytest.mark.parametrize("policy", POLICIES)
@given(shapes=SHAPES, chunk=st.sampled_from([1, 2, 4, 8, 64]), step_tokens=st.sampled_from([4, 16, 64]))
@settings(max_examples=40)
def test_a_pool_far_too_small_takes_no_more_steps_than_serving_one_by_one(
    policy: PolicyName,
    shapes: tuple[int, int, list[tuple[float, float]]],
    chunk: int,
    step_tokens: int,
) -> None:
    """So whatever is computed again is computed beside what is new, and no step is lost to it."""
    block_size, blocks, parts = shapes
    scene = Scene(blocks, policy, block_size=block_size, chunk=chunk, step_tokens=step_tokens)
    longest = step_tokens if policy in ("prefill_first", "decode_first") else min(chunk, step_tokens)
    one_by_one = needed = least = 0
    for number, (context, answer) in enumerate(parts):
        tokens = max(1, round(context * blocks * block_size))
        output = min(tokens - 1, round(answer * tokens))
        scene.add(f"r{number}", tokens - output, output)
        one_by_one += -(-tokens // longest) + output
        needed += -(-tokens // block_size)
        least += tokens - min(output, 1)
    scene.run()
    assert len(scene.outcomes) <= one_by_one
    assert scene.schedule.preemptions <= needed, "more often preempted than blocks are needed"
    assert scene.computed <= 2 * least, "more is computed again than computed"


def test_a_preempted_one_is_computed_again_from_its_whole_history(policy: PolicyName) -> None:
    scene = Scene(6, policy)
    scene.add("a", prompt=8, output=12)
    preempted = scene.add("b", prompt=8, output=12)
    while not preempted.preemptions:
        scene.step()
    assert preempted.output_tokens > 0
    history = preempted.tokens.tolist()
    again: list[int] = []
    while len(again) < len(history):
        if "b" in scene.step():
            assert scene.last is not None
            chunk = next(each for each in scene.last.chunks if each.request == "b")
            again = history[: chunk.start] + tokens_in(chunk.tokens)
    assert again == history, "the prompt, and the answer so far"
    scene.run()
    assert scene.device.histories["b"] == preempted.tokens.tolist()


@pytest.mark.parametrize("prompt", [1, 2])
def test_nobody_overtakes_the_first_that_waits_for_memory(policy: PolicyName, prompt: int) -> None:
    scene = Scene(4, policy)
    scene.add("running", prompt=8, output=8)
    scene.step()
    scene.add("long", prompt=12, output=2)
    scene.add("short", prompt=prompt, output=1)
    while "long" not in (names := scene.plan()):
        assert names == ["running"]
        scene.complete()


def test_one_starts_only_beside_the_next_block_of_everyone_who_runs(policy: PolicyName) -> None:
    scene = Scene(4, policy)
    scene.add("a", prompt=5, output=8)
    scene.step()
    scene.add("b", prompt=8, output=2)
    assert scene.step() == ["a"], "two blocks are free, but one of them is a's next"


def test_whoever_a_step_in_flight_includes_is_not_preempted_and_the_first_sits_that_step_out(
    policy: PolicyName,
) -> None:
    scene = Scene(3, policy)
    first = scene.add("a", prompt=4, output=4)
    later = scene.add("b", prompt=2, output=8)
    assert scene.step() == ["a", "b"]
    scene.pause(first)
    while scene.schedule.pool.free:
        assert scene.plan() == ["b"]
        if scene.schedule.pool.free:
            scene.complete()
    scene.resume(first)
    assert scene.plan() == [], "a needs a block, and b's is being written"
    scene.complete()
    assert scene.step() == ["a"]
    assert [one.stats(0.0).preemptions for one in (first, later)] == [0, 1]


def test_paused_ones_give_way_the_latest_first(policy: PolicyName) -> None:
    scene = Scene(4, policy)
    paused = [scene.add(name, prompt=4, output=8) for name in "ab"]
    scene.step()
    scene.pause(*paused)
    scene.add("c", prompt=12, output=2)
    assert scene.step() == ["c"]
    assert [one.stats(0.0).preemptions for one in paused] == [0, 1]


def test_paused_ones_are_not_preempted_in_vain(policy: PolicyName) -> None:
    scene = Scene(4, policy)
    paused = scene.add("a", prompt=4, output=8)
    scene.add("b", prompt=8, output=4)
    scene.step()
    scene.pause(paused)
    scene.add("c", prompt=12, output=2)
    assert scene.step() == ["b"]
    assert paused.stats(0.0).preemptions == 0, "its blocks would not have been enough"


def test_a_paused_one_that_was_preempted_stays_away_until_it_is_resumed(policy: PolicyName) -> None:
    scene = Scene(4, policy)
    paused = scene.add("a", prompt=4, output=4)
    scene.step()
    scene.pause(paused)
    scene.add("b", prompt=16, output=0)
    assert scene.step() == ["b"]
    assert not scene.schedule.waits_for_memory
    assert scene.step() == []
    scene.resume(paused)
    assert scene.schedule.waits_for_memory
    assert scene.run() == ["b", "a"]
