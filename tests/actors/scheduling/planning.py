"""How long deciding takes: one step of each policy, and one turn of the waiting room.

    .venv/bin/python -m tests.actors.scheduling.planning

Prints median and p99 in milliseconds. Asserts nothing: it is for people who are about to make deciding slower.
"""

import math
import time
from collections.abc import Callable
from random import Random
from statistics import median, quantiles
from typing import ParamSpec, TypeVar

from msgspec import structs

from actors.scheduling.blocks import BlockPool
from actors.scheduling.bounds import Bounds
from actors.scheduling.costs import Costs
from actors.scheduling.demand import Demand
from actors.scheduling.guests import Place
from actors.scheduling.policies import POLICIES, PolicyName, policy_named
from actors.scheduling.policy import FixedChunk, Policy, View, Wish
from actors.scheduling.schedule import Schedule
from actors.scheduling.waiting_room import WaitingRoom
from protocol.messages import CostsLearned, Credit, Enqueue, SampledToken, Step, StepDone
from tests.actors.recorders import enqueue

ROWS = 256
WAITING = 2_000
CLIENTS = 200
STEPS = 400
COEFFICIENTS = (0.02, 1e-3, 1e-8, 1e-6, 1e-3, 1e-6)

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Stopwatch:
    """Times what it is given to do, apart by name."""

    def __init__(self) -> None:
        self._took_ms: dict[str, list[float]] = {}

    def time(self, name: str, do: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        begin = time.perf_counter()
        answer = do(*args, **kwargs)
        self._took_ms.setdefault(name, []).append((time.perf_counter() - begin) * 1e3)
        return answer

    def report(self) -> None:
        for name, took_ms in self._took_ms.items():
            p99 = quantiles(took_ms, n=100)[98]
            print(f"{name:<34} median {median(took_ms):7.3f} ms   p99 {p99:7.3f} ms   of {len(took_ms):,}")


class Switched:
    """Prompts are read beside decode rows until there are rows enough; then the policy that is measured takes over."""

    backlog_s = math.inf

    def __init__(self) -> None:
        self.policy: Policy = FixedChunk(512)

    def wishes(self, view: View) -> list[Wish]:
        return self.policy.wishes(view)


def request(rng: Random, number: int, prompt: int, ttft_target_s: float, itl_target_s: float = 1.0) -> Enqueue:
    one = enqueue(
        f"r{number}",
        connection=number % CLIENTS,
        tenant=f"key {number % 10}",
        max_output_tokens=10_000,
        received_at=0.0,
        ttft_target_s=ttft_target_s,
        itl_target_s=itl_target_s,
    )
    return structs.replace(one, tokens=rng.randbytes(4 * prompt))


def result(step: Step) -> StepDone:
    return StepDone(step.step, tuple(SampledToken(5) for chunk in step.chunks if chunk.sampling is not None), 0.0)


def schedule(watch: Stopwatch, policy: PolicyName, itl_target_s: float, name: str) -> None:
    """256 decode rows, 2,000 who wait, and steps that hold of both what the policy has in them."""
    rng = Random(1)
    switched = Switched()
    busy = Schedule(BlockPool(400_000, 16), switched, 1024, ROWS + 64, costs=Costs(coefficients=COEFFICIENTS))
    now = 0.0
    for number in range(ROWS):
        busy.add(request(rng, number, 100, 1e3, itl_target_s), now)
    while not all(one.has_begun for one in busy.sequences):
        step = busy.plan(now)
        assert step is not None
        busy.complete(result(step), now)
    for number in range(ROWS, ROWS + WAITING):
        busy.add(request(rng, number, 1_000, 5 + number / 100), now)
    switched.policy = policy_named(policy, 512)
    for _ in range(STEPS):
        now += 0.2
        step = watch.time(f"plan, {name}", busy.plan, now)
        assert step is not None
        watch.time(f"complete, {name}", busy.complete, result(step), now)


def waiting_room(watch: Stopwatch) -> None:
    """2,000 guests of 200 clients of ten keys; whoever goes in is replaced."""
    rng = Random(1)
    room = WaitingRoom(Bounds(10_000, 1e9, 600.0), Demand(512, 256), 256)
    room.learn(CostsLearned(COEFFICIENTS, 128.0))
    room.grant(Credit(1 << 30, 1 << 40))
    requests = [request(rng, number, 500, 5 + number / 10) for number in range(WAITING + STEPS)]
    for each in requests[:WAITING]:
        room.add(each, 0.0)
    for number, each in enumerate(requests[WAITING:]):
        now = number * 0.01
        guest = watch.time("room, next", room.next, now)
        assert guest is not None
        watch.time("room, let_in", room.let_in, guest, now)
        newest = watch.time("room, add", room.add, each, now)
        watch.time("room, place of the newest", room.place, newest, now)
        watch.time("room, all places", list_places, room, now)


def list_places(room: WaitingRoom, now: float) -> list[Place]:
    return list(room.places(now))


def main() -> None:
    watch = Stopwatch()
    for policy in POLICIES:
        schedule(watch, policy, 1.0, policy)
    schedule(watch, "slack", 0.2, "slack, too many rows")
    waiting_room(watch)
    watch.report()


if __name__ == "__main__":
    main()
