"""One simulated run of the whole engine: sockets, clients, faults, and what must hold after every message.

Everything but time, sockets and the worker process is the real thing. A run is a function of its seed.
"""

import asyncio
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import structlog

from actors import writer
from actors.actor import Actor, Fate, Mailbox
from actors.admission import Admission
from actors.answer import Reader
from actors.config import Config
from actors.connection import Connection, ConnectionLimits
from actors.detokeniser import Detokeniser
from actors.engine import Engine
from actors.executor import Executor
from actors.gallery import Gallery
from actors.gallery_watcher import Watcher
from actors.reaper import Patience, Reaper
from actors.scheduler import Scheduler
from actors.scheduling import reading
from actors.scheduling.key_places import SURPLUS
from actors.scheduling.policies import POLICIES, PolicyName
from actors.tokeniser import Tokeniser
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from protocol.messages import Ask, ModelReady, Tokens
from tests.simulation.clients import MAX_CONTEXT, Client
from tests.simulation.loop import SimulatedLoop
from tests.simulation.sockets import FakeSocket
from tests.simulation.watchers import Onlooker, Resident
from tests.simulation.worker import FakeWorker

ACTORS: tuple[type[Actor[Any]], ...] = (
    Connection,
    Tokeniser,
    Admission,
    Scheduler,
    Executor,
    Detokeniser,
    Reaper,
    Gallery,
    Watcher,
)
TOLD_EVERY_S = 0.02
"""How often readers hear how much of their prompts is read: these prompts are read in far less than half a second."""
LONGEST_S = 900.0
"""Of virtual time. A run that takes longer hangs."""


class InjectedFault(Exception):
    """A handler that raises, because the run's seed says so."""


