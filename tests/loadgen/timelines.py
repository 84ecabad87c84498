"""Timelines to count and draw: the laptops' story under each policy, and a crowd.

Knows a device that takes a fixed time a step and a time a prefill token, and four plain ways to share it: enough for
the shapes, no claim about rota's own scheduler.
"""

import math
from collections import deque

from msgspec.structs import replace

from protocol.scenario import Arrival, Scenario, read_scenario
from protocol.timeline import Life, Timeline, Turn

POLICIES = ("slack", "fixed_chunk", "decode_first", "prefill_first")
STEP_S = 0.02
PREFILL_S = 0.002
"""A token."""
CHUNKS = {"slack": 200, "fixed_chunk": 256, "decode_first": 256, "prefill_first": 10**9}


class _Row:
    def __init__(self, index: int, arrival: Arrival) -> None:
        self.index = index
        self.arrival = arrival
        self.arrived_s = math.inf if arrival.after else arrival.at_s
        self.left = arrival.prompt_tokens
        self.started_s: float | None = None
        self.times: list[float] = []

    @property
    def done(self) -> bool:
        return len(self.times) == self.arrival.output_tokens


def run_through(scenario: Scenario, policy: str) -> Timeline:
    rows = [_Row(index, arrival) for index, arrival in enumerate(scenario.arrivals)]
    by_name = {row.arrival.name: row for row in rows}
    coming = deque(sorted((row for row in rows if not row.arrival.after), key=lambda row: row.arrived_s))
    later = [row for row in rows if row.arrival.after]
    active: list[_Row] = []
    turns: list[Turn] = []
    now_s = 0.0
    while coming or later or active:
        for row in list(later):
            firsts = [by_name[name].times for name in row.arrival.after]
            if all(firsts):
                row.arrived_s = max(times[0] for times in firsts) + row.arrival.at_s
                later.remove(row)
                coming.append(row)
        while coming and coming[0].arrived_s <= now_s:
            active.append(coming.popleft())
        if not active:
            now_s = coming[0].arrived_s
            continue
        reading = [row for row in active if row.left]
        writing = [row for row in active if not row.left]
        if (policy == "prefill_first" and reading) or not writing:
            writing = []
        elif policy == "decode_first":
            reading = []
        prefills = []
        budget = CHUNKS[policy]
        for row in reading:
            if (tokens := min(budget, row.left)) > 0:
                budget -= tokens
                row.left -= tokens
                if row.started_s is None:
                    row.started_s = now_s
                prefills.append((row, tokens))
        end_s = now_s + STEP_S + PREFILL_S * sum(tokens for _, tokens in prefills)
        turns.append(
            Turn(
                now_s,
                end_s,
                tuple((row.index, tokens) for row, tokens in prefills),
                tuple(row.index for row in writing),
            )
        )
        now_s = end_s
        for row in [*writing, *(row for row, _ in prefills if not row.left)]:
            row.times.append(now_s)
            if row.done:
                active.remove(row)
    lives = []
    for row in rows:
        ttft_target_s, itl_target_s = scenario.targets(row.arrival)
        lives.append(
            Life(
                row.arrival.name,
                row.arrival.prompt_tokens,
                row.arrived_s,
                ttft_target_s,
                itl_target_s,
                row.started_s,
                tuple(row.times),
                row.times[-1],
                True,
                "length",
            )
        )
    return Timeline(policy, tuple(lives), tuple(turns))


def laptops() -> list[Timeline]:
    # On a device as slow as the one of `run_through`, with a target to match.
    scenario = replace(read_scenario("laptops"), itl_target_s=0.5)
    return [run_through(scenario, policy) for policy in POLICIES]


def crowd(requests: int, policy: str = "fixed_chunk", every_s: float = 0.2) -> Timeline:
    arrivals = tuple(
        Arrival(f"r{number}", 20 + number * 37 % 300, 5 + number * 13 % 40, number * every_s)
        for number in range(requests)
    )
    return run_through(Scenario("crowd", arrivals), policy)


def as_seen_outside(timeline: Timeline) -> Timeline:
    """What the client of a real server knows of it."""
    return Timeline(timeline.policy, tuple(replace(life, started_s=None) for life in timeline.lives))
