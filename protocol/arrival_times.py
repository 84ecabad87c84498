"""When those of a group come: all together, evenly, at random or in bursts.

Knows gaps and their distributions. Knows nothing of who comes.
"""

import math
import random
from collections.abc import Callable
from itertools import accumulate, islice
from statistics import NormalDist

from protocol.distributions import between

_NORMAL = NormalDist()


def gaps(arrive: str, burstiness: float, chance: random.Random) -> Callable[[], float]:
    """Draws the next gap between two arrivals; the mean is 1.

    `burstiness` is for "gamma": the coefficient of variation of the gaps, their standard deviation divided by their
    mean. 0.1 is nearly even, 1 is Poisson, 3 is bursts with long pauses.
    """
    match arrive:
        case "together":
            return lambda: 0.0
        case "fixed":
            return lambda: 1.0
        case "poisson":
            return lambda: -math.log(between(chance))
        case "gamma":
            shape = 1 / (burstiness * burstiness)
            return lambda: gamma(shape, chance) / shape
    raise AssertionError(arrive)


def arrival_times(arrive: str, count: int, rate: float, burstiness: float, chance: random.Random) -> list[float]:
    """`count` times in seconds, the first of them 0, each later one a gap of 1 / `rate` on average after it."""
    gap = gaps(arrive, burstiness, chance)
    steps = (gap() for _ in range(count - 1))
    return [at / rate for at in islice(accumulate(steps, initial=0.0), count)]


def gamma(shape: float, chance: random.Random) -> float:
    """From the gamma distribution with this shape and scale 1: Marsaglia and Tsang, "A simple method for generating
    gamma variables", 2000. A shape below 1 is made of one that is 1 more."""
    if shape < 1:
        # The draw has to come first: the power of a small shape may leave nothing.
        return gamma(shape + 1, chance) * math.pow(between(chance), 1 / shape)
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        normal = _NORMAL.inv_cdf(between(chance))
        v = (1 + c * normal) ** 3
        if v > 0 and math.log(between(chance)) < normal**2 / 2 + d - d * v + d * math.log(v):
            return d * v
