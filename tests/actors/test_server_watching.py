"""`/v1/turns` behind the server's door: guarded as `/v1/responses` is, and the real engine behind it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from actors.config import Config
from actors.engine import Engine
from actors.server import Server, ServerSettings
from actors.socket import Socket, SocketGone
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from protocol.turns import Frame, Hello, Life
from tests.actors.server_house import House, MakeHouse
from tests.simulation.watchers import decode
from tests.simulation.worker import FakeWorker


class Watched:
    """Who was let in to watch, and stays until he is gone."""

    def __init__(self) -> None:
        self.tenants: list[str] = []
        self.left = asyncio.Event()

    async def __call__(self, socket: Socket, tenant: str) -> None:
        self.tenants.append(tenant)
        try:
            await socket.recv()
        except SocketGone:
            self.left.set()


def at_once(work: Callable[[], Any], done: Callable[[Any], None], whose: str = "") -> None:
    """A thread that is none."""
    asyncio.get_running_loop().call_soon(done, work())


async def nobody(_: Socket, __: str) -> None:
    raise AssertionError("nobody asks here")


def turns(house: House) -> str:
    return f"ws://127.0.0.1:{house.server.port}/v1/turns"


async def refusal(house: House, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refused:
        await connect(turns(house), **options)
    return refused.value.response.status_code, json.loads(refused.value.response.body)["error"]


# --- the door ---


@pytest.mark.parametrize("query", ["", "?x=1"])
async def test_who_comes_to_watch_is_let_in_to_watch_and_to_nothing_else(make_house: MakeHouse, query: str) -> None:
    watched = Watched()
    house = await make_house(nobody, watched)
    async with connect(turns(house) + query):
        pass
    await asyncio.wait_for(watched.left.wait(), 5)
    assert watched.tenants == [""]


async def test_a_key_is_asked_for_and_says_whose_requests_are_ones_own(make_house: MakeHouse) -> None:
    watched = Watched()
    house = await make_house(nobody, watched, keys={"shop": "sesame", "blog": "mellon"})
    status, error = await refusal(house)
    assert (status, error["code"]) == (401, "authentication_failed")
    assert (await refusal(house, additional_headers={"Authorization": "Bearer wrong"}))[0] == 401
    async with connect(turns(house), additional_headers={"Authorization": "Bearer mellon"}):
        pass
    offered = [Subprotocol("responses"), Subprotocol("openai-insecure-api-key.sesame")]
    async with connect(turns(house), subprotocols=offered) as client:
        assert client.subprotocol == "responses"
    assert watched.tenants == ["blog", "shop"]


async def test_pages_from_elsewhere_see_nothing(make_house: MakeHouse) -> None:
    house = await make_house(nobody, Watched(), origins=["https://shop.example"])
    assert (await refusal(house, origin="https://other.example"))[1]["code"] == "origin_not_allowed"
    async with connect(turns(house), origin="https://shop.example"):  # type: ignore[arg-type]
        pass


async def test_before_there_is_a_model_and_after_the_end_it_is_refused_in_words(make_house: MakeHouse) -> None:
    house = await make_house(nobody, Watched())
    model, house.health.model = house.health.model, None
    house.health.down("The model is being loaded.")
    status, error = await refusal(house)
    assert (status, error["code"]) == (503, "server_overloaded")
    assert error["message"].startswith("The model is being loaded.")
    house.health.model = model
    house.server.stop_accepting()
    assert (await refusal(house))[1]["code"] == "shutting_down"


async def test_so_many_may_watch_and_another_when_one_has_left(make_house: MakeHouse) -> None:
    watched = Watched()
    house = await make_house(None, watched, watchers=2)
    clients = [await connect(turns(house)) for _ in range(2)]
    status, error = await refusal(house)
    assert (status, error["code"]) == (503, "server_overloaded")
    assert error["message"] == ("2 watch already, the most that this server shows its turns to. Try again in 1.0 s.")
    async with connect(house.url):
        pass
    await clients[0].close()
    await asyncio.wait_for(watched.left.wait(), 5)
    async with connect(turns(house)):
        pass
    await clients[1].close()


async def test_one_key_leaves_places_to_watch_from_to_the_others(make_house: MakeHouse) -> None:
    house = await make_house(None, Watched(), keys={"shop": "sesame", "blog": "mellon"}, watchers=4)
    shop, blog = ({"Authorization": f"Bearer {key}"} for key in ("sesame", "mellon"))
    clients = [await connect(turns(house), additional_headers=shop) for _ in range(2)]
    status, error = await refusal(house, additional_headers=shop)
    assert (status, error["code"]) == (503, "server_overloaded")
    assert error["message"].startswith("All places to watch from that this key may have, of 4, are taken.")
    async with connect(turns(house), additional_headers=blog):
        pass
    for client in clients:
        await client.close()


async def test_watchers_count_among_the_connections(make_house: MakeHouse) -> None:
    house = await make_house(None, Watched(), connections=1)
    async with connect(turns(house)):
        with pytest.raises(InvalidStatus):
            await connect(house.url)


@pytest.mark.parametrize(("method", "status"), [("GET", 426), ("POST", 405), ("DELETE", 405)])
async def test_without_an_upgrade_a_sentence_says_what_to_do(make_house: MakeHouse, method: str, status: int) -> None:
    house = await make_house()
    got, headers, body = await house.http(f"{method} /v1/turns HTTP/1.1\nHost: x")
    assert (got, headers["upgrade"]) == (status, "websocket")
    message = json.loads(body)["error"]["message"]
    assert f"{method} /v1/turns" in message
    assert "Open a WebSocket at /v1/turns" in message
    assert "response.create" not in message


# --- the engine behind it ---


class Behind:
    """A real engine, a real socket, and a worker that computes nothing."""

    def __init__(self, engine: Engine, server: Server, worker: FakeWorker) -> None:
        self.engine = engine
        self.server = server
        self.worker = worker

    @asynccontextmanager
    async def watching(self, **options: Any) -> AsyncIterator["Watching"]:
        async with connect(f"ws://127.0.0.1:{self.server.port}/v1/turns", **options) as client:
            yield Watching(client)

    async def ask(self, **fields: Any) -> list[dict[str, Any]]:
        """All events of one answer."""
        events: list[dict[str, Any]] = []
        async with connect(f"ws://127.0.0.1:{self.server.port}/v1/responses") as client:
            await client.send(json.dumps({"type": "response.create", "input": "d", "temperature": 0, **fields}))
            async for frame in client:
                events.append(json.loads(frame))
                if events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                    break
        return events


class Watching:
    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self.hello: Hello | None = None
        self.frames: list[Frame] = []
        self.lives: dict[int, Life] = {}

    async def until(self, true: Callable[["Watching"], Any]) -> None:
        async with asyncio.timeout(20):
            while not true(self):
                said = await self.client.recv()
                assert isinstance(said, str)
                told = decode(said.encode())
                if isinstance(told, Hello):
                    self.hello = told
                else:
                    self.frames.append(told)
                    self.lives.update((life.request, life) for life in told.lives)

    @property
    def over(self) -> bool:
        return bool(self.lives) and all(life.ended_at is not None for life in self.lives.values())


@pytest.fixture(params=[False, True], ids=["", "traced"])
async def behind(vocabulary: Vocabulary, request: pytest.FixtureRequest) -> AsyncIterator[Behind]:
    tracer = Tracer(time.monotonic, time.time) if request.param else None
    worker = FakeWorker(Random(1), blocks=64, block_size=16, max_context=256, calibrated=True)
    loop = asyncio.get_running_loop()
    engine = Engine(
        Config(max_running=8, grace_s=20.0),
        new_child=lambda: worker,
        load_vocabulary=lambda _: vocabulary,
        offload=at_once,
        tracer=tracer,
    )
    ready = loop.create_future()
    running = asyncio.create_task(engine.run(ready.set_result))
    await asyncio.wait_for(ready, 10)
    server = Server(ServerSettings(port=0), engine.health, engine.metrics, engine.open_connection, engine.open_watcher)
    await server.start()
    yield Behind(engine, server, worker)
    if not engine.health.draining:
        engine.drain()
        engine.drain()
    await asyncio.wait_for(running, 10)
    await server.close()


async def test_a_request_is_watched_over_a_real_socket(behind: Behind) -> None:
    async with behind.watching() as watching:
        await watching.until(lambda one: one.frames)
        assert watching.hello is not None
        assert abs(watching.hello.at - time.time()) < 60
        assert (watching.hello.model, watching.hello.blocks, watching.hello.max_running) == ("m", 64, 8)
        events = await behind.ask(max_output_tokens=20)
        await watching.until(lambda one: one.over)
        [life] = watching.lives.values()
        assert (life.id, life.reason, life.output_tokens) == (events[0]["response"]["id"], "length", 20)
        steps = [step for frame in watching.frames for step in frame.steps]
        assert len(steps) >= 20
        for step in steps:
            assert sum(part.share_ms for part in step.parts) == pytest.approx(step.took_ms, abs=1e-6)
        await watching.until(lambda one: one.frames[-1].pool is not None and not one.frames[-1].pool.used)
        assert behind.engine.metrics.registry.get_sample_value("rota_watchers") == 1


async def test_a_worker_that_dies_is_watched_and_so_is_the_next(behind: Behind) -> None:
    async with behind.watching() as watching:
        await watching.until(lambda one: one.frames)
        asking = asyncio.create_task(behind.ask())
        await watching.until(lambda one: any(life.output_tokens for life in one.lives.values()))
        behind.worker.kill()
        await watching.until(lambda one: not one.frames[-1].worker_up and one.over)
        assert (await asking)[-1]["type"] == "response.failed"
        assert [life.reason for life in watching.lives.values()] == ["failed"]
        await watching.until(lambda one: one.frames[-1].worker_up)
        await behind.ask(max_output_tokens=3)
        await watching.until(lambda one: len(one.lives) == 2 and one.over)


async def test_a_drain_says_goodbye(behind: Behind) -> None:
    async with behind.watching() as watching:
        await watching.until(lambda one: one.frames)
        behind.engine.drain()
        with pytest.raises(ConnectionClosed) as closed:
            await watching.until(lambda _: False)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1001, "the server is shutting down")


async def test_one_who_speaks_is_told_that_nothing_can_be_asked_here(behind: Behind) -> None:
    async with behind.watching() as watching:
        await watching.until(lambda one: one.frames)
        await watching.client.send("{}")
        with pytest.raises(ConnectionClosed) as closed:
            await watching.until(lambda _: False)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "nothing can be asked here, only watched")
