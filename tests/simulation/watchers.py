"""People who watch the simulated engine, and what every frame that they are shown must hold."""

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING

import msgspec

from protocol.turns import Frame, Hello, Life
from tests.simulation.sockets import Books, FakeSocket

if TYPE_CHECKING:
    from tests.simulation.world import World

decode = msgspec.json.Decoder(Hello | Frame).decode
NOBODY = 0


class FrameBooks(Books):
    """Checks every frame against those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.hello: Hello | None = None
        self.fault: AssertionError | None = None
        self.frames = 0
        self.missed = 0
        self.steps = 0
        self.lives: dict[int, Life] = {}
        self.used = 0
        self._at = 0.0
        self._ran_until = 0.0
        self._pool_told = False

    def take(self, frame: bytes) -> None:
        # Raised where a frame is sent it would only close the socket.
        try:
            self._look_at(decode(frame))
        except AssertionError as fault:
            self.fault = self.fault or fault

    def _look_at(self, told: Hello | Frame) -> None:
        if isinstance(told, Hello):
            assert self.hello is None, "hello twice"
            self.hello = told
        else:
            assert self.hello is not None, "hello comes first"
            self._take(told)
        self.changed.set()

    def _take(self, frame: Frame) -> None:
        assert frame.at >= self._at
        self._at = frame.at
        self.frames += 1
        self.missed += frame.missed
        for life in frame.lives:
            before = self.lives.get(life.request)
            if before is not None:
                assert life.received_at == before.received_at
                assert life.id == before.id
                assert before.ended_at is None or life.ended_at == before.ended_at, "an end was taken back"
            assert (life.ended_at is not None) == (life.state in ("finished", "refused"))
            self.lives[life.request] = life
        for step in frame.steps:
            self.steps += 1
            assert step.at >= self._ran_until - 1e-5, "two steps at once"
            self._ran_until = step.at + step.took_ms / 1e3
            assert abs(sum(part.share_ms for part in step.parts) - step.took_ms) < 1e-6, "parts do not add up"
            for part in step.parts:
                assert part.share_ms >= 0
                assert part.tokens > 0
                assert part.request in (*self.lives, NOBODY), f"nobody was told of {part.request}"
                whose = self.lives.get(part.request)
                if whose is not None and whose.input_tokens is not None and part.start >= whose.input_tokens:
                    assert part.kind == ("decode" if part.tokens == 1 else "prefill")
        if frame.pool is not None:
            pool = frame.pool
            assert pool.free + pool.cached + pool.used == pool.total, f"{pool} does not add up"
            assert all(blocks > 0 and number in self.lives for number, blocks in pool.held)
            self.used = pool.used
            self._pool_told = True
        assert self._pool_told, "the first frame says where the blocks are"

    def check(self) -> None:
        """Raises what the first frame that did not hold was found to be."""
        if self.fault is not None:
            raise self.fault

    @property
    def living(self) -> list[Life]:
        return [life for life in self.lives.values() if life.ended_at is None]


class WatchingSocket(FakeSocket):
    def __init__(self) -> None:
        super().__init__()
        self.books: FrameBooks = FrameBooks()


class Onlooker:
    """One who comes and goes, and stops reading now and then."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._chance = Random(f"{world.seed} watches {number}")
        self._name = f"onlooker {number}"
        self._over = asyncio.Event()
        self.missed = 0

    async def live(self) -> None:
        """Until told to `leave`."""
        chance = self._chance
        while not self._over.is_set():
            socket = WatchingSocket()
            serving = asyncio.create_task(self._world.engine.open_watcher(socket, ""), name=self._name)
            for _ in range(chance.choice((0, 1, 5))):
                await self._wait(chance.choice((0.0, 0.01, 0.3, 1.5)))
                socket.read(chance.random() < 0.6)
            socket.leave(chance.choice((1000, 1001, 1006)))
            await serving
            socket.books.check()
            assert socket.closed != 1011, "the gallery has failed"
            self.missed += socket.books.missed
            await self._wait(chance.choice((0.0, 0.2, 1.0)))

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    def leave(self) -> None:
        self._over.set()


class Resident:
    """One who is there from the beginning to the end, and reads everything."""

    def __init__(self, world: "World") -> None:
        self._socket = WatchingSocket()
        self.books = self._socket.books
        self.serving = asyncio.create_task(world.engine.open_watcher(self._socket, ""), name="resident")

    def check(self) -> None:
        """Everybody else has gone: every life has ended."""
        self.books.check()
        assert self._socket.closed is None, f"a watcher was closed with {self._socket.closed}"
        assert not self.books.living, f"never ended: {self.books.living}"
        assert not self.books.missed, "frames were missed by one who reads them"
        assert not self.books.used, f"{self.books.used} blocks are shown as used"

    async def see_it_out(self) -> None:
        """The server has drained: it says so, and closes the socket."""
        await self.serving
        assert self._socket.closed == 1001
