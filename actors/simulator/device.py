"""The device of a simulation: how long each step takes, noise and all.

Knows the hardware's true costs, which the engine only learns. Knows no requests and no time of day.
"""

import math
import random

from actors.scheduling.costs import Costs
from actors.simulator.hardware import Hardware
from protocol.messages import Work


class Device:
    """Steps one after another: `look` at the next one as often as need be, then it has `run`."""

    def __init__(self, hardware: Hardware, seed: int) -> None:
        self._costs = Costs(coefficients=hardware.coefficients)
        self._overhead_s = hardware.overhead_s
        self._spread = hardware.spread
        self._chance = random.Random(f"noise {seed}")
        self._factor = 1.0
        self.ran()

    def look(self, work: Work) -> tuple[float, float]:
        """Seconds on the device that the next step takes if it is `work`, and seconds from its plan to its result."""
        took_s = self._costs.step_s(work) * self._factor
        return took_s, took_s + self._overhead_s

    def ran(self) -> None:
        """The next one is another."""
        if self._spread:
            self._factor = math.exp(self._chance.gauss(0.0, self._spread))
