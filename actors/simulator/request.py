"""One arrival of a simulation, and what has become of it so far.

Knows its figures. Decides nothing.
"""

import math

from protocol.scenario import Arrival
from protocol.timeline import Life


class Request:
    """One arrival, and what has become of it so far."""

    __slots__ = (
        "arrival", "arrived_s", "dependents", "ended_s", "index", "outcome", "preemptions", "started_s", "targets",
        "token_times", "waits_for",
    )  # fmt: skip

    def __init__(self, index: int, arrival: Arrival, targets: tuple[float, float]) -> None:
        self.index = index
        self.arrival = arrival
        self.targets = targets
        self.dependents: list[Request] = []
        self.waits_for = len(arrival.after)
        self.arrived_s = math.inf
        self.started_s: float | None = None
        self.token_times: list[float] = []
        self.ended_s: float | None = None
        self.outcome = ""
        self.preemptions = 0

    def life(self) -> Life:
        return Life(
            name=self.arrival.name,
            prompt_tokens=self.arrival.prompt_tokens,
            arrived_s=self.arrived_s,
            ttft_target_s=self.targets[0],
            itl_target_s=self.targets[1],
            started_s=self.started_s,
            token_times=tuple(self.token_times),
            ended_s=self.ended_s,
            finished=self.outcome == "length",
            outcome=self.outcome,
            preemptions=self.preemptions,
        )
