"""Slack over many steps that take what was predicted: whoever can be in time is, and the others get on."""

import math
from collections.abc import Callable
from itertools import cycle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.scheduling.sequence import Sequence
from actors.scheduling.slack import LATE_SHARE, SMALLEST_CHUNK, Slack
from tests.actors.scheduling.timed import Run

TRUTH = (0.010, 0.001, 0.0, 0.0, 0.020, 0.0)
"""Seconds for a step, a token and a row."""


def late_gaps(run: Run, one: Sequence) -> int:
    return sum(gap > one.itl_target_s + 1e-9 for gap in run.gaps(one.request))


# --- decode rows ---


def test_rows_with_loose_targets_take_turns_in_what_tight_ones_leave_and_all_are_in_time() -> None:
    """Four rows fit into 100 ms: three tight ones, and one of twenty that may wait for ten seconds."""
    run = Run(Slack(512), TRUTH)
    tight = [run.add(4, 300, 5.0, 0.1) for _ in range(3)]
    loose = [run.add(4, 10, 5.0, 10.0) for _ in range(20)]
    run.until(lambda: not len(run.schedule), 1000)
    assert [late_gaps(run, one) for one in tight + loose] == [0] * 23
    assert run.steps < 320, "three hundred steps for the tight ones, and a few to read the prompts"


def test_one_target_that_nothing_can_meet_costs_the_others_nothing() -> None:
    run = Run(Slack(512), TRUTH)
    tight = [run.add(4, 300, 5.0, 0.1) for _ in range(3)]
    for _ in range(20):
        run.add(4, 10, 5.0, 10.0)
    impossible = run.add(4, 100, 5.0, 0.001)
    run.until(lambda: not len(run.schedule), 2000)
    assert impossible.late
    assert [one.late for one in tight] == [False] * 3


@given(late=st.integers(1, 12), tight=st.integers(3, 6), row_s=st.floats(0.005, 0.05), base_s=st.floats(0.001, 0.02))
@settings(max_examples=15)
def test_late_rows_among_too_many_get_a_tenth_of_the_time(late: int, tight: int, row_s: float, base_s: float) -> None:
    """So the gap of each is at most what all of them take, ten times over."""
    target_s = base_s + (tight + 0.5) * row_s
    run = Run(Slack(512), (base_s, 0.0001, 0.0, 0.0, row_s, 0.0))
    in_time = [run.add(4, 100_000, 5.0, target_s) for _ in range(tight)]
    lost = [run.add(4, 100_000, 5.0, target_s) for _ in range(late)]
    run.until(lambda: all(one.has_begun for one in in_time + lost), 100)
    for one in lost:
        one.late = True
    turn_s = late * row_s * (1 + LATE_SHARE) / LATE_SHARE + 3 * (target_s + row_s)
    begin_s = run.now
    run.until(lambda: run.now > begin_s + 3 * turn_s, 10_000)
    for one in lost:
        assert max(run.gaps(one.request)) <= turn_s
        assert run.now - run.token_times[one.request][-1] <= turn_s


