"""Slack, one step at a time: whom it takes, and how much of whom, by figures worked out by hand.

Unless said otherwise a step takes 10 ms, a token of prefill 1 ms and a decode row 2 ms, and nearly every step ends
within 1.15 times that.
"""

import math
from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from actors.scheduling.costs import Costs, pairs
from actors.scheduling.sequence import Sequence
from actors.scheduling.slack import SMALLEST_CHUNK, Slack
from protocol.messages import Work
from tests.actors.scheduling.views import decoding, prefilling, view, waiting, wished

COSTS = Costs(coefficients=(0.010, 0.001, 0, 0, 0.002, 0))
TOKENS_ONLY = Costs(coefficients=(0, 0.001, 0, 0, 0, 0))


def rows(count: int, *, target_s: float = math.inf, waited_s: float = 0.0, late: bool = False) -> list[Sequence]:
    return [decoding(order, target_s=target_s, waited_s=waited_s, late=late) for order in range(1, count + 1)]


# --- the chunk ---


def test_the_chunk_is_cut_so_that_the_step_ends_within_the_soonest_due_gap() -> None:
    """80 ms are left, 69.6 ms with the margin, of which the base and five rows take 20."""
    decodes = [*rows(4, target_s=0.1), decoding(5, target_s=0.1, waited_s=0.02)]
    seen = view(*decodes, waiting(9, 500), costs=COSTS)
    assert wished(Slack(512), seen) == [*((f"r{order}", 1) for order in range(1, 6)), ("r9", 49)]


def test_the_wider_the_margin_the_smaller_the_chunk() -> None:
    wide = Costs(coefficients=COSTS.coefficients)
    wide.margin = 2.0
    assert wished(Slack(512), view(*rows(5, target_s=0.15), waiting(9, 500), costs=wide))[-1] == ("r9", 55)


def test_without_a_decode_row_the_chunk_is_as_long_as_it_may_be() -> None:
    assert wished(Slack(512), view(waiting(1, 700), costs=COSTS)) == [("r1", 512)]
    assert wished(Slack(512), view(waiting(1, 700), max_step_tokens=300, costs=COSTS)) == [("r1", 300)]


def test_rows_without_targets_leave_all_the_time_there_is() -> None:
    assert wished(Slack(512), view(*rows(2), waiting(9, 700), costs=COSTS))[-1] == ("r9", 512)


def test_a_chunk_too_short_to_be_worth_while_is_left_for_a_later_step() -> None:
    """60 ms leave time for 32 tokens, 31 ms for 6. The first prefill of a step is content with a quarter of a chunk."""
    assert wished(Slack(512), view(*rows(5, target_s=0.06), waiting(9, 500), costs=COSTS))[-1] == ("r9", 32)
    beside = view(*rows(5, target_s=0.06), waiting(8, 20, due_in=1), waiting(9, 500, due_in=9), costs=COSTS)
    assert wished(Slack(512), beside)[5:] == [("r8", 20)]
    assert wished(Slack(512), view(*rows(5, target_s=0.058), waiting(9, 500), costs=COSTS))[-1] == ("r9", 30)
    assert len(wished(Slack(512), view(*rows(5, target_s=0.031), waiting(9, 500), costs=COSTS))) == 5


def test_a_short_chunk_that_is_all_there_is_to_read_is_worth_while() -> None:
    assert wished(Slack(512), view(*rows(5, target_s=0.05), waiting(9, 20), costs=COSTS))[-1] == ("r9", 20)


def test_prompts_of_one_token_take_the_time_of_the_rows_they_are() -> None:
    """A row takes 2 ms, and so 24 fit into the 49.6 ms that five others leave of 80."""
    seen = view(*rows(5, target_s=0.08), *(waiting(order, 1) for order in range(10, 60)), costs=COSTS)
    assert len(wished(Slack(512), seen)) == 5 + 24


def test_what_the_first_prefill_leaves_of_the_time_and_the_chunk_goes_to_the_next() -> None:
    seen = view(*rows(5, target_s=0.15), waiting(8, 60), waiting(9, 500), costs=COSTS)
    assert wished(Slack(512), seen)[5:] == [("r8", 60), ("r9", 50)], "110 ms: 130 ms with the margin, without 20"
    assert wished(Slack(70), seen)[5:] == [("r8", 60), ("r9", 10)]


