"""A request's life as the scheduler sees it, and the figures told at its end."""

import math
from array import array

import pytest

from actors.scheduling.blocks import BlockPool, chain, root
from actors.scheduling.sequence import LONGEST_TARGET_S, Sequence, State
from protocol.messages import Stats
from protocol.timeline import LONGEST_GAP
from tests.actors.recorders import enqueue, token_bytes

ROOT = root("model", "tenant")


def sequence(prompt: int = 4, max_output_tokens: int = 3, end_tokens: tuple[int, ...] = ()) -> Sequence:
    request = enqueue("r", prompt, max_output_tokens=max_output_tokens, end_tokens=end_tokens)
    return Sequence(request, 1, BlockPool(8, 4), ROOT, now=100.0)


def test_it_begins_queued_with_its_prompt_and_nothing_computed() -> None:
    one = sequence(prompt=4)
    assert (one.state, one.waiting, one.started) == (State.QUEUED, True, False)
    assert one.tokens == array("i", [10, 11, 12, 13])
    assert (one.remaining, one.output_tokens) == (4, 0)


def test_it_is_prefilling_until_its_first_token_and_decoding_after() -> None:
    one = sequence()
    one.start(101.0)
    assert (one.state, one.waiting, one.started) == (State.PREFILLING, False, True)
    one.append(7, 102.0)
    assert one.state is State.DECODING
    one.start(103.0)
    assert one.state is State.DECODING


@pytest.mark.parametrize("last", ["end token", "output limit"])
def test_an_end_token_or_the_output_limit_makes_a_token_the_last(last: str) -> None:
    one = sequence(max_output_tokens=2, end_tokens=(0, 1))
    assert not one.append(5, 101.0)
    assert one.append(1 if last == "end token" else 6, 102.0)


def test_a_preempted_one_keeps_its_whole_history_and_gives_its_blocks_up() -> None:
    pool = BlockPool(8, 4)
    one = Sequence(enqueue("r", 4), 1, pool, ROOT, now=100.0)
    one.start(101.0)
    one.table.grow(4)
    one.computed = 4
    one.append(7, 102.0)
    one.preempt(pool)
    assert (one.state, one.waiting, one.computed, one.remaining) == (State.PREEMPTED, True, 0, 5)
    assert pool.used == 0
    one.start(103.0)
    assert one.state is State.DECODING, "it has answered before; it is being recomputed"


def test_it_finishes_once() -> None:
    one = sequence()
    one.finish("cancelled")
    assert (one.state, one.reason) == (State.FINISHED, "cancelled")
    with pytest.raises(AssertionError, match="finished twice"):
        one.finish("stop")


def test_the_figures_are_durations_from_its_own_moments() -> None:
    one = sequence()
    one.start(102.0)
    one.append(7, 105.0)
    one.set_paused(True, 106.0)
    one.set_paused(True, 107.0)
    one.set_paused(False, 108.0)
    one.set_paused(False, 109.0)
    one.preempt(BlockPool(8, 4))
    one.start(110.0)
    one.append(8, 111.0)
    one.set_paused(True, 112.0)
    assert one.stats(115.0) == Stats(
        queued_s=2.0, prefill_s=3.0, first_token_at=105.0, output_tokens=2, preemptions=1, paused_s=5.0
    )


def answering(max_output_tokens: int, ttft_target_s: float = 5.0, itl_target_s: float = 1.0) -> Sequence:
    """Received at 100, and running."""
    request = enqueue(
        "r", 4, max_output_tokens=max_output_tokens, ttft_target_s=ttft_target_s, itl_target_s=itl_target_s
    )
    one = Sequence(request, 1, BlockPool(8, 4), ROOT, now=101.0)
    one.start(101.0)
    return one


@pytest.mark.parametrize(("first_at", "late"), [(105.0, False), (105.1, True)])
def test_it_is_late_for_good_when_its_first_token_is(first_at: float, late: bool) -> None:
    one = answering(100)
    assert (one.first_token_due, one.has_begun) == (105.0, False)
    one.append(7, first_at)
    one.append(7, first_at + 0.5)
    assert (one.late, one.has_begun) == (late, True)


def test_one_gap_in_a_hundred_may_be_late() -> None:
    one = answering(200)
    now = 102.0
    lates = []
    for gap in (0.0, 1.0, 1.5, 0.5, 1.5, 1.0, 1.5, 0.1):
        now += gap
        one.append(7, now)
        lates.append(one.late)
    assert lates == [False] * 6 + [True] * 2, "the third of two"


