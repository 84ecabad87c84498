"""The highest rate that is kept: what is kept there, and is not a little above."""

import math

import pytest

from actors.scheduling.policies import PolicyName
from actors.simulator.find_rate import NEAR, Found, NoRate, RateSearch, enough_requests, least_span_s, own_rate
from actors.simulator.simulation import Simulation
from protocol.scenario import Arrival, Scenario, scaled
from tests.actors.simulator.plain import SETUP, scenario

STEADY = Scenario(
    "steady",
    tuple(Arrival(f"r{number}", 200, 10, at_s=0.5 * number) for number in range(60)),
    ttft_target_s=2.0,
    itl_target_s=0.4,
)


def test_pressed_together_they_come_faster_and_are_the_same() -> None:
    two = scenario(Arrival("A", 10, 1, at_s=3.0), Arrival("B", 10, 1, at_s=1.0, after=("A",)))
    assert [arrival.at_s for arrival in scaled(two, 2.0).arrivals] == [1.5, 1.0], "B still comes 1 s after A"
    assert own_rate(scaled(STEADY, 3.0)) == pytest.approx(3 * own_rate(STEADY))


def test_what_comes_all_at_once_has_no_rate() -> None:
    with pytest.raises(NoRate, match=r"by hand has no rate: all that it has arrives at once\."):
        own_rate(scenario(Arrival("A", 10, 1), Arrival("B", 10, 1)))


def test_the_rate_found_is_kept_and_a_little_more_is_not() -> None:
    found = RateSearch(STEADY, "fixed_chunk", SETUP)()
    assert found.times > 1
    assert found.met >= 0.95
    assert found.per_s == pytest.approx(found.times * own_rate(STEADY))
    above = Simulation(scaled(STEADY, found.times * NEAR), "fixed_chunk", SETUP).run()
    assert sum(life.met for life in above.lives) < 0.95 * len(above.lives)


def test_the_search_is_told_of_run_by_run_and_ends() -> None:
    told: list[int] = []
    found = RateSearch(STEADY, "slack", SETUP)(told.append)
    assert told == list(range(1, found.runs + 1))
    assert found.runs <= 24


def _per_s(policy: PolicyName) -> float:
    return RateSearch(STEADY, policy, SETUP)().per_s


def test_slack_takes_more_than_those_who_look_at_one_target_only() -> None:
    slack, decode_first, prefill_first = _per_s("slack"), _per_s("decode_first"), _per_s("prefill_first")
    assert slack >= 1.2 * max(decode_first, prefill_first)


def test_where_no_rate_is_slow_enough_none_is_found() -> None:
    hopeless = Scenario("hopeless", STEADY.arrivals, ttft_target_s=0.01)
    found = RateSearch(hopeless, "slack", SETUP)()
    assert (found.times, found.per_s, found.devices(1.0)) == (0.0, 0.0, None)


def test_a_rate_must_last_a_minute_and_several_times_the_longest_target() -> None:
    def least_s(*ttft_s: float) -> float:
        return least_span_s(scenario(*(Arrival(f"r{s}", 1, 1, ttft_target_s=s) for s in ttft_s)))

    assert least_s(5.0) == 60.0
    assert least_s(5.0, 20.0) == 200.0
    assert least_s(math.inf, 1.0) == 60.0, "no target is nothing to be waited for"


@pytest.mark.parametrize(("per_s", "requests"), [(28.6, 1800), (0.1, 6), (1.0, 60), (2.01, 130), (0.001, 1)])
def test_so_many_requests_are_enough_as_take_long_enough(per_s: float, requests: int) -> None:
    assert enough_requests(per_s, 60.0) == requests


def test_devices_are_counted_up_to_the_load() -> None:
    found = Found("slack", 1.0, 2.5, 0.96, 100.0, 9)
    assert [found.devices(load) for load in (0.1, 2.5, 2.6, 10.0)] == [1, 1, 2, 4]
    assert math.isclose(found.per_s, 2.5)