@given(
    coefficients=st.tuples(*(st.floats(0, most) for most in (0.05, 0.01, 1e-6, 1e-5, 0.01, 1e-5))),
    contexts=st.lists(st.tuples(st.integers(1, 300), st.floats(0.001, 1.0)), min_size=1, max_size=8),
    prompt=st.integers(2, 500),
    computed=st.integers(1, 300),
    chunk=st.integers(1, 512),
)
def test_a_chunk_is_the_largest_that_ends_in_time_with_its_margin(
    coefficients: tuple[float, ...], contexts: list[tuple[int, float]], prompt: int, computed: int, chunk: int
) -> None:
    costs = Costs(coefficients=coefficients)
    # A gap shorter than one row alone takes binds nobody.
    assume(all((costs.base_s + costs.row_s(0)) * costs.margin <= gap for _, gap in contexts))
    decodes = [decoding(order, context, target_s=gap) for order, (context, gap) in enumerate(contexts, start=1)]
    sizes = dict(wished(Slack(chunk), view(*decodes, prefilling(99, prompt, computed), costs=costs)))
    tokens = sizes.get("r99", 0)
    beside = [one for one in decodes if one.request in sizes]

    def ends_in_time(tokens: int) -> bool:
        cached = sum(one.computed for one in beside)
        if tokens == 1:
            work = Work(0, 0, 0, len(beside) + 1, cached + computed)
        else:
            work = Work(tokens, pairs(computed, tokens), computed if tokens else 0, len(beside), cached)
        return costs.step_s(work) * costs.margin <= min(one.itl_target_s for one in beside) * (1 + 1e-9)

    assert tokens <= min(chunk, prompt)
    if tokens:
        assert ends_in_time(tokens)
        assert tokens == min(chunk, prompt) or not ends_in_time(tokens + 2), "off by one at the most"
    elif prompt >= SMALLEST_CHUNK:
        assert not ends_in_time(max(SMALLEST_CHUNK, min(chunk, prompt)) + 1)


# --- whose first token is next ---


def test_whose_first_token_is_due_soonest_comes_first_whenever_it_came() -> None:
    seen = view(waiting(1, 9, due_in=30), prefilling(2, 9, due_in=20), waiting(3, 9, due_in=10), waiting(4, 9))
    assert [name for name, _ in wished(Slack(512), seen)] == ["r3", "r2", "r1", "r4"]


def test_of_those_due_at_the_same_time_the_first_to_come_goes_first() -> None:
    seen = view(prefilling(1, 9, due_in=10), waiting(2, 9, due_in=10), costs=COSTS)
    assert [name for name, _ in wished(Slack(512), seen)] == ["r1", "r2"]
    assert wished(Slack(9), seen) == [("r1", 9)]


def test_the_longest_is_given_up_when_not_all_can_be_in_time() -> None:
    """1 s of work is due first, and then five times 0.3 s in 1.5 s."""
    short = [waiting(order, 300, due_in=1.5) for order in range(2, 7)]
    seen = view(waiting(1, 1000, due_in=1.2), *short, max_step_tokens=5000, costs=TOKENS_ONLY)
    assert wished(Slack(5000), seen) == [*((f"r{order}", 300) for order in range(2, 7)), ("r1", 1000)]


def test_those_that_are_late_come_last_the_longest_due_first() -> None:
    seen = view(waiting(1, 9, due_in=-1), prefilling(2, 9, due_in=-3), waiting(3, 9, due_in=5), costs=COSTS)
    assert [name for name, _ in wished(Slack(512), seen)] == ["r3", "r2", "r1"]


def test_beside_decode_rows_a_prefill_counts_for_longer() -> None:
    """Half of each step is the rows', so 300 ms of work take 600 ms."""
    decodes = rows(5, target_s=0.046)
    in_time = waiting(8, 300, due_in=0.61)
    late = waiting(7, 300, due_in=0.59)
    assert wished(Slack(20), view(*decodes, in_time, waiting(9, 20, due_in=900), costs=COSTS))[-1] == ("r8", 20)
    assert wished(Slack(20), view(*decodes, late, waiting(9, 20, due_in=900), costs=COSTS))[-1] == ("r9", 20)


