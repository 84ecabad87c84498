"""The whole engine in virtual time, for single scenes with it.

Everything but time, the sockets and the worker process is the real thing, as in the simulation. Knows no scene.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from msgspec import structs

from actors.config import Config
from actors.connection import ConnectionLimits
from actors.directory import ConnectionInbox
from actors.engine import Engine
from actors.reaper import Patience
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from protocol.messages import (
    Drained,
    FromWorker,
    LoadModel,
    ModelReady,
)
from tests.simulation.loop import SimulatedLoop
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
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.loop = loop
        self.workers: list[Worker] = []
        self.told: dict[int, list[ConnectionInbox]] = {}
        self._ids = itertools.count()
        self.serving: list[asyncio.Task[None]] = []
        self.announced: list[ModelReady] = []
        self.vocabulary: Vocabulary | Exception = vocabulary
        self.engine = Engine(
            config,
            new_child=self._new_child,
            load_vocabulary=self._load_vocabulary,
            offload=self._offload,
            clock=loop.time,
            unix_clock=loop.time,
            new_id=lambda: f"{next(self._ids):032x}",
            chance=Random(1),
            patience=patience,
            limits=limits,
            tracer=tracer,
        )
        self.running: asyncio.Task[None]

    def _offload(self, work: Callable[[], Any], done: Callable[[Any], None], whose: str = "") -> None:
        """A thread that is none."""
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  handed over
            result = error
        self.loop.call_soon(done, result)

    def _load_vocabulary(self, folder: str) -> Vocabulary:
        if isinstance(self.vocabulary, Exception):
            raise self.vocabulary
        return self.vocabulary

    def _new_child(self) -> Worker:
        self.workers.append(Worker())
        return self.workers[-1]

    async def until(self, true: Callable[[], Any]) -> None:
        """Look again and again: in virtual time it costs nothing."""
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def ready(self) -> None:
        await self.until(lambda: self.engine.health.ready)

    def open(self, key: str = "", known: dict[str, Response] | None = None) -> FakeSocket:
        """`known`: what the same client has on its other sockets."""
        socket = FakeSocket(known)
        self.serving.append(asyncio.create_task(self.engine.open_connection(socket, key), name="socket"))
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


def live_with(
    vocabulary: Vocabulary,
    scene: Callable[[House], Coroutine[Any, Any, None]],
    patience: Patience | None = None,
    config: Config = CONFIG,
    limits: ConnectionLimits | None = None,
    prepare: Callable[[House], None] = lambda house: None,
) -> House:
    """Runs a scene with an engine in it, to the end of both. Nothing may be left then."""
    loop = SimulatedLoop(Random(1))
    house = House(loop, vocabulary, patience or Patience(), config, limits=limits)
    prepare(house)
    around: set[asyncio.Task[Any]] = set()

    async def both() -> None:
        house.running = asyncio.create_task(house.engine.run(house.announced.append), name="engine")
        await scene(house)
        house.engine.drain()
        house.engine.drain()
        await house.running
        await asyncio.gather(*house.serving)
        left = [task.get_name() for task in asyncio.all_tasks() - around]
        assert left == [asyncio.current_task().get_name()]  # type: ignore[union-attr]

    async def bounded() -> None:
        around.update(asyncio.all_tasks())
        await asyncio.wait_for(both(), LONGEST_S)

    loop.run(bounded())
    return house
