"""How many requests a second a policy can take: the highest rate at which nearly all of them still meet their targets.

Knows how to search. Knows neither what a run is made of nor how a rate is printed.
"""

import math
from collections.abc import Callable

from msgspec import Struct, structs

from actors.scheduling.policies import PolicyName
from actors.simulator.simulation import Setup, Simulation
from protocol.people import people
from protocol.scenario import Scenario, scaled

SHARE = 0.95
"""Of the requests: so many have to meet their targets."""
NEAR = 1.02
"""The search ends when the rate that is too high is at most so many times the one that is not."""
MOST_RUNS = 24
USUAL_RUNS = 9
"""A few to find a factor of 2, and then as many as halve it to NEAR."""
SLOWEST, FASTEST = 2.0**-10, 2.0**10
LEAST_SPAN_S, LEAST_TARGETS = 60.0, 10.0
"""A scenario that lasts less, or less than so many times its longest target, says little about a rate that lasts: what
waits when all have arrived may still be in time."""


class NoRate(Exception):
    """The scenario has no rate. The message is one sentence for the person who named it."""


class Found(Struct, frozen=True):
    """The highest rate of one policy. `times` the scenario's own; 0: not even the slowest tried was slow enough."""

    policy: str
    times: float
    per_s: float
    met: float
    """Share of requests at that rate."""
    span_s: float
    """How long the arrivals took at that rate."""
    runs: int

    def devices(self, per_s: float) -> int | None:
        """How many of these it takes for `per_s` requests a second; None: no number is enough."""
        return math.ceil(per_s / self.per_s - 1e-9) if self.per_s else None


def own_rate(scenario: Scenario) -> float:
    """Requests a second, later questions included, over the time in which people come. Raises NoRate."""
    everybody = people(scenario)
    times = [person.at_s for person in everybody if not person.after]
    span_s = max(times) - min(times)
    if not span_s:
        raise NoRate(f"{scenario.name} has no rate: all that it has arrives at once.")
    return sum(len(person.questions) for person in everybody) / span_s


def least_span_s(scenario: Scenario) -> float:
    """How long the arrivals must take for their rate to be one that lasts."""
    targets = {person.ttft_target_s for person in people(scenario)}
    return max([LEAST_SPAN_S, *(LEAST_TARGETS * target_s for target_s in targets if target_s < math.inf)])


def enough_requests(per_s: float, span_s: float) -> int:
    """So many take `span_s` to arrive; rounded up to two digits."""
    requests = math.ceil(per_s * span_s)
    digits = max(0, len(str(requests)) - 2)
    digit: int = 10**digits
    return -(-requests // digit) * digit


class RateSearch:
    """A job for `runs.run_all`: bisection over the rate, every run over the same requests."""

    def __init__(self, scenario: Scenario, policy: PolicyName, setup: Setup, share: float = SHARE) -> None:
        self._scenario = scenario
        self._policy = policy
        self._setup = structs.replace(setup, most_turns=0)
        self._requests = sum(len(person.questions) for person in people(scenario))
        # A run whose misses are too many already need not be run to its end.
        self._most_missed = math.floor(self._requests * (1 - share) + 1e-9)
        self._runs = 0
        self._missed: dict[float, int] = {}

    def __call__(self, progress: Callable[[int], None] = lambda runs: None) -> Found:
        own = own_rate(self._scenario)
        self._progress = progress
        low, high = self._bracket()
        while low and high < math.inf and high / low > NEAR and self._runs < MOST_RUNS:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._keeps(middle) else (low, middle)
        met = 1 - self._missed[low] / self._requests if low else 0.0
        span_s = self._requests / (own * low) if low else 0.0
        return Found(self._policy, low, own * low, met, span_s, self._runs)

    def _bracket(self) -> tuple[float, float]:
        """A rate that is kept and one that is not, a factor of 2 apart; 0 or infinity where there is none."""
        rate = 1.0
        if self._keeps(rate):
            while rate < FASTEST:
                if not self._keeps(2 * rate):
                    return rate, 2 * rate
                rate *= 2
            return rate, math.inf
        while rate > SLOWEST:
            if self._keeps(rate / 2):
                return rate / 2, rate
            rate /= 2
        return 0.0, rate

    def _keeps(self, times: float) -> bool:
        simulation = Simulation(scaled(self._scenario, times), self._policy, self._setup, most_missed=self._most_missed)
        simulation.run()
        self._runs += 1
        self._progress(self._runs)
        self._missed[times] = simulation.missed
        return simulation.missed <= self._most_missed