def test_what_the_cache_holds_of_a_prompt_is_no_work() -> None:
    cached = waiting(1, 400, due_in=0.2)
    assert wished(Slack(500), view(cached, waiting(2, 100, due_in=0.3), costs=TOKENS_ONLY))[0] == ("r2", 100)
    cached.cached_hint = 300
    assert wished(Slack(500), view(cached, waiting(2, 100, due_in=0.3), costs=TOKENS_ONLY))[0] == ("r1", 100)


def in_time(jobs: list[tuple[int, float]]) -> int:
    """How many of these (milliseconds of work, due) are done when due, one after another."""
    done = kept = 0
    for work, due in jobs:
        done += work
        kept += done <= due
    return kept


@given(jobs=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=6))
def test_no_other_order_makes_more_first_tokens_in_time(jobs: list[tuple[int, float]]) -> None:
    """Jobs in milliseconds; half a millisecond of grace, so that no sum of floats decides."""
    line = [waiting(order, work, due_in=(due + 0.5) / 1000) for order, (work, due) in enumerate(jobs, start=1)]
    wishes = Slack(5000).wishes(view(*line, costs=TOKENS_ONLY))
    assert sorted(wish.sequence.order for wish in wishes) == list(range(1, len(jobs) + 1))
    mine = in_time([jobs[wish.sequence.order - 1] for wish in wishes])
    assert mine == max(in_time(list(order)) for order in permutations(jobs))


# --- decode rows ---

ROWS = Costs(coefficients=(0.010, 0.001, 0, 0, 0.020, 0))
"""100 ms, 87 with the margin: time for three rows."""


def test_a_row_with_a_loose_target_sits_out_when_tight_ones_are_due() -> None:
    tight = rows(3, target_s=0.1)
    loose = [decoding(order, target_s=10.0) for order in (4, 5, 6)]
    assert wished(Slack(512), view(*tight, *loose, costs=ROWS)) == [("r1", 1), ("r2", 1), ("r3", 1)]


def test_a_row_with_a_loose_target_comes_first_when_it_is_due_first() -> None:
    tight = rows(3, target_s=0.1)
    loose = decoding(4, target_s=10.0, waited_s=9.95)
    assert [name for name, _ in wished(Slack(512), view(*tight, loose, costs=ROWS))] == ["r4", "r1", "r2"]


def test_rows_overdue_through_a_step_that_took_too_long_all_run_if_a_gap_has_time_for_all() -> None:
    assert len(wished(Slack(512), view(*rows(3, target_s=0.1, waited_s=5.0), costs=ROWS))) == 3


def test_one_row_runs_even_if_its_step_takes_longer_than_its_target() -> None:
    assert wished(Slack(512), view(decoding(1, target_s=0.001), costs=ROWS)) == [("r1", 1)]


def test_all_rows_run_where_no_row_can_be_in_time() -> None:
    assert len(wished(Slack(512), view(*rows(9, target_s=0.001), costs=ROWS))) == 9


def test_one_row_that_nothing_can_keep_in_time_does_not_make_the_others_late() -> None:
    impossible = decoding(9, target_s=0.001)
    tight = rows(3, target_s=0.1)
    loose = [decoding(order, target_s=10.0) for order in (4, 5, 6)]
    names = [name for name, _ in wished(Slack(512), view(*tight, *loose, impossible, costs=ROWS))]
    assert {"r1", "r2", "r3"} <= set(names)
    assert len(names) <= 4, "three rows are in time; the loose ones sit out, with or without the impossible one"


def test_rows_that_are_late_make_nobody_else_late() -> None:
    """They get a tenth of the rows' time while there are too many for all: nothing yet."""
    late = [decoding(order, target_s=0.1, waited_s=9.0, late=True) for order in (4, 5, 6)]
    assert wished(Slack(512), view(*rows(3, target_s=0.1), *late, costs=ROWS)) == [("r1", 1), ("r2", 1), ("r3", 1)]


def test_a_late_rows_turn_is_taken_from_those_who_can_wait() -> None:
    """In no step are there more rows than there is time for, though the late ones are owed some of it."""
    late = [decoding(order, target_s=0.1, waited_s=9.0, late=True) for order in (4, 5, 6)]
    loose = decoding(7, target_s=10.0)
    slack = Slack(512)
    steps = [wished(slack, view(*rows(2, target_s=0.1), loose, *late, costs=ROWS)) for _ in range(20)]
    assert any(name in ("r4", "r5", "r6") for step in steps for name, _ in step)
    assert max(len(step) for step in steps) == 3


