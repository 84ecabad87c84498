from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sparkline import BLOCKS, COLUMNS, MOST_SAMPLES, Minute, Scale, Second, scale, second


def test_a_column_is_the_median_and_the_99th_percentile_of_its_second() -> None:
    minute = Minute()
    samples = deque(float(value) for value in range(1, 101))
    minute.take(0.0, deque())
    minute.take(0.5, samples)
    assert not minute.seconds
    minute.take(1.0, samples)
    assert list(minute.seconds) == [Second(50.0, 99.0)]
    assert not samples
    minute.take(2.1, samples)
    assert list(minute.seconds) == [Second(50.0, 99.0), None]
    assert minute.latest == Second(50.0, 99.0)


def test_seconds_in_which_nobody_looked_share_what_came_in_them() -> None:
    minute = Minute()
    minute.take(0.0, deque())
    minute.take(3.2, deque([1.0]))
    assert list(minute.seconds) == [Second(1.0, 1.0)] * 3
    minute.take(4.0, deque())
    assert len(minute.seconds) == 4


def test_no_more_than_a_minute_is_kept() -> None:
    minute = Minute()
    for now in range(3 * COLUMNS):
        minute.take(float(now), deque([float(now)]))
    assert len(minute.seconds) == COLUMNS
    minute.take(1e6, deque())
    assert list(minute.seconds) == [None] * COLUMNS
    assert minute.latest is None


def test_of_many_samples_some_stand_for_all() -> None:
    found = second([number / 1e5 for number in range(100_000)])
    assert found is not None
    assert found.p50 == pytest.approx(0.5, abs=2 / MOST_SAMPLES)
    assert found.p99 == pytest.approx(0.99, abs=2 / MOST_SAMPLES)


def test_the_scale_is_linear_from_nothing_until_the_spread_is_too_wide_for_it() -> None:
    narrow = scale([Second(0.1, 0.2), None, Second(0.15, 0.8)])
    assert narrow == Scale(0.0, 0.8)
    assert "".join(map(narrow.block, [0.0, 0.39, 0.41, 0.8, None])) == "▁▄▅█ "
    wide = scale([Second(0.01, 1.0)])
    assert wide == Scale(0.01, 1.0)
    assert wide.logarithmic
    assert "".join(map(wide.block, [0.01, 0.099, 0.101, 1.0])) == "▁▄▅█"


@given(st.lists(st.floats(0, 1e4), min_size=1))
def test_whatever_came_has_a_block(waits: list[float]) -> None:
    found = second(waits)
    assert found is not None
    of = scale([found])
    assert {of.block(found.p50), of.block(found.p99)} <= set(BLOCKS)