@pytest.mark.parametrize("target_s", [0.0001, 0.01])
def test_targets_that_nothing_can_meet_leave_everyone_served(target_s: float) -> None:
    run = Run(Slack(512), TRUTH)
    for _ in range(10):
        run.add(300, 100, target_s, target_s)
    run.until(lambda: not len(run.schedule), 10 * (1 + 300 // SMALLEST_CHUNK) + 100 + 100)


# --- prefill ---


@given(
    base_s=st.floats(0.0, 0.01),
    token_s=st.floats(0.0005, 0.002),
    pair_s=st.floats(0.0, 1e-6),
    context_s=st.floats(0.0, 1e-6),
    row_s=st.floats(0.0, 0.002),
    chunk=st.sampled_from([64, 200, 512]),
    here=st.integers(1, 30),
    kinds=st.lists(
        st.tuples(
            st.sampled_from([2, 10, 50, 200, 400]),
            st.sampled_from([0, 1, 5, 50]),
            st.sampled_from([0.05, 0.5, 2.0, 5.0, 60.0]),
            st.sampled_from([0.001, 0.03, 0.1, 1.0, math.inf]),
        ),
        min_size=1,
        max_size=4,
    ),
    warm_up=st.integers(0, 40),
    prompt=st.sampled_from([100, 500, 2000]),
)
@example(
    base_s=0.008, token_s=0.001, pair_s=0.0, context_s=0.0, row_s=0.0, chunk=64, here=17,
    kinds=[(200, 5, 0.5, 0.1)], warm_up=7, prompt=100,
)  # fmt: skip  # the chunks bind, not the time
@example(
    base_s=0.0, token_s=0.001953125, pair_s=0.0, context_s=4.878198110255369e-07, row_s=0.001953125, chunk=64, here=9,
    kinds=[(10, 5, 0.5, 0.03)], warm_up=0, prompt=2000,
)  # fmt: skip  # rows leave it pieces of eleven tokens, and each reads the context again
@settings(max_examples=40)
def test_whoever_is_late_waits_no_longer_than_the_late_work_before_it_takes_in_a_tenth_of_time_and_chunks(
    base_s: float,
    token_s: float,
    pair_s: float,
    context_s: float,
    row_s: float,
    chunk: int,
    here: int,
    kinds: list[tuple[int, int, float, float]],
    warm_up: int,
    prompt: int,
) -> None:
    """`kinds` come without end, as soon as there is a place: prompt, answer and both targets."""
    run = Run(Slack(chunk), (base_s, token_s, pair_s, context_s, row_s, 0.0))
    coming = cycle(kinds)

    def flood() -> None:
        while len(run.schedule) < here:
            run.add(*next(coming))

    run.flood = flood
    for _ in range(warm_up):
        run.step()
    one = run.add(prompt, 1, 0.1)
    run.until(lambda: one.has_begun or run.now >= one.first_token_due, 1000)
    before = [
        other
        for other in run.schedule.sequences
        if not other.has_begun and other.first_token_due <= one.first_token_due
    ]
    begin_s = run.now
    least_s = work_s(run, before) / LATE_SHARE
    least_steps = sum(len(other.tokens) - other.computed for other in before) / (LATE_SHARE * chunk)
    longest_s = 0.0
    while not one.has_begun:
        planned_at = run.now
        assert run.step() is not None
        longest_s = max(longest_s, run.now - planned_at)
        assert run.now - begin_s <= max(least_s, least_steps * longest_s) + 16 * longest_s


def work_s(run: Run, sequences: list[Sequence]) -> float:
    """What is left to read of these, in the smallest pieces: of less than a chunk's worth, a quarter still serves the
    first. Each reads all the context before it."""
    least = SMALLEST_CHUNK // 4
    return sum(
        run.costs.chunk_s(start, min(least, len(one.tokens) - start))
        for one in sequences
        for start in range(one.computed, len(one.tokens), least)
    )


def test_late_prefills_get_all_that_nobody_else_needs() -> None:
    run = Run(Slack(500), TRUTH)
    one = run.add(5000, 1, 0.1)
    run.until(lambda: one.has_begun, 10)
    assert run.now == pytest.approx(10 * 0.01 + 5000 * 0.001)


def test_a_burst_that_cannot_be_in_time_does_not_make_those_late_who_come_after_it() -> None:
    """A hundred seconds of work come at once, to be done in 3 s; then 0.1 s of work every 0.25 s."""
    run = Run(Slack(500), TRUTH)
    burst = [run.add(1000, 1, 3.0) for _ in range(100)]
    short: list[Sequence] = []
    for number in range(200):
        run.at(4.0 + number * 0.25, lambda: short.append(run.add(100, 1, 2.0)))
    run.until(lambda: not len(run.schedule), 2000)
    assert sum(one.late for one in short) == 0
    assert sum(not one.late for one in burst) == 2, "of 1.01 s each"
    assert run.now < 100 + 20 + 0.01 * run.steps + 0.1, "and the device was never idle"


def test_without_targets_the_first_to_come_is_the_first_to_begin() -> None:
    run = Run(Slack(512), TRUTH)
    for number in range(20):
        run.at(number * 0.001, lambda: run.add(300, 20))
    run.until(lambda: run.came == 20 and not len(run.schedule), 1000)
    begun = sorted(run.token_times, key=lambda name: run.token_times[name][0])
    assert begun == [f"r{number}" for number in range(1, 21)]


@pytest.mark.parametrize("rows", [10, 20])
def test_a_late_prefill_makes_no_row_late_while_there_is_time_beside_them(rows: int) -> None:
    """Twenty rows take 70 ms of 100."""
    run = Run(Slack(256), (0.010, 0.001, 0.0, 0.0, 0.003, 0.0), margin=1.02)
    tight = [run.add(4, 1000, 5.0, 0.1) for _ in range(rows)]
    for _ in range(5):
        run.step()
    one = run.add(3000, 1, 0.1)
    run.until(lambda: not len(run.schedule), 2000)
    assert one.late
    assert [each.late for each in tight] == [False] * rows


@pytest.mark.parametrize("chunk", [256, 512])
def test_late_prefills_leave_those_in_time_their_part_of_the_chunk(chunk: int) -> None:
    """On a device whose steps take 20 ms and a token of prefill 5 us: a chunk of 256 takes 1.3 ms."""
    run = Run(Slack(chunk), (0.020, 5e-6, 0.0, 0.0, 5e-5, 0.0), step_tokens=4096)
    short: list[Sequence] = []
    for _ in range(5):
        run.at(0.5, lambda: run.add(12_000, 1, 0.05))
    for number in range(400):
        run.at(1 + number * 0.05, lambda: short.append(run.add(200, 1, 1.0)))
    run.until(lambda: run.came == 405 and not len(run.schedule), 5000)
    assert sum(one.late for one in short) == 0


def test_when_the_row_that_is_due_finds_no_memory_one_that_can_wait_runs() -> None:
    """Time for one row, and blocks for four: the tight one came last and gives way, and the loose one goes on."""
    run = Run(Slack(64), (0.01, 1e-4, 0.0, 0.0, 0.06, 0.0), blocks=4, block_size=4, margin=1.15)
    loose = run.add(8, 8, 5.0, 10.0)
    tight = run.add(4, 8, 5.0, 0.1)
    run.until(lambda: not len(run.schedule), 40)
    assert (loose.reason, tight.reason) == ("length", "length")


@given(
    block_size=st.integers(1, 8),
    blocks=st.integers(2, 12),
    chunk=st.sampled_from([1, 4, 64]),
    coefficients=st.tuples(
        st.floats(0, 0.05), st.floats(1e-4, 0.01), st.just(0.0), st.just(0.0), st.floats(1e-3, 0.05), st.floats(0, 1e-4)
    ),
    parts=st.lists(
        st.tuples(
            st.floats(0, 1),
            st.floats(0, 1),
            st.sampled_from([0.01, 0.1, 1.0, math.inf]),
            st.sampled_from([0.001, 0.02, 0.06, 0.2, 1.0, math.inf]),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_a_pool_far_too_small_takes_hardly_more_steps_than_serving_one_by_one_whatever_the_targets(
    block_size: int,
    blocks: int,
    chunk: int,
    coefficients: tuple[float, ...],
    parts: list[tuple[float, float, float, float]],
) -> None:
    """`parts`: how much of a full context each is, how much of that its answer, and both targets."""
    run = Run(Slack(chunk), coefficients, blocks=blocks, block_size=block_size, step_tokens=64)
    one_by_one = needed = 0
    for context, answer, ttft_target_s, itl_target_s in parts:
        tokens = max(1, round(context * blocks * block_size))
        output = min(tokens - 1, round(answer * tokens))
        run.add(tokens - output, output, ttft_target_s, itl_target_s)
        one_by_one += -(-tokens // chunk) + output
        needed += -(-tokens // block_size)
    run.until(lambda: not len(run.schedule), 2 * one_by_one)
    assert run.schedule.preemptions <= needed


def test_answers_of_one_token_end_with_their_prompt() -> None:
    run = Run(Slack(512), TRUTH)
    for _ in range(8):
        run.add(64, 1, 5.0, 0.1)
    run.until(lambda: not len(run.schedule), 1)


@pytest.mark.parametrize("come", [lambda run: run.add(1, 1, 0.0, 0.0), lambda run: run.add(1, 3)])
def test_prompts_of_one_token_begin_at_once(come: Callable[[Run], Sequence]) -> None:
    run = Run(Slack(512), TRUTH)
    for _ in range(5):
        come(run)
    run.step()
    assert len(run.token_times) == 5
