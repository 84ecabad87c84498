"""What the scheduler counts when somebody asks, and not after every message: all sequences are looked at.

Knows the schedule and the metrics. Changes neither's numbers by itself.
"""

from functools import partial

from actors.metrics import Metrics
from actors.scheduling.schedule import Schedule
from actors.scheduling.sequence import State


def show_gauges(metrics: Metrics, schedule: Schedule, holder: str) -> None:
    """From now on the gauges are read off `schedule`. `holder`: whose waiting ones these are."""
    for state, blocks in (
        ("free", lambda: schedule.pool.free),
        ("cached", lambda: schedule.pool.cached),
        ("used", lambda: schedule.pool.used),
    ):
        metrics.kv_blocks.labels(state).set_function(blocks)
    metrics.queued_at(holder, partial(_living, schedule, State.QUEUED))
    metrics.paused.set_function(lambda: sum(sequence.paused for sequence in schedule.sequences))
    for life in (State.PREFILLING, State.DECODING, State.PREEMPTED):
        metrics.requests.labels(life.value).set_function(partial(_living, schedule, life))


def _living(schedule: Schedule, life: State) -> int:
    return sum(sequence.state is life for sequence in schedule.sequences)