def test_late_rows_run_beside_the_others_while_there_is_time_for_all() -> None:
    late = [decoding(order, target_s=1.0, waited_s=9.0, late=True) for order in (4, 5, 6)]
    assert len(wished(Slack(512), view(*rows(3, target_s=1.0), *late, costs=ROWS))) == 6


def test_late_rows_alone_leave_prefill_a_third_of_a_step() -> None:
    """Ten rows take 210 ms; a step of one and a half times that has 105 ms for prefill."""
    late = rows(10, target_s=0.01, waited_s=9.0, late=True)
    assert wished(Slack(512), view(*late, waiting(99, 500), costs=ROWS))[-1] == ("r99", 105)


def test_a_late_row_waits_longer_only_where_that_keeps_a_first_token_in_time() -> None:
    """Its next token is wanted in 100 ms: 56 tokens. It could wait for 900: 752 tokens, and a second's work is done."""
    late = decoding(1, target_s=0.4, waited_s=0.3, late=True)

    def chunk(due_in: float) -> tuple[str, int]:
        seen = view(late, waiting(9, 999, due_in=due_in), max_step_tokens=2000, costs=ROWS)
        return wished(Slack(1000), seen)[-1]

    assert chunk(due_in=900) == ("r9", 56), "it is in time all the same"
    assert chunk(due_in=1.4) == ("r9", 752)
    assert chunk(due_in=0.9) == ("r9", 56), "it is late all the same"


# --- whatever the view ---


@st.composite
def sequences(draw: st.DrawFn) -> list[Sequence]:
    found = []
    targets = st.sampled_from([0.001, 0.05, 0.2, math.inf])
    for order in range(1, draw(st.integers(0, 12)) + 1):
        kind = draw(st.sampled_from(["decoding", "prefilling", "waiting"]))
        due_in = draw(st.sampled_from([-5.0, -0.1, 0.05, 0.5, 5.0, math.inf]))
        tokens = draw(st.integers(1, 400))
        if kind == "decoding":
            waited_s = draw(st.sampled_from([0.0, 0.1, 9.0]))
            found.append(decoding(order, tokens, target_s=draw(targets), waited_s=waited_s, late=draw(st.booleans())))
        elif kind == "prefilling":
            found.append(prefilling(order, tokens + 1, draw(st.integers(0, 400)), due_in=due_in))
        else:
            found.append(waiting(order, tokens, due_in=due_in, paused=draw(st.booleans())))
    return found


@given(
    drawn=sequences(),
    coefficients=st.one_of(
        st.just((0.0,) * 6), st.tuples(*(st.floats(0, most) for most in (0.1, 0.01, 1e-5, 1e-4, 0.1, 1e-4)))
    ),
    chunk=st.integers(1, 600),
    max_step_tokens=st.integers(12, 600),
    again=st.integers(1, 3),
)
def test_a_step_keeps_its_bounds_and_is_never_idle(
    drawn: list[Sequence], coefficients: tuple[float, ...], chunk: int, max_step_tokens: int, again: int
) -> None:
    slack = Slack(chunk)
    seen = view(*drawn, max_step_tokens=max_step_tokens, costs=Costs(coefficients=coefficients))
    for _ in range(again):
        wishes = slack.wishes(seen)
    decodes = [wish for wish in wishes if wish.sequence.has_begun]
    assert wishes[: len(decodes)] == decodes
    assert sum(wish.tokens for wish in wishes) <= max_step_tokens
    assert sum(wish.tokens for wish in wishes if not wish.sequence.has_begun) <= chunk
    assert all(1 <= wish.tokens <= wish.sequence.remaining for wish in wishes)
    assert not any(wish.sequence.paused for wish in wishes)
    assert len({wish.sequence.order for wish in wishes}) == len(wishes)
    assert bool(wishes) == any(not one.paused for one in drawn), "nobody is idle while somebody can run"
    assert bool(decodes) == any(one.has_begun for one in drawn), "rows run in every step, if there are any"
    if not any(coefficients):
        assert len(decodes) == sum(one.has_begun for one in drawn), "nothing known: all rows run"


@pytest.mark.parametrize("due_in", [0.0, math.inf])
def test_a_prompt_of_one_token_needs_no_more_than_one_token(due_in: float) -> None:
    assert wished(Slack(512), view(waiting(1, 1, due_in=due_in), costs=COSTS)) == [("r1", 1)]
