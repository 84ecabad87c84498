"""What others have computed is found by its content, and nothing else is."""

import pytest

from actors.scheduling.policies import PolicyName
from actors.scheduling.schedule import Outcome
from protocol.messages import SampledToken, StepDone
from tests.actors.scheduling.scenes import Scene


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
    assert scene.plan() == ["a", "b", "c"]
    scene.complete()
    after = scene.add("d", prompt, output=9)
    assert scene.plan() == ["a", "b", "c", "d"]
    scene.complete()
    scene.complete()
    assert [one.stats(0.0).cached_tokens for one in (first, together, later, after)] == [0, 0, 0, 8]
    assert after.table.blocks[:2] == first.table.blocks[:2], "the first to publish a name keeps it"


def test_a_prefill_in_chunks_is_found_as_far_as_it_has_come() -> None:
    scene = Scene(blocks=16, chunk=6)
    scene.add("a", list(range(20)), output=1)
    scene.step()
    found = scene.add("b", list(range(20)), output=1)
    scene.pause(scene.schedule.sequences[0])
    assert scene.step() == ["b"]
    assert found.stats(0.0).cached_tokens == 4
    scene.resume(scene.schedule.sequences[0])
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
    scene.pause(one)
    scene.add("b", 15, output=1)
    assert scene.step() == ["b"]
    assert one.waiting
    assert scene.schedule.pool.cached >= 1
    scene.resume(one)
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
    scene.pause(paused)
    scene.add("long", 12, output=1)
    assert scene.step() == ["runs"], "3 blocks and the running one's next: 2 are free, and the paused one frees 1"
    assert paused.stats(0.0).preemptions == 0
    assert scene.schedule.waits_for_memory


def test_paused_ones_are_not_preempted_for_blocks_that_the_next_one_shares() -> None:
    scene = Scene(blocks=6)
    paused = scene.add("paused", list(range(9)), output=8)
    other = scene.add("runs", 8, output=4)
    scene.step()
    scene.pause(paused)
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
    scene.pause(one)
    scene.pause(other)
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


@pytest.mark.parametrize("policy", ["slack", "fixed_chunk"])
def test_what_is_found_takes_no_part_of_the_chunk(policy: PolicyName) -> None:
    """Of each prompt 40 tokens are found and 4 are left to run: three of them are no more than 12 tokens."""
    scene = Scene(64, policy, chunk=16)
    common = list(range(40))
    scene.add("first", common, output=0)
    scene.run()
    for number, name in enumerate("abc"):
        scene.add(name, [*common, *range(100 * number + 100, 100 * number + 104)], output=4)
    assert scene.step() == ["a", "b", "c"]