def test_no_gap_may_be_twice_its_target() -> None:
    one = answering(10_000)
    one.append(7, 102.0)
    one.append(7, 102.0 + LONGEST_GAP)
    assert not one.late
    one.append(7, 102.0 + LONGEST_GAP + 1.01 * LONGEST_GAP)
    assert one.late


def test_its_readers_own_pause_is_no_gap() -> None:
    one = answering(50)
    one.append(7, 102.0)
    one.set_paused(True, 102.5)
    one.set_paused(False, 150.0)
    assert one.last_token_at == 150.0
    one.append(7, 151.0)
    assert not one.late


def test_whoever_names_no_target_is_due_in_the_end_all_the_same() -> None:
    one = answering(10, math.inf, math.inf)
    assert (one.first_token_due, one.itl_target_s) == (100.0 + LONGEST_TARGET_S, LONGEST_TARGET_S)
    assert answering(10, 2 * LONGEST_TARGET_S).first_token_due == 100.0 + LONGEST_TARGET_S


def test_what_is_run_again_after_a_preemption_counts_once() -> None:
    pool = BlockPool(8, 4)
    one = Sequence(enqueue("r", 9), 1, pool, ROOT, now=100.0)
    assert one.prompt_tokens_run == 0
    one.start(100.0)
    one.table.grow(9)
    one.computed = 6
    assert one.prompt_tokens_run == 6
    one.preempt(pool)
    assert one.prompt_tokens_run == 6
    one.start(101.0)
    one.computed = 3
    assert one.prompt_tokens_run == 6
    one.computed = 9
    one.append(7, 102.0)
    one.computed = 10
    assert one.prompt_tokens_run == 9


def test_one_that_never_ran_was_queued_until_its_end() -> None:
    assert sequence().stats(107.0) == Stats(queued_s=7.0)


def test_one_that_ran_without_a_token_has_no_prefill_time() -> None:
    one = sequence()
    one.start(103.0)
    assert one.stats(107.0) == Stats(queued_s=3.0, prefill_s=None)


def test_a_full_blocks_name_says_its_tokens_and_all_before_them() -> None:
    one = sequence(prompt=9)
    first = chain(ROOT, token_bytes([10, 11, 12, 13]))
    second = chain(first, token_bytes([14, 15, 16, 17]))
    assert one.names(1, 4) == [first]
    assert one.names(2, 4) == [first, second]
    assert one.names(1, 4) == [first]
    assert len({ROOT, first, second, chain(ROOT, token_bytes([14, 15, 16, 17]))}) == 4


def test_what_it_begins_with_when_it_first_starts_is_told_as_cached_and_later_finds_are_not() -> None:
    pool = BlockPool(8, 4)
    earlier = Sequence(enqueue("q", 8), 1, pool, ROOT, now=100.0)
    earlier.table.grow(8)
    earlier.computed = 8
    earlier.publish(pool)
    one = Sequence(enqueue("r", 9), 2, pool, ROOT, now=100.0)
    one.begin_with(pool.find(one.names(1, 4)), 4)
    assert (one.computed, one.remaining, one.stats(100.0).cached_tokens) == (4, 5, 4)
    one.start(100.0)
    one.preempt(pool)
    one.begin_with(pool.find(one.names(2, 4)), 4)
    assert (one.computed, one.stats(100.0).cached_tokens) == (8, 4)


def test_only_full_blocks_are_published_each_once() -> None:
    pool = BlockPool(8, 4)
    one = Sequence(enqueue("r", 11), 1, pool, ROOT, now=100.0)
    one.table.grow(11)
    for computed, found in ((3, 0), (4, 1), (7, 1), (11, 2)):
        one.computed = computed
        one.publish(pool)
        assert pool.find(one.names(2, 4)) == one.table.blocks.tolist()[:found]


def test_in_another_pool_and_under_another_root_it_has_other_names() -> None:
    pool = BlockPool(8, 4)
    one = Sequence(enqueue("r", 8), 1, pool, ROOT, now=100.0)
    before = one.names(2, 4)
    one.move_to(BlockPool(8, 4), root("another model", "tenant"))
    assert not set(before) & set(one.names(2, 4))
    one.table.grow(1)
    assert pool.used == 0
    with pytest.raises(AssertionError, match="stays where they are"):
        one.move_to(pool, ROOT)
