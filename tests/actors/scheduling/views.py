"""What a policy sees, made of a few numbers. The time is 100."""

import math

from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import Costs
from actors.scheduling.policy import Policy, View
from actors.scheduling.sequence import Sequence
from actors.scheduling.waiting import Waiting
from tests.actors.recorders import enqueue

NOW = 100.0
POOL = BlockPool(0, 16)


def waiting(order: int, prompt: int, *, due_in: float = math.inf, paused: bool = False) -> Sequence:
    """One that holds no blocks. Its first token is due so many seconds from now."""
    request = enqueue(f"r{order}", prompt, received_at=NOW, ttft_target_s=due_in)
    one = Sequence(request, order, POOL, b"", now=NOW)
    one.paused = paused
    return one


def prefilling(order: int, remaining: int, computed: int = 3, *, due_in: float = math.inf) -> Sequence:
    """One that runs and has so many tokens to read."""
    one = waiting(order, remaining + computed, due_in=due_in)
    one.start(NOW)
    one.computed = computed
    return one


def decoding(
    order: int, context: int = 3, *, target_s: float = math.inf, waited_s: float = 0.0, late: bool = False
) -> Sequence:
    """One that has its first token, and got its newest so many seconds ago."""
    request = enqueue(f"r{order}", context, max_output_tokens=1000, received_at=NOW, itl_target_s=target_s)
    one = Sequence(request, order, POOL, b"", now=NOW)
    one.start(NOW)
    one.append(7, NOW - waited_s)
    one.computed = context
    one.late = late
    return one


def view(*sequences: Sequence, max_step_tokens: int = 1000, costs: Costs | None = None) -> View:
    """As the schedule shows them."""
    line = Waiting()
    decodes: list[Sequence] = []
    prefills: list[Sequence] = []
    for one in sorted(sequences, key=lambda each: each.order):
        if one.waiting:
            line.add(one)
        elif not one.paused:
            (decodes if one.remaining == 1 else prefills).append(one)
    return View(NOW, decodes, prefills, line, max_step_tokens, Costs() if costs is None else costs)


def wished(policy: Policy, seen: View) -> list[tuple[str, int]]:
    return [(wish.sequence.request, wish.tokens) for wish in policy.wishes(seen)]
