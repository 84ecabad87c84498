"""An engine in virtual time that people watch: what each has been shown, and what the engine was up to."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from actors.config import Config
from actors.reaper import Patience
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from protocol.turns import Frame, Life
from tests.actors.engine_house import CONFIG, LONGEST_S, House
from tests.simulation.loop import SimulatedLoop
from tests.simulation.sockets import FakeSocket
from tests.simulation.watchers import WatchingSocket, decode


class GalleryHouse(House):
    def watch(self, tenant: str = "") -> WatchingSocket:
        socket = WatchingSocket()
        self.serving.append(asyncio.create_task(self.engine.open_watcher(socket, tenant), name="watcher"))
        return socket

    def open_as(self, tenant: str) -> FakeSocket:
        socket = FakeSocket()
        self.serving.append(asyncio.create_task(self.engine.open_connection(socket, tenant), name="socket"))
        return socket

    async def shown(self, watcher: WatchingSocket, true: Callable[[list[Life]], Any]) -> list[Life]:
        """All lives that this watcher was told of, once they are as wanted."""
        await self.until(lambda: true(list(watcher.books.lives.values())))
        watcher.books.check()
        return list(watcher.books.lives.values())


class Keeping(WatchingSocket):
    """Keeps every frame as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[bytes] = []
        take = self.books.take

        def keep(frame: bytes) -> None:
            self.raw.append(frame)
            take(frame)

        self.books.take = keep  # type: ignore[method-assign]

    @property
    def frames(self) -> list[Frame]:
        return [frame for frame in map(decode, self.raw) if isinstance(frame, Frame)]


def keep(house: GalleryHouse, tenant: str = "") -> Keeping:
    socket = Keeping()
    house.serving.append(asyncio.create_task(house.engine.open_watcher(socket, tenant), name="watcher"))
    return socket


Scene = Callable[[GalleryHouse], Coroutine[Any, Any, None]]


def play(scene: Scene, vocabulary: Vocabulary, config: Config = CONFIG, *, traced: bool = False) -> GalleryHouse:
    """A scene with an engine in it, to the end of both."""
    loop = SimulatedLoop(Random(1))
    tracer = Tracer(loop.time, loop.time) if traced else None
    house = GalleryHouse(loop, vocabulary, Patience(), config, tracer)

    async def live() -> None:
        house.running = asyncio.create_task(house.engine.run(house.announced.append), name="engine")
        await house.ready()
        await scene(house)
        house.engine.drain()
        house.engine.drain()
        await house.running
        await asyncio.gather(*house.serving)

    loop.run(asyncio.wait_for(live(), LONGEST_S))
    return house


def all_ended(lives: list[Life]) -> bool:
    return bool(lives) and all(life.ended_at is not None for life in lives)
