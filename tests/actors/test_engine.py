"""The whole engine in virtual time: what it does when one of its actors raises, and how it leaves.

Everything but time, the sockets and the worker process is the real thing, as in the simulation; here single scenes.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from actors.actor import Mailbox
from actors.config import Config
from actors.connection import Connection
from actors.directory import ConnectionInbox
from actors.engine import Engine, EngineStopped
from actors.reaper import Patience
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from protocol import errors
from protocol.messages import (
    Accepted,
    CloseConnection,
    Drain,
    Drained,
    FromWorker,
    LoadModel,
    ModelReady,
    ModelRefused,
    Refused,
    WorkerLost,
)
from tests.actors.recorders import enqueue
from tests.simulation.loop import SimulatedLoop
from tests.simulation.seeds import small_vocabulary
from tests.simulation.sockets import FakeSocket, Response
from tests.simulation.worker import FakeWorker

POISON = Drained(0.0)
"""A message that none of the three expects: whose handler gets it raises."""
LONGEST_S = 120.0
MAX_CONTEXT = 256
CONFIG = Config(max_running=8, grace_s=20.0)
ONE_AT_A_TIME = structs.replace(CONFIG, max_running=1)


class Worker(FakeWorker):
    """One that counts its lives, and may take its time to die, as a process does."""

    def __init__(self) -> None:
        super().__init__(Random(1), blocks=64, block_size=16, max_context=MAX_CONTEXT, calibrated=True)
        self.lives = 0
        self.slow_to_die = False
        self.dead = asyncio.Event()
        self._dying: asyncio.Task[bool] | None = None

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        self.lives += 1
        super().start(load, deliver, gone)

    async def close(self) -> None:
        await super().close()
        if self.slow_to_die:
            if self._dying is None:
                self._dying = asyncio.create_task(self.dead.wait(), name="worker process")
            await self._dying


class House:
    """An engine that runs, its workers, and all that its connections were told."""

    def __init__(
        self,
        loop: SimulatedLoop,
        vocabulary: Vocabulary,
        patience: Patience,
        config: Config,
        tracer: Tracer | None = None,
    ) -> None:
        self.loop = loop
        self.workers: list[Worker] = []
        self.told: dict[int, list[ConnectionInbox]] = {}
        self._ids = itertools.count()
        self.serving: list[asyncio.Task[None]] = []
        self.announced: list[ModelReady] = []
        self.engine = Engine(
            config,
            new_child=self._new_child,
            load_vocabulary=lambda _: vocabulary,
            offload=self._offload,
            clock=loop.time,
            unix_clock=loop.time,
            new_id=lambda: f"{next(self._ids):032x}",
            chance=Random(1),
            patience=patience,
            tracer=tracer,
        )
        self.running: asyncio.Task[None]

    def _offload(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """A thread that is none."""
        self.loop.call_soon(done, work())

    def _new_child(self) -> Worker:
        self.workers.append(Worker())
        return self.workers[-1]

    async def until(self, true: Callable[[], Any]) -> None:
        """Look again and again: in virtual time it costs nothing."""
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def ready(self) -> None:
        await self.until(lambda: self.engine.health.ready)

    def open(self) -> FakeSocket:
        socket = FakeSocket()
        self.serving.append(asyncio.create_task(self.engine.open_connection(socket, ""), name="socket"))
        return socket

    def ask(self, socket: FakeSocket, **fields: object) -> None:
        """For an answer of 126 tokens, which takes about a second."""
        socket.feed(json.dumps({"type": "response.create", "input": "d", "temperature": 0, **fields}))

    async def running_on(self, *sockets: FakeSocket) -> None:
        """Until each of them has read some of an answer."""
        for socket in sockets:
            await self.until(lambda: any(one.text for one in socket.books.responses.values()))  # noqa: B023

    async def answer(self, socket: FakeSocket, number: int = 0) -> Response | str:
        """A response when it has ended, or the code of the error that came in its stead."""
        answers = socket.books.answers[None]
        await self.until(lambda: len(answers) > number)
        return answers[number]

    async def whole_answer(self, socket: FakeSocket, number: int = 0) -> None:
        whole = await self.answer(socket, number)
        assert isinstance(whole, Response)
        assert (whole.status, whole.usage["output_tokens"]) == ("completed", 126)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture
def live(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> Callable[..., House]:
    """Runs a scene with an engine in it, to the end of both."""
    houses: list[House] = []
    handle = Connection.handle

    def keep(self: Connection, message: ConnectionInbox) -> None:
        houses[-1].told.setdefault(self._id, []).append(message)
        handle(self, message)

    monkeypatch.setattr(Connection, "handle", keep)

    def run(
        scene: Callable[[House], Coroutine[Any, Any, None]], patience: Patience | None = None, config: Config = CONFIG
    ) -> House:
        loop = SimulatedLoop(Random(1))
        house = House(loop, vocabulary, patience or Patience(), config)
        houses.append(house)

        async def both() -> None:
            house.running = asyncio.create_task(house.engine.run(house.announced.append), name="engine")
            await scene(house)
            house.engine.drain()
            house.engine.drain()
            await house.running
            await asyncio.gather(*house.serving)
            left = [task.get_name() for task in asyncio.all_tasks() - around]
            assert left == [asyncio.current_task().get_name()]  # type: ignore[union-attr]

        around: set[asyncio.Task[Any]] = set()

        async def bounded() -> None:
            around.update(asyncio.all_tasks())
            await asyncio.wait_for(both(), LONGEST_S)

        loop.run(bounded())
        return house

    return run


# --- when one of the three raises ---


@pytest.mark.parametrize("actor", ["admission", "scheduler", "executor"])
def test_when_one_of_the_three_raises_every_socket_is_told_and_all_is_served_again(
    actor: str, live: Callable[..., House]
) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        sockets = [house.open() for _ in range(3)]
        for socket in sockets[:2]:
            house.ask(socket)
        await house.running_on(*sockets[:2])
        mailbox: Mailbox[Any] = house.engine.mailboxes[actor]
        mailbox.tell(POISON)
        for socket in sockets[:2]:
            failed = await house.answer(socket)
            assert isinstance(failed, Response)
            assert (failed.status, failed.error_code) == ("failed", "worker_failed")
        assert not house.engine.health.ready
        await house.ready()
        for socket in sockets:
            house.ask(socket)
        for socket, number in zip(sockets, (1, 1, 0), strict=True):
            await house.whole_answer(socket, number)
        for number in (1, 2, 3):
            assert [type(message) for message in house.told[number]].count(WorkerLost) == 1
        assert all(socket.closed is None for socket in sockets)

    with capture_logs() as logs:
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1, 1]
    assert len(house.announced) == 1, "it is announced once"
    assert [entry["event"] for entry in logs if entry["log_level"] in ("error", "critical")] == [
        "actor.failed",
        "worker.restarting",
    ]
    assert "rota_worker_restarts_total 1.0" in house.engine.metrics.exposition().decode()


def test_one_that_raises_again_and_again_is_started_anew_each_time(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        for times in (2, 3, 4):
            house.engine.scheduler.tell(POISON)
            await house.until(lambda: len(house.workers) == times)  # noqa: B023
        await house.ready()
        socket = house.open()
        house.ask(socket)
        await house.whole_answer(socket)

    with capture_logs():
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1, 1, 1, 1]


def test_the_old_workers_death_is_waited_for_before_another_starts(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        house.workers[0].slow_to_die = True
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: not house.engine.health.ready)
        await asyncio.sleep(30.0)
        assert len(house.workers) == 1, "two would not find memory beside each other"
        house.workers[0].dead.set()
        await house.ready()

    with capture_logs():
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1, 1]


def test_a_stop_while_the_old_worker_is_dying_waits_for_its_death_as_well(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        house.workers[0].slow_to_die = True
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: not house.engine.health.ready)
        house.engine.drain()
        await asyncio.sleep(30.0)
        assert not house.running.done()
        house.workers[0].dead.set()

    with capture_logs():
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1], "and no other is started"


def test_a_first_worker_that_refuses_its_model_ends_it_with_its_sentence(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.until(lambda: house.workers)
        deliver = house.workers[0]._deliver
        assert deliver is not None
        deliver(ModelRefused("There is no such model."))
        with pytest.raises(EngineStopped, match=r"^There is no such model\.$"):
            await house.running
        house.running = asyncio.create_task(asyncio.sleep(0), name="engine")

    assert live(scene).announced == []


# --- draining ---


def test_a_connection_that_opens_while_it_drains_is_told_so(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        busy = house.open()
        house.ask(busy)
        await house.running_on(busy)
        house.engine.drain()
        until = house.loop.time() + 20.0
        late = house.open()
        house.ask(late)
        assert await house.answer(late) == "shutting_down"
        assert house.told[2][0] == Drain(until), "before anything it has to say itself"
        assert late.closed is None, "it is closed with the others"
        await house.whole_answer(busy)

    with capture_logs():
        house = live(scene)
    assert [told.code for told in house.told[2] if isinstance(told, CloseConnection)] == [1001]


def test_a_connection_that_opens_when_it_has_drained_is_closed_like_the_others(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        stuck = house.open()
        stuck.read(False)
        house.ask(stuck)
        await house.until(lambda: house.engine.tokeniser.statistics()["data"].taken)
        house.engine.drain()
        house.engine.drain()
        await house.until(lambda: any(isinstance(told, CloseConnection) for told in house.told.get(1, ())))
        assert not house.running.done(), "it waits for the one whose reader has stopped"
        late = house.open()
        before = house.loop.time()
        await house.until(lambda: late.closed)
        assert late.closed == 1001
        assert house.loop.time() - before < 0.5
        error = errors.stopped_in_the_middle()
        assert CloseConnection(2, 1001, "the server is shutting down", error) in house.told[2]

    with capture_logs():
        live(scene)


def test_an_admission_that_starts_anew_while_it_drains_accepts_nothing(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        socket = house.open()
        house.ask(socket)
        await house.running_on(socket)
        house.engine.drain()
        house.engine.admission.tell(POISON)
        await house.until(lambda: len(house.workers) == 2)
        assert house.engine.admission.offer(enqueue("late", connection=1, received_at=house.loop.time()))
        await house.until(lambda: any(isinstance(told, Refused) for told in house.told[1]))
        assert Refused("late", errors.shutting_down()) in house.told[1]

    with capture_logs():
        live(scene, patience=Patience(tick_s=5.0))


# --- the settings reach those they are for ---


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"max_waiting": 1}, "All 1 places to wait are taken"),
        ({"max_waiting_work_s": 0.1}, "of work are waiting, and this is"),
        ({"max_wait_s": 0.05}, "and nobody is let to wait longer than 50 ms"),
    ],
)
def test_the_waiting_room_is_as_large_as_its_settings_say(
    setting: dict[str, Any], sentence: str, live: Callable[..., House]
) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        first = house.open()
        for number in (1, 2, 3):
            socket = first if number == 1 else house.open()
            house.ask(socket)
            await house.until(lambda: any(isinstance(told, Accepted | Refused) for told in house.told.get(number, ())))  # noqa: B023
        assert await house.answer(socket) == "server_overloaded"
        (refused,) = (told for told in house.told[3] if isinstance(told, Refused))
        assert sentence in refused.error.message
        await house.whole_answer(first)

    live(scene, config=structs.replace(ONE_AT_A_TIME, **setting))


def test_what_the_worker_measured_says_which_deadlines_cannot_be_met(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        socket, other = house.open(), house.open()
        house.ask(socket, deadline_ms=5)
        assert await house.answer(socket) == "deadline_exceeded"
        (refused,) = (told for each in house.told.values() for told in each if isinstance(told, Refused))
        assert refused.error.message.startswith("The first token would come after about ")
        assert house.engine.scheduler.statistics()["data"].taken == 0
        house.ask(other, deadline_ms=30_000)
        await house.whole_answer(other)

    live(scene)


# --- figures ---


def test_queued_counts_who_waits_in_the_room_and_who_was_let_in_but_never_ran(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        def queued() -> float | None:
            return house.engine.metrics.registry.get_sample_value("rota_requests", {"state": "queued"})

        await house.ready()
        house.workers[0].kill()
        await house.until(lambda: not house.engine.health.ready)
        sockets = [house.open() for _ in range(3)]
        for socket in sockets:
            house.ask(socket)
        await house.until(lambda: queued() == 3)
        assert house.engine.scheduler.statistics()["data"].taken == 1, "one of them has left the room"
        await house.ready()
        for socket in sockets:
            await house.whole_answer(socket)
        assert queued() == 0

    with capture_logs() as logs:
        live(scene, config=ONE_AT_A_TIME)
    finished = [entry for entry in logs if entry["event"] == "request.finished"]
    assert len(finished) == 3
