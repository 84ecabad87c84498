"""One simulated run of the whole engine: sockets, clients, faults, and what must hold after every message.

Everything but time, sockets and the worker process is the real thing. A run is a function of its seed.
"""

import asyncio
import json
import logging
import sys
from array import array
from collections.abc import Callable
from random import Random
from typing import Any

import structlog

from actors.actor import Actor, Fate, Mailbox
from actors.admission import Admission
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
from actors.scheduling.policies import POLICIES, PolicyName
from actors.tokeniser import Tokeniser
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from protocol.input_items import Message
from protocol.messages import Ask, ModelReady, Tokens
from tests.simulation.loop import SimulatedLoop
from tests.simulation.sockets import FakeSocket, Response
from tests.simulation.watchers import Onlooker, Resident
from tests.simulation.worker import FakeWorker, answer_to

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
NONSENSE: tuple[bytes | str, ...] = ("{", "[]", '{"type": 1}', b"\x00", '{"type": "nothing"}')
MAX_CONTEXT = 120
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
        self.faults = self._plan_faults()
        self.fault_names: list[str] = []
        self.engine: Engine
        self.worker: FakeWorker
        self.policy: PolicyName
        self.sockets: list[FakeSocket] = []
        self.resident: Resident | None = None
        self.onlookers: list[Onlooker] = []
        self.clean = not self.faults
        self.actors: dict[str, Actor[Any]] = {}
        self._last_id = 0

    # --- faults at any message ---

    def _plan_faults(self) -> dict[int, str]:
        """Message number to fault. Half of the runs have none, so that they can be held to more."""
        kinds = ("crash", "hang", "slow", "raise", "raise in the worker", "socket", "full")
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
        except BaseException as error:
            policy = getattr(self, "policy", "none yet")
            error.add_note(
                f"seed {self.seed}, policy {policy}, faults {self.fault_names}: python -m tests.simulation {self.seed}"
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
        )
        self.policy = chance.choice(POLICIES)
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
            ),
            new_child=lambda: self.worker,
            load_vocabulary=lambda _: self.vocabulary,
            offload=self._offload,
            clock=self.loop.time,
            unix_clock=self._unix_time,
            new_id=self._new_id,
            chance=Random(chance.random()),
            patience=Patience(tick_s=0.25, sweep_s=0.5, audit_s=1.0, reader_stalled_s=20.0),
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
        chance = Random(f"{self.seed} watched")
        if chance.random() < 0.3:
            self.resident = Resident(self)
        self.onlookers = [Onlooker(self, number) for number in range(chance.choice((0, 0, 1, 2)))]
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

    def _offload(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """A thread that is none: the work is done at once, and its result comes some time later."""
        try:
            result: Any = work()
        except Exception as error:  # noqa: BLE001  handed over, as the thread does
            result = error
        self.loop.call_later(self.chance.uniform(0.0, 0.05), done, result)


class Client:
    """One person at one socket, whose whims come from the seed."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.chance = Random(f"{world.seed} {number}")
        self.number = number
        self.socket = FakeSocket()
        self.sent: dict[str | None, list[dict[str, Any] | None]] = {}
        """By lane: each create, or None for a frame that is nonsense."""
        self.polite = False

    async def live(self) -> None:
        world, chance = self.world, self.chance
        await asyncio.sleep(chance.uniform(0, 0.3))
        world.sockets.append(self.socket)
        serving = asyncio.create_task(world.engine.open_connection(self.socket, ""), name=f"socket {self.number}")
        for _ in range(chance.choice((1, 6, 12, 24))):
            if self.socket.closed is not None:
                break
            self._act()
            await asyncio.sleep(chance.choice((0, 0, 0, 0.001, 0.02, 0.1)))
        self.socket.read(True)
        if chance.random() < 0.75:
            self.polite = True
            while self.socket.closed is None and self._owed():
                self.socket.books.changed.clear()
                await self.socket.books.changed.wait()
            await asyncio.sleep(0.5)
            self.socket.leave(1000)
        else:
            self.socket.leave(chance.choice((1000, 1001, 1006)))
        await serving

    def _owed(self) -> bool:
        answers = self.socket.books.answers
        return any(len(answers[lane]) < len(sent) for lane, sent in self.sent.items())

    def _act(self) -> None:
        match self.chance.choice(
            ("ask", "ask", "ask", "ask", "cancel", "cancel lane", "nonsense", "read", "stop reading")
        ):
            case "ask":
                self._ask()
            case "cancel":
                ids = list(self.socket.books.responses) or ["resp_unknown"]
                self._say({"type": "response.cancel", "response_id": self.chance.choice(ids)})
            case "cancel lane":
                lane = self.chance.choice(list(self.sent) or [None])
                self._say({"type": "response.cancel"} | ({} if lane is None else {"stream_id": lane}))
            case "nonsense":
                self.sent.setdefault(None, []).append(None)
                self.socket.feed(self.chance.choice(NONSENSE))
            case "read":
                self.socket.read(True)
            case "stop reading":
                self.socket.read(False)

    def _ask(self) -> None:
        chance = self.chance
        lane = chance.choice((None, None, "a", "b", "c"))
        create: dict[str, Any] = {
            "type": "response.create",
            "input": "x" * chance.choice((1, 5, 12, 20)) + str(chance.randrange(100)),
            "temperature": 0,
        }
        if lane is not None:
            create["stream_id"] = lane
        if chance.random() < 0.7:
            create["max_output_tokens"] = chance.choice((1, 2, 5, 30, 80))
        if chance.random() < 0.3:
            create["stop"] = [chance.choice(("ab", "✓", "字🙂", ".", "abc"))]
        if chance.random() < 0.1:
            create["generate"] = False
        if chance.random() < 0.15:
            create["deadline_ms"] = chance.choice((1, 20, 100, 1000))
        if chance.random() < 0.1:
            create["input"] = "y" * 100
        if chance.random() < 0.5:
            create["targets"] = {"ttft_ms": chance.choice((5, 100, 3000)), "itl_ms": chance.choice((5, 30, 300))}
        if chance.random() < 0.3:
            create["service_tier"] = chance.choice(("auto", "flex", "priority", "ultrafast"))
        self.sent.setdefault(lane, []).append(create)
        self._say(create)

    def _say(self, event: dict[str, Any]) -> None:
        self.socket.feed(json.dumps(event))

    # --- what must hold at the end ---

    def check(self) -> None:
        """Every question that was read has one answer, in order, and no answer says what the model did not."""
        answers = self.socket.books.answers
        for lane, sent in self.sent.items():
            assert len(answers[lane]) <= len(sent), f"more answers than questions on lane {lane}"
            if self.polite and self.world.clean:
                assert len(answers[lane]) == len(sent), f"an unanswered question on lane {lane}"
            for question, answer in zip(sent, answers[lane], strict=False):
                if question is not None and isinstance(answer, Response):
                    self._check_answer(question, answer)
                elif question is None:
                    assert isinstance(answer, str), "nonsense was answered with a response"

    def _check_answer(self, question: dict[str, Any], answer: Response) -> None:
        prompt = self.world.vocabulary.prompt([Message("user", question["input"])])
        whole = answer_to(array("i", prompt))
        text, reason, tokens = expected(whole, question, MAX_CONTEXT - len(prompt))
        if answer.finish_reason in ("stop", "stop_text", "length", "prefilled"):
            assert (answer.text, answer.finish_reason) == (text, reason), f"expected {(text, reason)} of {whole!r}"
            assert answer.usage["output_tokens"] == tokens
            assert answer.usage["input_tokens"] == len(prompt)
        else:
            assert text.startswith(answer.text), f"{answer.finish_reason}: {answer.text!r} is not how {text!r} begins"
            if self.world.clean:
                assert answer.finish_reason in ("cancelled", "deadline", "failed")
                assert answer.error_code in (None, "deadline_exceeded"), answer.error_code


def expected(whole: bytes, question: dict[str, Any], room: int) -> tuple[str, str, int]:
    """Text, finish reason and output tokens of an answer that is let to end by itself, found the slow way."""
    if question.get("generate") is False:
        return "", "prefilled", 0
    limit = question.get("max_output_tokens", room)
    for count in range(1, len(whole) + 1):
        text = whole[:count].decode(errors="ignore")
        for stop in question.get("stop", ()):
            if stop in text and count <= limit:
                return text[: text.index(stop)], "stop_text", count
        if count == limit:
            return text, "length", count
    if len(whole) + 1 > limit:
        return whole[:limit].decode(errors="ignore"), "length", limit
    return whole.decode(), "stop", len(whole) + 1


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
        world.after(self)

    actor_type.handle = watched  # type: ignore[method-assign]


def install() -> None:
    """Have every message of every actor pass the world that runs. Once a process."""
    global _installed
    if _installed:
        return
    _installed = True
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    reading.TOLD_EVERY_S = TOLD_EVERY_S
    for actor_type in ACTORS:
        _watch(actor_type)
