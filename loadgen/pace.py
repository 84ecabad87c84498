"""When something is next: moments on the clock of `time.perf_counter`, and waiting for them.

Knows the clock and the event loop's sleep. Knows nothing of what happens then.
"""

import asyncio
import time


class Pace:
    """So many a second and no more: each `next` is a moment at least so long after the last."""

    def __init__(self, per_s: float) -> None:
        self._every_s = 1 / per_s
        self._free_s = 0.0

    def next(self, now_s: float) -> float:
        """When to go on after what happened at `now_s`."""
        self._free_s = max(now_s, self._free_s) + self._every_s
        return self._free_s


async def sleep_until(at_s: float) -> None:
    """Never returns early, though an event loop may wake up to a millisecond before its time. Does not give way to
    others when `at_s` is past."""
    while (left_s := at_s - time.perf_counter()) > 0:  # noqa: ASYNC110  it waits for a moment, not for an event
        await asyncio.sleep(left_s)
