"""A connection behind the server's door: what clients on real sockets are told, and what they can cost."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect

from actors.actor import Address, Mailbox
from actors.connection import Connection, ConnectionLimits
from actors.metrics import Metrics
from actors.socket import Socket
from protocol.messages import (
    Accepted,
    Ask,
    Cancel,
    CloseConnection,
    Ended,
    SetPaused,
    Stats,
    Text,
    TextEnd,
)
from protocol.messages import ConnectionClosed as ConnectionClosedMessage
from tests.actors.connection_rig import Recorder
from tests.actors.server_house import MakeHouse, masked, raw_client


class Engine:
    """A connection for each socket, and a script for what the engine says."""

    def __init__(self, script: Callable[["Engine", Ask], None], **limits: Any) -> None:
        self.script = script
        self.limits = ConnectionLimits(**limits)
        self.scheduler, self.reaper = Recorder(), Recorder()
        self.tokeniser = _Scripted(self)
        self.connections: list[Connection] = []
        self.asked = asyncio.Event()

    async def __call__(self, socket: Socket, tenant: str) -> None:
        clock = asyncio.get_running_loop().time
        number = len(self.connections)
        connection = Connection(
            Mailbox(clock, 64),
            connection=number,
            socket=socket,
            tenant=tenant,
            model="m",
            tokeniser=Address(self.tokeniser),
            scheduler=Address(self.scheduler),
            reaper=Address(self.reaper),
            clock=clock,
            unix_clock=lambda: 1_732_900_000.0,
            new_id=lambda: f"{len(self.tokeniser.messages):x}",
            metrics=Metrics(),
            limits=self.limits,
        )
        self.connections.append(connection)
        await connection.serve()


class _Scripted(Recorder):
    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine

    def offer(self, message: Any) -> bool:
        self._engine.script(self._engine, message)
        self._engine.asked.set()
        return super().offer(message)

    def tell(self, message: Any) -> None:
        super().tell(message)
        if isinstance(message, Cancel):
            self._engine.connections[0].address.tell(Ended(message.request, "cancelled", Stats()))


def say_hello(engine: Engine, ask: Ask) -> None:
    address = engine.connections[ask.connection].address
    address.tell(Accepted(ask.request, 9, 64, 0.0))
    for word in ("Hello", " ✓"):
        address.tell(Text(ask.request, word, (1.0,)))
    address.tell(Text(ask.request, ".", (1.0,), (), TextEnd("stop", 3)))
    address.tell(Ended(ask.request, "stop", Stats()))


def accept_only(engine: Engine, ask: Ask) -> None:
    engine.connections[ask.connection].address.tell(Accepted(ask.request, 9, 64, 0.0))


async def test_the_official_client_gets_its_answer(make_house: MakeHouse) -> None:
    house = await make_house(Engine(say_hello))
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{house.server.port}/v1", api_key="x")
    async with client.responses.connect() as socket:
        await socket.response.create(model="m", input="Say hello.")
        kinds, text = [], ""
        async for event in socket:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                assert event.response.output_text == text == "Hello ✓."
                break
    assert kinds[0] == "response.created"
    await client.close()


async def test_a_client_that_stops_reading_pauses_its_response_and_costs_little(make_house: MakeHouse) -> None:
    engine = Engine(accept_only, pause_chars=20_000, stall_s=0.05)
    house = await make_house(engine)
    client = raw_client(house)
    try:
        client.sendall(masked(b'{"type": "response.create", "model": "m", "input": "x"}'))
        async with asyncio.timeout(5):
            await engine.asked.wait()
        connection = engine.connections[0]
        request = engine.tokeniser.of(Ask)[0].request
        said = 0
        async with asyncio.timeout(10):
            while not engine.scheduler.messages:
                connection.address.tell(Text(request, "word " * 200, (1.0,)))
                said += 1000
                await asyncio.sleep(0)
        assert engine.scheduler.messages[0] == SetPaused(request, True, engine.scheduler.messages[0].at)
        assert said < 2_000_000
        assert connection._writer.unsent_bytes < 100_000
        async with asyncio.timeout(5):
            await engine.reaper.until(lambda: engine.reaper.messages[-1].stalled_since is not None)
    finally:
        client.close()


async def test_a_client_that_floods_and_dies_is_noticed_at_once(make_house: MakeHouse) -> None:
    engine = Engine(accept_only)
    house = await make_house(engine)
    client = raw_client(house)
    for number in range(500):
        lane = f"l{number % 40}"
        client.sendall(masked(json.dumps({"type": "response.create", "stream_id": lane, "input": "x"}).encode()))
    async with asyncio.timeout(5):
        await engine.tokeniser.until(lambda: len(engine.tokeniser.of(Ask)) == 40)
    client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    async with asyncio.timeout(1):
        await engine.tokeniser.until(lambda: bool(engine.tokeniser.of(ConnectionClosedMessage)))
    asked = {ask.request for ask in engine.tokeniser.of(Ask)}
    assert {cancel.request for cancel in engine.tokeniser.of(Cancel)} == asked


async def test_terminal_events_come_before_the_close(make_house: MakeHouse) -> None:
    engine = Engine(accept_only)
    house = await make_house(engine)
    async with connect(house.url) as client:
        await client.send('{"type": "response.create", "model": "m", "input": "x"}')
        await engine.asked.wait()
        engine.connections[0].address.tell(CloseConnection(0, 1001, "the server is shutting down"))
        kinds = [json.loads(frame)["type"] async for frame in _all(client)]
    assert kinds == ["response.created", "response.incomplete"]
    assert client.close_code == 1001


async def _all(client: ClientConnection) -> AsyncIterator[str | bytes]:
    async for frame in client:
        yield frame
