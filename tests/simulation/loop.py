"""An event loop in virtual time that chooses at random, by a seed, which ready callback runs next.

Knows nothing of rota. Has no sockets, no threads and no real clock: the same seed runs the same way every time.
"""

import asyncio
import heapq
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class SimulatedLoop(asyncio.BaseEventLoop):
    """Time stands still while anything can run, and then jumps to the next timer."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._now = 0.0
        self.callbacks_run = 0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            assert scheduled, "nothing can ever run again"
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= self._now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        if ready:
            place = self._chance.randrange(len(ready))
            handle = ready[place]
            del ready[place]
            self.callbacks_run += 1
            if not handle._cancelled:
                handle._run()

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, then whatever it left behind to its cancellation."""
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(main)
        finally:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            asyncio.set_event_loop(None)
            self.close()
