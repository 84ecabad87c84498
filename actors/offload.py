"""Doing what takes too long somewhere else than on the event loop.

Knows how a plain function runs in a thread and how its result comes back to the loop. Knows nothing of what the work
is. Actors are given an `Offload`, so that a simulation can give them one without threads.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """Runs `work` off the event loop, then calls `done` on the loop with what it returned or raised. `whose`: each has
    a turn in which one piece of its work is done."""

    def __call__(self, work: Callable[[], T], done: Callable[[T | Exception], None], whose: str = "") -> None: ...


class OffloadThread:
    """One thread, in which everyone's work is done in turn, and the work of one in the order it was given.

    Made inside the event loop to which results go back. Work that has not begun when it is closed is never done.
    """

    def __init__(self, name: str = "offload") -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = Lock()
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        """By whose it is, next first."""

    def __call__(self, work: Callable[[], T], done: Callable[[T | Exception], None], whose: str = "") -> None:
        def job() -> None:
            try:
                result: T | Exception = work()
            except Exception as error:  # noqa: BLE001  handed over, not swallowed
                result = error
            # A loop that has stopped meanwhile takes no results, and nobody waits for them.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, result)

        with self._lock:
            self._waiting.setdefault(whose, deque()).append(job)
        self._executor.submit(self._do_next)

    def _do_next(self) -> None:
        with self._lock:
            whose, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[whose] = jobs
        job()

    def close(self) -> None:
        """Returns when the work that had begun is done."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def promised(offload: Offload, work: Callable[[], T]) -> "asyncio.Future[T]":
    """What `work` returns or raises, for whoever waits for it. Called on the event loop."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | Exception) -> None:
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    offload(work, done)
    return future
