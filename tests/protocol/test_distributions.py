"""Numbers that are drawn stay within their bounds, and are distributed as they are named."""

import math
import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocol.arrival_times import arrival_times, gamma
from protocol.distributions import MOST_DRAWN, MOST_TOKENS, Drawn, check_whole, seconds, whole

seeds = st.integers(0, 2**63)
amounts = st.floats(1e-3, 1e6)


def chance(seed: int = 0) -> random.Random:
    return random.Random(f"test {seed}")


@given(seeds, st.floats(0, 1e9), st.floats(0, 1e9))
def test_what_is_drawn_from_to_lies_between(seed: int, one: float, other: float) -> None:
    of = Drawn(from_=min(one, other), to=max(one, other))
    assert of.from_ is not None
    assert of.to is not None
    assert of.from_ <= of.draw(chance(seed)) <= of.to


@given(seeds, st.integers(1, MOST_TOKENS), st.integers(0, 1000))
def test_a_whole_number_from_to_lies_between_and_may_be_either(seed: int, least: int, more: int) -> None:
    drawn = whole(Drawn(from_=least, to=least + more), chance(seed))
    assert isinstance(drawn, int)
    assert least <= drawn <= least + more


@given(seeds, amounts, st.floats(0, 10), amounts, amounts)
def test_a_log_normal_is_never_outside_its_edges(
    seed: int, median: float, spread: float, one: float, other: float
) -> None:
    of = Drawn(median=median, spread=spread, least=min(one, other), most=max(one, other))
    assert min(one, other) <= of.draw(chance(seed)) <= max(one, other)


@given(seeds, amounts, st.floats(0, 10), st.floats(1, 1e6), st.floats(1, 1e6))
def test_a_whole_number_keeps_edges_that_are_none(
    seed: int, median: float, spread: float, one: float, other: float
) -> None:
    least, most = min(one, other), max(one, other)
    assume(math.ceil(least) <= math.floor(most))
    assert least <= whole(Drawn(median=median, spread=spread, least=least, most=most), chance(seed)) <= most


@given(seeds, amounts, st.floats(0, 10))
def test_a_whole_number_is_never_0_nor_beyond_what_can_be_asked_for(seed: int, median: float, spread: float) -> None:
    assert 1 <= whole(Drawn(median=median, spread=spread), chance(seed)) <= MOST_DRAWN


@given(seeds, amounts)
def test_an_exponential_is_0_or_more_and_finite(seed: int, mean: float) -> None:
    assert 0 <= seconds(Drawn(mean=mean), chance(seed)) < math.inf


@given(seeds, st.floats(1e-4, 1e4))
def test_a_gamma_is_0_or_more_and_finite(seed: int, shape: float) -> None:
    assert 0 <= gamma(shape, chance(seed)) < math.inf


@given(
    seeds, st.sampled_from(["together", "fixed", "poisson", "gamma"]), st.floats(0.01, 100), st.integers(1, 50), amounts
)
def test_arrivals_begin_at_0_and_never_go_back(
    seed: int, arrive: str, burstiness: float, count: int, rate: float
) -> None:
    times = arrival_times(arrive, count, rate, burstiness, chance(seed))
    assert len(times) == count
    assert times[0] == 0.0
    assert times == sorted(times)


def test_half_are_below_the_median_and_two_thirds_within_the_spread() -> None:
    stream = chance()
    drawn = [Drawn(median=200, spread=0.5).draw(stream) for _ in range(20_000)]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.02)
    assert statistics.pstdev(math.log(value) for value in drawn) == pytest.approx(0.5, rel=0.02)
    assert sum(200 / 1.65 <= value <= 200 * 1.65 for value in drawn) / len(drawn) == pytest.approx(0.68, abs=0.02)


def test_edges_leave_the_median_where_it_is() -> None:
    stream = chance()
    drawn = [Drawn(median=200, spread=1.0, least=150, most=1000).draw(stream) for _ in range(20_000)]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.02)


def test_an_exponential_has_its_mean_and_whole_numbers_are_alike_likely() -> None:
    stream = chance()
    assert statistics.mean(Drawn(mean=4).draw(stream) for _ in range(20_000)) == pytest.approx(4, rel=0.03)
    drawn = [whole(Drawn(from_=1, to=4), stream) for _ in range(20_000)]
    for value in (1, 2, 3, 4):
        assert drawn.count(value) == pytest.approx(5000, rel=0.05)


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 4.0, 100.0])
def test_a_gamma_has_its_mean_and_variance(shape: float) -> None:
    stream = chance()
    drawn = [gamma(shape, stream) for _ in range(40_000)]
    assert statistics.mean(drawn) == pytest.approx(shape, rel=0.05)
    assert statistics.pvariance(drawn) == pytest.approx(shape, rel=0.15)


def test_a_plain_number_takes_nothing_from_the_stream() -> None:
    stream, fresh = chance(), chance()
    assert (whole(7, stream), seconds(1.5, stream)) == (7, 1.5)
    assert stream.random() == fresh.random()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "it has from and to, or median and spread, or mean"),
        ({"from_": 1.0}, "it has from and to"),
        ({"median": 3.0}, "it has from and to"),
        ({"from_": 1.0, "to": 2.0, "least": 1.0}, "it has from and to"),
        ({"mean": 1.0, "median": 2.0, "spread": 1.0}, "it has from and to"),
        ({"from_": 3.0, "to": 2.0}, "from 3 is above to 2"),
        ({"mean": 1.0, "least": 3.0, "most": 2.0}, "least 3 is above most 2"),
        ({"from_": -1.0, "to": 2.0}, "from must be 0 or more"),
        ({"mean": math.inf}, "mean must be 0 or more, and finite"),
        ({"median": 1.0, "spread": math.nan}, "spread must be 0 or more"),
        ({"mean": 0.0}, "median and mean must be above 0"),
        ({"median": 10.0, "spread": 50.0}, "spread is 50, of the natural logarithm"),
    ],
)
def test_what_cannot_be_drawn_from_is_told(fields: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Drawn(**fields)


@pytest.mark.parametrize(
    "of",
    [
        Drawn(from_=0, to=3),
        Drawn(from_=1.2, to=1.8),
        Drawn(mean=1, most=0.5),
        Drawn(mean=9, least=2.2, most=2.8),
        Drawn(mean=9, most=1e10),
        Drawn(median=2e6, spread=1),
        Drawn(mean=9, least=2e6),
        Drawn(from_=1, to=1_000_001),
        1_000_001,
    ],
)
def test_where_there_is_no_whole_number_it_is_told(of: Drawn | int) -> None:
    with pytest.raises(ValueError, match=r"^tokens: "):
        check_whole("tokens", of)
