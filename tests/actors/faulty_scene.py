"""One scene of the whole engine in virtual time that brings every message to every actor, of which one may raise once.

Knows how the scene goes and what must hold in it whoever raises. Knows nothing of what a single fault may cost.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
from msgspec import structs
from structlog.testing import capture_logs

import actors.engine  # noqa: F401  brings every actor
from actors.actor import Actor
from actors.admission import Admission
from actors.connection import Connection, ConnectionLimits
from actors.detokeniser import Detokeniser
from actors.gallery import Gallery
from actors.reaper import Patience, Reaper
from actors.scheduler import Scheduler
from actors.scheduling import reading
from actors.scheduling.key_places import SURPLUS
from actors.tokeniser import Tokeniser
from actors.vocabulary import Vocabulary
from protocol.messages import ModelRefused, NothingLeft, SetPaused
from tests.actors.engine_house import CONFIG, POISON, House
from tests.simulation.loop import SimulatedLoop
from tests.simulation.sockets import FakeSocket, Response
from tests.simulation.watchers import WatchingSocket

LONGEST_S = 600.0
PATIENCE = Patience(tick_s=0.05, sweep_s=0.25, audit_s=0.5, reader_stalled_s=3.0)
LIMITS = ConnectionLimits(pause_chars=8, turn_bytes=400)
RUNNING = 2
GRACE_S = 1.0
"""How long a response whose socket was lost waits for it."""
SOON_S = 4.0
"""Long enough for whatever happens in the scene when nothing raises; what does not happen is not waited for longer."""
ENOUGH_S = 60.0
"""Long enough for anything. Whatever takes longer hangs."""

ACTORS: tuple[type[Actor[Any]], ...] = tuple(
    sorted(
        (found for found in Actor.__subclasses__() if found.__module__.startswith("actors.")), key=lambda one: one.name
    )
)


class Pair(NamedTuple):
    actor: type[Actor[Any]]
    message: type

    def __str__(self) -> str:
        return f"{self.actor.name}-{self.message.__name__}"


def inbox(actor: type[Actor[Any]]) -> tuple[type, ...]:
    """The messages that its handler says it takes."""
    return get_args(get_type_hints(actor.handle)["message"])


PAIRS = [Pair(actor, message) for actor in ACTORS for message in inbox(actor)]


class InjectedFault(Exception):
    """A handler that raises because the test says so."""


class Fault:
    """Who is to raise, and what every actor has been given. Stands between the actors and their handlers."""

    def __init__(self, pair: Pair | None, *, after: bool = False, at: int = 1) -> None:
        """`at`: on which of its messages it raises, the first being 1."""
        self.pair = pair
        self.after = after
        self.at = at
        self.raised = False
        self.seen: Counter[Pair] = Counter()
        self.actors: dict[str, Actor[Any]] = {}
        """The latest of each name."""

    def handle(self, handle: Callable[[Actor[Any], Any], None], actor: Actor[Any], message: Any) -> None:
        pair = Pair(type(actor), type(message))
        self.actors[actor.name] = actor
        if message is POISON:
            raise InjectedFault
        self.seen[pair] += 1
        raises = pair == self.pair and self.seen[pair] == self.at
        if raises and not self.after:
            self.raised = True
            raise InjectedFault
        handle(actor, message)
        if raises:
            self.raised = True
            raise InjectedFault


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """Have every message of every actor pass this fault."""

    def passing(actor: type[Actor[Any]]) -> Callable[[Actor[Any], Any], None]:
        handle = actor.handle
        return lambda self, message: fault.handle(handle, self, message)

    with pytest.MonkeyPatch.context() as patch:
        # These prompts are read in far less than the half second after which a reader is told how far it has got.
        patch.setattr(reading, "TOLD_EVERY_S", 0.005)
        for actor in ACTORS:
            patch.setattr(actor, "handle", passing(actor))
        yield


class Scene:
    """One run of it: who was there, what they asked, and how it ended for them."""

    def __init__(self, house: House, fault: Fault) -> None:
        self.house = house
        self.fault = fault
        self.sockets: list[FakeSocket] = []
        self.asked: Counter[int] = Counter()
        self.watching: list[WatchingSocket] = []
        self.restarts = 0.0
        self.closed: list[int | None] = []
        self.watchers_closed: list[int | None] = []
        self.codes: Counter[str] = Counter()
        self.lies: list[str] = []

    # --- what people do ---

    def open(self) -> FakeSocket:
        socket = self.house.open()
        self.sockets.append(socket)
        return socket

    def watch(self) -> WatchingSocket:
        socket = WatchingSocket()
        self.watching.append(socket)
        serving = asyncio.create_task(self.house.engine.open_watcher(socket, ""), name="watcher")
        self.house.serving.append(serving)
        return socket

    def ask(self, socket: FakeSocket, **fields: object) -> None:
        self.asked[self.sockets.index(socket)] += 1
        self.house.ask(socket, **fields)

    async def soon(self, true: Callable[[], Any]) -> bool:
        return await self._within(SOON_S, true)

    async def surely(self, true: Callable[[], Any], what: str) -> None:
        assert await self._within(ENOUGH_S, true), f"it hangs: {what}"

    async def _within(self, seconds: float, true: Callable[[], Any]) -> bool:
        until = self.house.loop.time() + seconds
        while not true():
            if self.house.loop.time() > until:
                return False
            await asyncio.sleep(0.01)
        return True

    def answered(self, socket: FakeSocket, count: int) -> bool:
        return socket.closed is not None or sum(map(len, socket.books.answers.values())) >= count

    async def until_answered(self, socket: FakeSocket) -> None:
        count = self.asked[self.sockets.index(socket)]
        await self.soon(lambda: self.answered(socket, count))

    async def until_it_writes(self, socket: FakeSocket) -> None:
        await self.soon(lambda: socket.closed is not None or any(one.text for one in socket.books.responses.values()))

    # --- the scene ---

    async def play(self) -> None:
        engine = self.house.engine
        await self.surely(lambda: engine.health.ready, "the start")
        honest = asyncio.create_task(self._see_whether_health_is_true(), name="honest")
        await self._questions()
        await self._cancels_and_slow_readers()
        await self._blinks()
        await self._more_blinks_than_there_are_places()
        await self._faults_of_the_worker()
        for socket in (*self.sockets, *self.watching):
            socket.read(True)
        for number, socket in enumerate(self.sockets):
            count = self.asked[number]
            await self.surely(partial(self.answered, socket, count), f"socket {number} is not answered")
        await self._afterwards()
        honest.cancel()
        await asyncio.gather(honest, return_exceptions=True)

    async def _questions(self) -> None:
        """Who runs, who waits and is told its place, who comes too late, and who asks what cannot be."""
        watcher, silent = self.watch(), self.watch()
        await self.soon(lambda: watcher.books.frames)
        silent.read(False)
        first, second, third = self.open(), self.open(), self.open()
        self.ask(first, max_output_tokens=30)
        self.ask(second, max_output_tokens=100)
        await self.until_it_writes(first)
        self.ask(third, stream_id="waits", max_output_tokens=5)
        self.ask(third, stream_id="too-late", deadline_ms=400)
        self.ask(third, stream_id="nobody", model="nobody")
        self.ask(third, stream_id="cancelled", max_output_tokens=5)
        self.ask(third, stream_id="waits-too", max_output_tokens=5)
        await self.soon(lambda: len(third.books.responses) == 3)
        third.feed(json.dumps({"type": "response.cancel", "stream_id": "cancelled"}))
        for socket in (first, second, third):
            await self.until_answered(socket)
        self.ask(second, deadline_ms=500)
        await self.until_answered(second)
        self.ask(first, stop=["a", "b", "c", "d", "e"])
        long = [{"type": "message", "role": "user", "content": "d"} for _ in range(70)]
        self.ask(second, input=long, truncation="auto", max_output_tokens=5)
        self.ask(third, input="y" * 150, max_output_tokens=2)
        for socket in (first, second, third):
            await self.until_answered(socket)

    async def _cancels_and_slow_readers(self) -> None:
        leaver, slow, cancels = self.open(), self.open(), self.open()
        for socket in (leaver, slow):
            self.ask(socket)
            await self.until_it_writes(socket)
        slow.read(False)
        await self.soon(lambda: self.fault.seen[Pair(Scheduler, SetPaused)])
        self.ask(cancels)
        leaver.leave(1006)
        self.watch().leave(1000)
        await self.until_it_writes(cancels)
        cancels.feed(json.dumps({"type": "response.cancel"}))
        await self.until_answered(cancels)
        await self.soon(lambda: slow.closed is not None)
        slow.read(True)

    @staticmethod
    def _has_resumed(socket: FakeSocket) -> bool:
        return socket.closed is not None or bool(socket.books.resumed)

    async def _blinks(self) -> None:
        """Sockets are lost: one client comes back and cancels, one comes back and is lost again, for good."""
        for comes_to_stay in (True, False):
            lost, back = self.open(), self.open()
            back.books.known = lost.books.known
            self.ask(lost, resumable=True)
            await self.until_it_writes(lost)
            lost.leave(1006)
            for response in lost.books.known.values():
                response.books = back.books
                resume = {"type": "response.resume", "response_id": response.id}
                back.feed(json.dumps({**resume, "starting_after": 10_000}))
                back.feed(json.dumps({**resume, "starting_after": response.events - 1}))
            await self.soon(partial(self._has_resumed, back))
            await asyncio.sleep(0.2)
            if comes_to_stay:
                back.feed(json.dumps({"type": "response.cancel"}))
                await self.soon(partial(self.answered, back, 2))
            else:
                back.leave(1006)
                await self._within(40.0, lambda: self.fault.seen[Pair(Connection, NothingLeft)])

    async def _more_blinks_than_there_are_places(self) -> None:
        """So that one of those whom nobody reads gives way to whoever comes."""
        for _ in range(SURPLUS * RUNNING):
            lost = self.open()
            self.ask(lost, resumable=True)
            await self.until_it_writes(lost)
            lost.leave(1006)
        comes = self.open()
        self.ask(comes, max_output_tokens=5)
        await self.until_answered(comes)

    async def _faults_of_the_worker(self) -> None:
        house = self.house
        one, two = self.open(), self.open()
        house.workers[-1].short_for, house.workers[-1].short_tokens = 2, 0
        self.ask(one, max_output_tokens=10)
        await self.until_answered(one)
        self.ask(one)
        await self.until_it_writes(one)
        house.workers[-1].kill()
        await self.until_answered(one)
        await self.soon(lambda: house.engine.health.ready)
        # The next one finds too little memory when it loads, and the one after that enough.
        house.workers[-1].kill()
        await self.soon(lambda: not house.engine.health.ready)
        await self.soon(lambda: house.workers[-1]._alive)
        deliver = house.workers[-1]._deliver
        if house.workers[-1]._alive and deliver is not None:
            deliver(ModelRefused("There is too little memory just now."))
            house.workers[-1].kill()
        self.ask(two, max_output_tokens=5)
        await self._within(20.0, lambda: self.answered(two, 1))
        self.ask(one)
        self.ask(two)
        await self.until_it_writes(two)
        house.engine.scheduler.tell(POISON)
        await self.soon(lambda: not house.engine.health.ready)
        await self.surely(lambda: self.answered(two, 2), "whoever ran is not told that the worker is lost")

    async def _afterwards(self) -> None:
        """Everybody leaves, and one who comes then is served as if nothing had been."""
        engine = self.house.engine
        await self.surely(lambda: engine.health.ready, "no worker comes again")
        while True:
            raised = self.fault.raised
            last, watcher = self.open(), self.watch()
            self.ask(last)
            await self.surely(partial(self.answered, last, 1), "the next request is not answered")
            await self.soon(partial(self._sees, watcher))
            if self.fault.raised is raised:
                break
        [answer] = last.books.answers[None]
        assert isinstance(answer, Response), answer
        assert (answer.status, answer.usage["output_tokens"]) == ("completed", 126), answer.error_code
        assert watcher.books.frames, "the next one who watches sees nothing"
        watcher.books.check()
        self._take_stock()
        for socket in self.sockets:
            socket.leave(1000)
        here = len([one for one in self.watching if one.closed is None])
        await self.surely(lambda: len(engine.directory) == here, "sockets are left")
        await asyncio.sleep(2.0)
        self._check_nothing_is_held()

    @staticmethod
    def _sees(watcher: WatchingSocket) -> bool:
        return watcher.books.frames > 0

    def _take_stock(self) -> None:
        self.restarts = self.house.engine.metrics.worker_restarts._value.get()
        self.closed = [socket.closed for socket in self.sockets]
        self.watchers_closed = [socket.closed for socket in self.watching]
        for socket in self.sockets:
            for answer in (one for lane in socket.books.answers.values() for one in lane):
                code = answer.error_code or answer.finish_reason if isinstance(answer, Response) else answer
                assert code is not None
                self.codes[code] += 1

    def _check_nothing_is_held(self) -> None:
        held = self.fault.actors
        scheduler, admission = held["scheduler"], held["admission"]
        assert isinstance(scheduler, Scheduler)
        assert isinstance(admission, Admission)
        pool = scheduler._schedule.pool
        assert (pool.used, pool.free + pool.cached) == (0, pool.total), "blocks are left"
        assert not len(scheduler._schedule), "sequences are left"
        assert not len(admission._room), "somebody still waits"
        assert not admission._room._inside, f"admission still counts {admission._room._inside} as running"
        tokeniser, detokeniser, reaper = held["tokeniser"], held["detokeniser"], held["reaper"]
        assert isinstance(tokeniser, Tokeniser)
        assert isinstance(detokeniser, Detokeniser)
        assert isinstance(reaper, Reaper)
        assert not tokeniser._requests, f"the tokeniser still has {list(tokeniser._requests)}"
        assert not tokeniser._offloaded, "the tokeniser waits for a thread that has ended"
        assert not detokeniser._answers, f"the detokeniser still has {list(detokeniser._answers)}"
        assert not reaper.alive, f"the reaper still watches {list(reaper._alive)}"
        watched = reaper._connections.keys() - self.house.engine.directory._addresses.keys()
        assert not watched, f"the reaper still watches sockets that have gone: {watched}"
        gallery = held["gallery"]
        assert isinstance(gallery, Gallery)
        shown = gallery._watchers.keys() - self.house.engine.directory._addresses.keys()
        assert not shown, f"the gallery still shows itself to {shown}"

    async def _see_whether_health_is_true(self) -> None:
        """Ready means that there is a worker, give or take the moment in which its end is told."""
        house = self.house
        false_since: float | None = None
        while True:
            health, worker = house.engine.health, house.workers[-1]
            if health.ready and not worker._alive:
                false_since = false_since if false_since is not None else house.loop.time()
                if house.loop.time() - false_since > 0.03:
                    self.lies.append(f"ready without a worker at {house.loop.time():.3f}")
            else:
                false_since = None
            if not health.ready and not health.explanation:
                self.lies.append("not ready, and no reason")
            await asyncio.sleep(0.01)


def play(fault: Fault, vocabulary: Vocabulary, seed: int = 1) -> Scene:
    """The scene, and a drain after it with somebody there. Raises AssertionError when something does not hold.

    `seed` says which ready callback runs next.
    """
    loop = SimulatedLoop(Random(seed))
    config = structs.replace(CONFIG, max_running=RUNNING, grace_s=5.0, resume_grace_s=GRACE_S)
    house = House(loop, vocabulary, PATIENCE, config, limits=LIMITS)
    scene = Scene(house, fault)

    async def live() -> None:
        around = asyncio.all_tasks()
        house.running = asyncio.create_task(house.engine.run(house.announced.append), name="engine")
        await scene.play()
        staying = scene.open()
        scene.ask(staying)
        await scene.until_it_writes(staying)
        house.engine.drain()
        await scene.surely(house.running.done, "the drain")
        await house.running
        assert staying.closed in (1001, 1011)
        assert all(socket.closed is not None for socket in scene.watching), "a watcher was left"
        await scene.surely(lambda: all(one.done() for one in house.serving), "sockets are left")
        left = [task.get_name() for task in asyncio.all_tasks() - around - {*house.serving}]
        assert not left, f"tasks are left: {left}"

    with capture_logs() as logs, injected(fault):
        loop.run(asyncio.wait_for(live(), LONGEST_S))
    audits = [entry for entry in logs if entry["event"].startswith("audit.")]
    assert not audits, "the reaper has found something that leaked"
    assert not scene.lies, scene.lies[:3]
    return scene
