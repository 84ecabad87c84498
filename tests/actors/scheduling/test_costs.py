"""What a step is predicted to take, and how the figures are kept apart."""

import math
from array import array
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from actors.scheduling.costs import MARGIN_AT_START, TERMS, USUAL_ERROR, Costs, pairs, terms, work_of
from protocol.messages import Chunk, Measured, Work

COSTS = Costs(coefficients=(0.01, 0.001, 1e-6, 1e-5, 0.002, 1e-7))
SECONDS = st.one_of(st.just(0.0), st.floats(1e-7, 0.1))
"""Of a token or a row. Nothing computes a token in a tenth of a microsecond."""
SMALL = st.one_of(st.just(0.0), st.floats(1e-13, 1e-4))
"""Of a pair, or of a token of context."""
COEFFICIENTS = st.tuples(SECONDS, SECONDS, SMALL, SMALL, SECONDS, SMALL)


def chunk(start: int, tokens: int) -> Chunk:
    return Chunk("r", start, array("i", range(tokens)).tobytes(), b"")


# --- what is in a step ---


@pytest.mark.parametrize(("start", "tokens", "expected"), [(0, 1, 1), (0, 3, 6), (5, 1, 6), (5, 3, 21), (7, 0, 0)])
def test_each_token_of_a_chunk_sees_all_before_it_and_itself(start: int, tokens: int, expected: int) -> None:
    assert pairs(start, tokens) == expected


def test_chunks_of_one_token_are_decode_rows_and_the_others_prefill() -> None:
    chunks = [chunk(7, 1), chunk(0, 3), chunk(5, 3), chunk(100, 1)]
    assert work_of(chunks) == Work(
        prefill_tokens=6, prefill_pairs=6 + 21, prefill_context=5, decode_rows=2, decode_context=107
    )
    assert work_of([]) == Work()


def test_a_steps_seconds_are_the_sum_of_its_terms() -> None:
    work = Work(prefill_tokens=100, prefill_pairs=20_000, prefill_context=150, decode_rows=3, decode_context=5000)
    assert len(terms(work)) == TERMS
    assert COSTS.step_s(work) == pytest.approx(0.01 + 0.1 + 0.02 + 0.0015 + 0.006 + 0.0005)
    assert COSTS.step_s(Work()) == COSTS.base_s == 0.01


def test_a_chunk_and_a_row_are_what_they_add_to_a_step() -> None:
    step = work_of([chunk(50, 100), chunk(700, 1)])
    assert COSTS.step_s(step) == pytest.approx(COSTS.base_s + COSTS.chunk_s(50, 100) + COSTS.row_s(700))


@given(
    coefficients=COEFFICIENTS,
    start=st.integers(0, 5000),
    tokens=st.integers(0, 5000),
    chunk_tokens=st.integers(1, 1000),
)
def test_a_prefill_takes_what_its_chunks_take(
    coefficients: tuple[float, ...], start: int, tokens: int, chunk_tokens: int
) -> None:
    costs = Costs(coefficients=coefficients)
    ends = [*range(start, start + tokens, chunk_tokens), start + tokens]
    summed = sum(costs.chunk_s(begin, end - begin) for begin, end in pairwise(ends))
    assert costs.prefill_s(start, tokens, chunk_tokens) == pytest.approx(summed, rel=1e-9, abs=1e-12)


# --- the largest chunk ---


@given(
    coefficients=COEFFICIENTS, start=st.integers(0, 100_000), most=st.integers(1, 100_000), seconds=st.floats(1e-6, 100)
)
def test_the_largest_chunk_fits_and_one_more_token_does_not(
    coefficients: tuple[float, ...], start: int, most: int, seconds: float
) -> None:
    """But for one token, or a billionth of the time, where rounding decides."""
    costs = Costs(coefficients=coefficients)
    assume(costs.known)
    tokens = costs.largest_chunk(start, most, seconds)
    assert 0 <= tokens <= most
    if tokens > 1:
        assert costs.chunk_s(start, tokens - 1) <= seconds
    assert tokens == most or costs.chunk_s(start, tokens + 2) > seconds * (1 - 1e-9)


@given(coefficients=COEFFICIENTS, start=st.integers(0, 100_000), tokens=st.integers(1, 50_000))
def test_a_chunk_fits_into_what_it_takes(coefficients: tuple[float, ...], start: int, tokens: int) -> None:
    costs = Costs(coefficients=coefficients)
    seconds = costs.chunk_s(start, tokens)
    assume(seconds > costs.coefficients[3] * start)
    assert costs.largest_chunk(start, 10**9, seconds) >= tokens - 1


@pytest.mark.parametrize(
    ("start", "seconds", "tokens"),
    [(0, 0.1, 100), (0, 0.0999, 99), (0, 0.0, 0), (0, -1.0, 0), (0, 9e9, 500), (1000, 0.009, 0), (1000, 0.11, 100)],
)
def test_the_largest_chunk_by_hand(start: int, seconds: float, tokens: int) -> None:
    """1 ms a token, and 10 us for each token before the chunk."""
    assert Costs(coefficients=(0.5, 0.001, 0, 1e-5, 0, 0)).largest_chunk(start, 500, seconds + 1e-12) == tokens


def test_a_chunk_with_pairs_is_as_long_as_its_square_allows() -> None:
    """2 us a pair: 999 tokens from the start take 0.999 s, 1,000 take 1.001."""
    assert Costs(coefficients=(0, 0, 2e-6, 0, 0, 0)).largest_chunk(0, 5000, 1.0) == 999


# --- nothing known, and nonsense ---


def test_while_nothing_is_known_everything_is_predicted_to_take_no_time() -> None:
    costs = Costs()
    assert not costs.known
    work = Work(100, 5000, 0, 30, 3000)
    assert (costs.step_s(work), costs.row_s(1000), costs.prefill_s(0, 1000, 64), costs.base_s) == (0, 0, 0, 0)
    assert costs.largest_chunk(0, 512, 0.001) == costs.largest_chunk(5000, 512, math.inf) == 512
    assert costs.largest_chunk(0, 512, 0.0) == 0
    assert (costs.margin, costs.error) == (MARGIN_AT_START, USUAL_ERROR)


@pytest.mark.parametrize(
    "coefficients",
    [(), (0.1,) * (TERMS - 1), (0.1,) * (TERMS + 1), (-1e-9, *(0.1,) * 5), (math.inf, *(0.1,) * 5), (math.nan,) * 6],
)
def test_coefficients_that_make_no_sense_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="6 coefficients of at least 0 are needed"):
        Costs(coefficients=coefficients)


def test_a_calibration_with_steps_that_took_no_time_teaches_nothing() -> None:
    assert not Costs([Measured(Work(prefill_tokens=100), 0.0)]).known
