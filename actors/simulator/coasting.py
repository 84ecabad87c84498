"""Steps that are all alike, taken at once. The one shortcut of the simulator: a run with it is the run without it.

While everyone who is here has one token to run and nobody comes or goes, every plan is the last one again, one token
on. So what makes plans (wishes, chunks, block tables) is left out, and what is learned and what each sequence notes is
not. Knows sequences and their memory; knows no arrivals and no policy by name.

What it takes of a policy: where it sees decode rows only, and there is time for all of them within the tightest of
their targets, it wishes for all.
"""

from collections.abc import Callable, Sequence

from actors.scheduling.schedule import Schedule
from actors.scheduling.sequence import Sequence as Row
from actors.simulator.device import Device
from protocol.messages import Work

WORTH_IT = 2
"""Steps: for fewer, looking takes longer than planning."""


def coast(
    schedule: Schedule,
    device: Device,
    token: int,
    now: float,
    until: float,
    most_rows: int,
    stepped: Callable[[float, float, Sequence[Row]], None],
) -> list[float]:
    """Run the steps from `now` that end before `until` and have everyone in them, and return when each ended.

    `stepped` is told after each when it began and ended, and who was in it. It may let somebody in: then that was the
    last one.
    """
    rows = schedule.sequences
    if schedule.backlog_tokens or not 0 < len(rows) <= most_rows or not all(_decodes(one) for one in rows):
        return []
    most = min([one.max_output_tokens - one.output_tokens for one in rows]) - 1
    most = min(most, schedule.pool.available // len(rows) * schedule.pool.block_size)
    if most < WORTH_IT:
        return []
    costs = schedule.costs
    tightest_s = min([one.itl_target_s for one in rows])
    context = sum([one.computed for one in rows])
    ends: list[float] = []
    while len(ends) < most and len(schedule) == len(rows):
        work = Work(0, 0, 0, len(rows), context)
        took_s, all_s = device.look(work)
        if now + all_s >= until or costs.step_s(work) * costs.margin > tightest_s:
            break
        device.ran()
        costs.learn(work, took_s, all_s)
        ends.append(now + all_s)
        context += len(rows)
        stepped(now, ends[-1], rows)
        now = ends[-1]
    for one in rows:
        one.table.grow(one.computed + len(ends))
        for at in ends:
            one.append(token, at)
        one.computed += len(ends)
        one.publish(schedule.pool)
    return ends


def _decodes(one: Row) -> bool:
    """Whether it is in the middle of its answer, has blocks, and nothing holds it up."""
    return one.remaining == 1 and one.has_begun and not one.waiting and not one.paused and not one.steps_in_flight