class World:
    """A seed and all that follows from it."""

    def __init__(
        self, seed: int, vocabulary: Vocabulary, trace: Callable[[str], None] | None = None, *, traced: bool = False
    ) -> None:
        """`trace` is told every message; `traced`: the engine has a tracer of its own."""
        self.seed = seed
        self.chance = Random(seed)
        self.trace = trace
        self.vocabulary = vocabulary
        self.loop = SimulatedLoop(Random(self.chance.random()))
        self.tracer = Tracer(self.loop.time, self._unix_time, most=sys.maxsize) if traced else None
        self.messages = 0
        self.violation: AssertionError | None = None
        self.faults = self._plan_faults()
        self.fault_names: list[str] = []
        self.engine: Engine
        self.worker: FakeWorker
        self.policy: PolicyName
        self.resume_grace_s: float
        self._watching = Random(f"{seed} watched")
        self._has_resident = self._watching.random() < 0.3
        # One who is there from the beginning to the end has a socket that lasts as long.
        self.socket_age_s = math.inf if self._has_resident else Random(f"{seed} age").choice((math.inf, 0.5, 2.0))
        self.sockets: list[FakeSocket] = []
        self.resident: Resident | None = None
        self.onlookers: list[Onlooker] = []
        self.clean = not self.faults
        self.actors: dict[str, Actor[Any]] = {}
        self._last_id = 0

    @property
    def ends_of_age(self) -> tuple[str, ...]:
        """How a response may fail because its socket is as old as one may be."""
        return () if self.socket_age_s == math.inf else ("websocket_connection_limit_reached",)

    # --- faults at any message ---

    def _plan_faults(self) -> dict[int, str]:
        """Message number to fault. Half of the runs have none, so that they can be held to more."""
        kinds = ("crash", "hang", "slow", "raise", "raise in the worker", "socket", "full", "no memory")
        count = self.chance.choice((0, 0, 0, 1, 1, 2, 3))
        return {self.chance.randrange(30, 2500): self.chance.choice(kinds) for _ in range(count)}

    def before(self, actor: Actor[Any], message: object) -> None:
        self.messages += 1
        self.actors[actor.name] = actor
        if self.trace is not None:
            self.trace(f"{self.loop.time():9.3f} {actor.name:<11} {message}")
        fault = self.faults.get(self.messages)
        if fault is None:
            return
        self.fault_names.append(fault)
        if self.trace is not None:
            self.trace(f"{self.loop.time():9.3f} FAULT       {fault}")
        match fault:
            case "crash":
                self.worker.kill()
            case "hang":
                self.worker.hang_in = 0
            case "slow":
                self.worker.slow_in = 0
            case "no memory":
                self.worker.short_for = self.chance.choice((1, 10, 100))
                self.worker.short_tokens = self.chance.choice((0, 1, 2, 8))
            case "socket":
                if self.sockets:
                    self.chance.choice(self.sockets).leave(1006)
            case "full":
                self.engine.tokeniser.capacity = 1
            case "raise":
                if (not isinstance(actor, Reaper) and isinstance(message, Ask | Tokens)) or actor.fate is Fate.WORKER:
                    raise InjectedFault
            case "raise in the worker":
                if actor.fate is Fate.WORKER:
                    raise InjectedFault

    def after(self, actor: Actor[Any]) -> None:
        """What must hold after every message."""
        if isinstance(actor, Scheduler):
            actor._schedule.audit()
        if isinstance(actor, Admission):
            most = SURPLUS * self.engine._config.max_running
            inside = Counter(client[0] for client, _ in actor._room._inside.values())
            assert all(count <= most for count in inside.values()), f"more of a key than may be are inside: {inside}"
        if isinstance(actor, Connection):
            for answer in actor._exchange._answers._answers.values():
                away = answer.reader is Reader.NOWHERE and answer.ended is None and not answer.told
                assert answer.paused or not away, f"{answer.request} runs on though nobody reads it"
        mailbox: Mailbox[Any] = actor.mailbox
        depths = mailbox.statistics()
        assert depths["data"].depth <= mailbox.capacity or "full" in self.fault_names, (
            f"{actor.name}: data lane over its bound"
        )
        assert depths["control"].depth <= 200, f"{actor.name}: {depths['control'].depth} control messages wait"

    # --- the run ---

    def run(self) -> None:
        """Raises AssertionError with the seed when something does not hold."""
        global _world
        _world = self
        try:
            self.loop.run(asyncio.wait_for(self._live(), LONGEST_S))
            if self.violation is not None:
                raise self.violation
        except BaseException as error:
            policy = getattr(self, "policy", "none yet")
            depth = 1 + self.seed % 2
            error.add_note(
                f"seed {self.seed}, policy {policy}, at most {depth} steps in flight, faults {self.fault_names}: "
                f"python -m tests.simulation {self.seed}"
            )
            raise
        finally:
            _world = None

    async def _live(self) -> None:
        self._outer_tasks = asyncio.all_tasks()
        chance = self.chance
        block_size = chance.choice((4, 8, 16))
        self.worker = FakeWorker(
            Random(chance.random()),
            # From just enough for one request of the full context to plenty.
            blocks=-(-MAX_CONTEXT // block_size) + chance.choice((0, 1, 3, 6, 60)),
            block_size=block_size,
            max_context=MAX_CONTEXT,
            calibrated=chance.random() < 0.5,
            steps_in_flight=1 + self.seed % 2,
        )
        self.policy = chance.choice(POLICIES)
        self.resume_grace_s = chance.choice((0.0, 0.5, 5.0, 5.0))
        self.engine = Engine(
            Config(
                max_running=chance.choice((1, 4, 8, 8)),
                max_waiting=chance.choice((2, 16)),
                max_wait_s=chance.choice((0.5, 60.0)),
                max_waiting_work_s=chance.choice((0.5, 300.0)),
                policy=self.policy,
                chunk_tokens=chance.choice((4, 16, 64)),
                hang_s=2.0,
                grace_s=5.0,
                resume_grace_s=self.resume_grace_s,
            ),
            new_child=lambda: self.worker,
            load_vocabulary=lambda _: self.vocabulary,
            offload=self._offload,
            clock=self.loop.time,
            unix_clock=self._unix_time,
            new_id=self._new_id,
            chance=Random(chance.random()),
            patience=Patience(
                tick_s=0.25, sweep_s=0.5, audit_s=1.0, reader_stalled_s=20.0, socket_age_s=self.socket_age_s
            ),
            limits=ConnectionLimits(pause_chars=8, turn_bytes=600, lanes=6, running=4),
            tracer=self.tracer,
        )
        ready: asyncio.Future[ModelReady] = self.loop.create_future()
        engine = asyncio.create_task(self.engine.run(ready.set_result), name="engine")
        await asyncio.wait((ready, engine), return_when=asyncio.FIRST_COMPLETED)
        clients = [Client(self, number) for number in range(chance.randint(1, 4))]
        watching = self._let_watch()
        await asyncio.gather(*(client.live() for client in clients))
        for onlooker in self.onlookers:
            onlooker.leave()
        await asyncio.gather(*watching)
        await self._settle()
        if self.resident is not None:
            self.resident.check()
        for client in clients:
            client.check()
        self.engine.drain()
        await engine
        if self.resident is not None:
            await self.resident.see_it_out()
        self._check_nothing_is_left()

    def _let_watch(self) -> list[asyncio.Task[None]]:
        """In half of the runs somebody watches all the time, somebody comes and goes, or both do."""
        if self._has_resident:
            self.resident = Resident(self)
        self.onlookers = [Onlooker(self, number) for number in range(self._watching.choice((0, 0, 1, 2)))]
        return [asyncio.create_task(one.live(), name="onlooker") for one in self.onlookers]

    async def _settle(self) -> None:
        """Until every socket's requests have been let go."""
        while len(self.engine.directory) > (self.resident is not None):
            await asyncio.sleep(0.25)
        # A worker that was lost is started again; what it still owes is settled by then.
        while not self.engine.health.ready:
            await asyncio.sleep(0.25)
        await asyncio.sleep(3.0)

    def _check_nothing_is_left(self) -> None:
        scheduler, admission = self.actors["scheduler"], self.actors["admission"]
        assert isinstance(scheduler, Scheduler)
        assert isinstance(admission, Admission)
        pool = scheduler._schedule.pool
        assert pool.used == 0, f"{pool.used} blocks are still used"
        assert not len(scheduler._schedule), "the scheduler still has sequences"
        assert not len(admission._room), "somebody still waits"
        assert not admission._room._inside, f"admission still waits for {admission._room._inside}"
        assert admission._room.idle, "admission still counts somebody as waiting or running"
        assert scheduler._schedule.backlog_tokens == 0, "a backlog of nobody"
        reaper = self.actors["reaper"]
        assert isinstance(reaper, Reaper)
        assert not reaper.alive, f"the reaper still watches {reaper.alive} requests"
        tokeniser, detokeniser = self.actors.get("tokeniser"), self.actors.get("detokeniser")
        if isinstance(tokeniser, Tokeniser) and "raise" not in self.fault_names:
            assert not tokeniser._requests, f"the tokeniser still has {tokeniser._requests}"
        if isinstance(detokeniser, Detokeniser) and "raise" not in self.fault_names:
            assert not detokeniser._answers, f"the detokeniser still has {detokeniser._answers}"
        left = [task.get_name() for task in asyncio.all_tasks() - self._outer_tasks if not task.done()]
        assert not left, f"tasks are left: {left}"

    def _unix_time(self) -> float:
        return 1_700_000_000 + self.loop.time()

    def _new_id(self) -> str:
        self._last_id += 1
        return f"{self._last_id:032x}"

    def _offload(self, work: Callable[[], Any], done: Callable[[Any], None], whose: str = "") -> None:
        """A thread that is none: the work is done at once, and its result comes some time later."""
        try:
            result: Any = work()
        except Exception as error:  # noqa: BLE001  handed over, as the thread does
            result = error
        self.loop.call_later(self.chance.uniform(0.0, 0.05), done, result)


_world: World | None = None
_installed = False


def _watch(actor_type: type[Actor[Any]]) -> None:
    handle = actor_type.handle

    def watched(self: Actor[Any], message: Any) -> None:
        world = _world
        if world is None:
            handle(self, message)
            return
        world.before(self, message)
        handle(self, message)
        try:
            world.after(self)
        except AssertionError as violation:
            # Raised inside of a handler, it would pass for a failure of that handler's.
            world.violation = world.violation or violation
            raise

    actor_type.handle = watched  # type: ignore[method-assign]


def install() -> None:
    """Have every message of every actor pass the world that runs. Once a process."""
    global _installed
    if _installed:
        return
    _installed = True
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    reading.TOLD_EVERY_S = TOLD_EVERY_S
    writer.PROGRESS_BYTES = 1  # Here nobody trickles: he stops, or reads on.
    for actor_type in ACTORS:
        _watch(actor_type)
