"""Plays people on a server: everyone comes when due, whatever became of the others.

This is an open loop. Arrivals are known before the run and scheduled by themselves, so that a server that is late
makes nobody come later; nor is anybody's wait counted from later than when its request was due (`exchange`).

Knows arrivals and the order of a run. What a person does is in `person`, whose socket it has in `sockets`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loadgen.pace import sleep_until
from loadgen.person import live
from loadgen.progress import Display
from loadgen.run import Run

TICK_S = 0.1
"""How often the progress is drawn and the event loop's lag sampled."""


async def drive(run: Run) -> None:
    """Open the sockets, let everybody come, and wait until the last has been answered.

    Raises as `Sockets.open_ahead`. A cancel is passed on, and what was due or under way then says so. The sockets are
    still to be closed.
    """
    run.await_firsts()
    await run.sockets.open_ahead()
    board = run.board
    board.phase = run.phase
    board.arrivals_s = max((person.at_s for person in run.people if not person.after), default=0.0)
    run.start_s = board.began_s = time.perf_counter()
    run.lag_worst_s = 0.0  # what came before is no part of the measurement
    run.sockets.start(run.start_s)
    try:
        async with asyncio.TaskGroup() as group:
            for index in _who_waits(run):
                group.create_task(_live_after(run, index))
            # Nobody's task runs before this loop first has to wait: who comes together starts in the same turn.
            for at_s, index in _who_comes(run):
                due_s = run.start_s + at_s
                await sleep_until(due_s)
                group.create_task(live(run, index, due_s))
    finally:
        _give_up(run, time.perf_counter())


@asynccontextmanager
async def watching(run: Run, shown: Display) -> AsyncIterator[None]:
    """Meanwhile, draw the progress and note how late the event loop is, the drawing included."""

    async def watch() -> None:
        while True:
            began_s = time.perf_counter()
            run.board.open_sockets = len(run.sockets)
            shown.show(run.board, began_s)
            await asyncio.sleep(TICK_S)
            run.lag_worst_s = max(run.lag_worst_s, time.perf_counter() - began_s - TICK_S)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


def _who_comes(run: Run) -> list[tuple[float, int]]:
    """Those who come at a time of their own, in that order."""
    return sorted((person.at_s, index) for index, person in enumerate(run.people) if not person.after)


def _who_waits(run: Run) -> list[int]:
    return [index for index, person in enumerate(run.people) if person.after]


async def _live_after(run: Run, index: int) -> None:
    """One who comes after the first texts of others. When one of those ends without, it never comes."""
    person = run.people[index]
    there_s = [at_s for at_s in await run.first_texts(person.after) if at_s is not None]
    if len(there_s) < len(person.after):
        for exchange in run.by_person[index]:
            run.board.end(exchange)
        run.tell_first_text(index, None)
        return
    due_s = max(there_s) + person.at_s
    await sleep_until(due_s)
    await live(run, index, due_s)


def _give_up(run: Run, now_s: float) -> None:
    """Note of what had been due, and has no end, that nobody looks any more."""
    for exchange in run.exchanges:
        if exchange.due_s is None:
            exchange.due_s = exchange.sent_s
        due = exchange.due_s is not None and exchange.code is None
        if due and exchange.outcome in ("unfinished", "not_sent"):
            exchange.given_up_s = now_s
