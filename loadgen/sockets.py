"""Who gets which socket, and when it is opened: ahead of its person, so that connecting is in no TTFT.

Knows that a person has a socket of its own or, with a `client`, a lane of one that is shared; how many may be opened at
once and in a second; and the sockets that only stay open. Knows nothing of what is asked on them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from loadgen.client import Askable, NotOpened, Open, OwnSocket, Unreachable
from loadgen.lanes import AT_A_TIME, SPARE, Lane, Pool
from loadgen.pace import sleep_until
from protocol.people import Person

AHEAD_S = 1.0
"""So long before its person comes a socket is opened."""


def has_habits(person: Person) -> bool:
    """Whether it closes its socket, or does not empty it: then nobody can share it."""
    leaves = person.leaves_after_s is not None or person.leaves_after_chunks is not None
    return leaves or person.reads_chunks_per_s is not None or person.reconnects


def shares(person: Person) -> bool:
    """Whether it asks on a socket that it shares with others of its client."""
    return bool(person.client) and not has_habits(person)


def lane_of(index: int) -> str:
    """Of the person with that number."""
    return f"r{index}"


class Sockets:
    """All sockets of a run. `of` gives a person one, `back` takes it back, `leave` closes its page."""

    def __init__(
        self,
        people: Sequence[Person],
        pool: Pool,
        open_one: Open,
        *,
        on_lanes: Callable[[Person], bool] = shares,
        keep: bool = False,
        connects_per_s: float = math.inf,
        idle: int = 0,
    ) -> None:
        """`on_lanes`: whether that person shares the sockets of `pool`; all others have their own. `keep`: those stay
        open when their people are through. `connects_per_s` and `idle` are of sockets that are not shared."""
        self.opened = 0
        """So far, those included that are no more."""
        self.not_opened: list[NotOpened] = []
        self._people = people
        self._pool = pool
        pool.next_number = max(pool.next_number, len(people) + idle)  # before them come those of their own
        self._open_one = open_one
        self._own = [not on_lanes(person) for person in people]
        self._keep = keep
        self._every_s = 1 / connects_per_s
        self._free_s = 0.0
        self._gate = asyncio.Semaphore(AT_A_TIME)
        self._ready: dict[int, asyncio.Task[OwnSocket | NotOpened]] = {}
        self._begun: set[int] = set()
        self._later: list[tuple[float, int]] = []
        self._feeder: asyncio.Task[None] | None = None
        self._in_use: set[OwnSocket] = set()
        self._held: dict[int, OwnSocket | Lane] = {}
        self._idle: set[OwnSocket] = set()
        self._idle_wanted = idle
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many are open."""
        return len(self._in_use) + len(self._idle) + len(self._pool)

    @property
    def idle_open(self) -> int:
        """Of those that only stay open, how many still are."""
        return sum(socket.is_open for socket in self._idle)

    async def open_ahead(self) -> None:
        """Open what is needed at the start: at most 64 at a time, the shared ones first, the idle ones last.

        Raises `Unreachable` when none opens for its person, and `NotOpened` when a shared one does not.
        """
        shared = [person.client for person, own in zip(self._people, self._own, strict=True) if not own]
        before = self._pool.opened
        await self._pool.open_ahead(dict.fromkeys(filter(None, shared)), min(shared.count(""), SPARE))
        self.opened += self._pool.opened - before
        openings = self._openings()
        self._later = [(at_s, index) for at_s, index in openings if at_s > 0]
        first = [self._begin(index) for at_s, index in openings if at_s <= 0]
        number = len(self._people)
        idle = [
            asyncio.create_task(self._attempt(number + extra, self._idle, silent=True))
            for extra in range(self._idle_wanted)
        ]
        answers = await asyncio.gather(*first)
        declined = [answer for answer in answers if isinstance(answer, NotOpened)]
        if declined and len(declined) == len(answers):
            for task in idle:
                task.cancel()
            await asyncio.gather(*idle, return_exceptions=True)
            raise Unreachable(str(declined[0]))
        await asyncio.gather(*idle)

    def start(self, start_s: float) -> None:
        """From now on those of people who come later are opened too. Everybody's time counts from `start_s`."""
        self._feeder = asyncio.create_task(self._feed(start_s))

    async def of(self, index: int) -> Askable:
        """That person's socket; once it has had it, another. Waits for it to open, if it must. Raises `NotOpened`."""
        if not self._own[index]:
            lane = Lane(await self._pool.of(self._people[index].client), lane_of(index))
            self._held[index] = lane
            return lane
        if index not in self._ready:
            self._begin(index)
        answer = await self._ready.pop(index)
        if isinstance(answer, NotOpened):
            raise answer
        self._held[index] = answer
        return answer

    def back(self, index: int, usable: bool) -> None:
        """The person needs its socket no more."""
        held = self._held.pop(index)
        if isinstance(held, Lane):
            self._pool.back(self._people[index].client, held.socket)
        elif not (self._keep and usable):
            self._let_go(held, held.close())

    def leave(self, index: int) -> None:
        """The person closes the page."""
        held = self._held.pop(index)
        assert not isinstance(held, Lane), "who leaves has a socket of its own"
        self._let_go(held, held.leave())

    async def close(self) -> None:
        """All but those of the pool."""
        tasks: list[asyncio.Task[Any]] = [*self._ready.values()]
        if self._feeder is not None:
            tasks.append(self._feeder)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [socket.close() for socket in self._in_use | self._idle]
        await asyncio.gather(*closing, *self._closing, return_exceptions=True)

    # -- opening

    def _openings(self) -> list[tuple[float, int]]:
        """When each is to be opened, in seconds from the start: so early that all after it can be in time as well."""
        own = [index for index, own in enumerate(self._own) if own]
        wanted = sorted(
            (-math.inf if self._people[index].after else self._people[index].at_s - AHEAD_S, index) for index in own
        )
        openings = []
        latest_s = math.inf
        for at_s, index in reversed(wanted):
            latest_s = min(at_s, latest_s - self._every_s)
            openings.append((latest_s, index))
        return openings[::-1]

    def _begin(self, index: int) -> asyncio.Task[OwnSocket | NotOpened]:
        self._begun.add(index)
        opening = self._attempt(index, self._in_use, reads_per_s=self._people[index].reads_chunks_per_s)
        task = self._ready[index] = asyncio.create_task(opening)
        return task

    async def _feed(self, start_s: float) -> None:
        for at_s, index in self._later:
            await sleep_until(start_s + at_s)
            if index not in self._begun:  # else it came before its socket was to be opened
                self._begin(index)

    async def _attempt(
        self, number: int, among: set[OwnSocket], *, reads_per_s: float | None = None, silent: bool = False
    ) -> OwnSocket | NotOpened:
        async with self._gate:
            now_s = time.perf_counter()
            turn_s = max(now_s, self._free_s)
            self._free_s = turn_s + self._every_s
            await sleep_until(turn_s)
            try:
                url, key = self._pool.url, self._pool.key
                socket = await self._open_one(url, key, number, reads_per_s=reads_per_s, silent=silent)
            except NotOpened as declined:
                self.not_opened.append(declined)
                return declined
            among.add(socket)  # at once: whatever is cancelled next, it will be closed
            self.opened += 1
            return socket

    # -- closing

    def _let_go(self, socket: OwnSocket, closing: Coroutine[Any, Any, None]) -> None:
        self._in_use.discard(socket)
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
