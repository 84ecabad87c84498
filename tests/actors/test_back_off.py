"""A restart waits longer the more often it was needed, and not at all after a calm."""

from hypothesis import given
from hypothesis import strategies as st

from actors.back_off import CALM_S, FIRST_DELAY_S, LONGEST_DELAY_S, BackOff


def test_the_first_failure_is_mended_at_once() -> None:
    assert BackOff().next_delay_s(1_000.0) == 0.0


def test_failures_in_a_row_wait_twice_as_long_each_time_up_to_the_longest() -> None:
    back_off = BackOff()
    delays = [back_off.next_delay_s(float(second)) for second in range(10)]
    assert delays[:5] == [0.0, FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S, 8 * FIRST_DELAY_S]
    assert delays[-1] == LONGEST_DELAY_S


def test_after_a_calm_it_starts_anew_at_once() -> None:
    back_off = BackOff()
    for second in range(10):
        back_off.next_delay_s(float(second))
    assert back_off.next_delay_s(9 + CALM_S) == LONGEST_DELAY_S
    assert back_off.next_delay_s(9 + 2 * CALM_S + 0.1) == 0.0
    assert back_off.next_delay_s(10 + 2 * CALM_S) == FIRST_DELAY_S


@given(st.lists(st.floats(0.0, 3 * CALM_S), max_size=50))
def test_no_delay_is_longer_than_the_longest_whatever_fails_when(pauses: list[float]) -> None:
    back_off, now = BackOff(), 0.0
    for pause_s in pauses:
        now += pause_s
        assert 0.0 <= back_off.next_delay_s(now) <= LONGEST_DELAY_S
