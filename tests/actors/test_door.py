"""Who is counted at a door under TLS, and when no more: on asyncio's own loop, and on the one that rota runs on."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from websockets.asyncio.client import connect

from actors.crowd import Crowd
from actors.tls import tls_context
from tests.actors.certificates import client_context, make_certificate
from tests.actors.server_house import House

Run = Callable[[Coroutine[Any, Any, None]], None]
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Guarded:
    """A house whose server shows a certificate, and what comes to its doors."""

    def __init__(self, house: House, trusting: ssl.SSLContext) -> None:
        self.house = house
        self.trusting = trusting
        self.crowd: Crowd = house.server._crowd
        self.fewer = asyncio.Event()
        """Somebody is not counted any more."""
        knocked = self.crowd.knocked

        def notice(peer: str) -> None:
            knocked(peer)
            self.fewer.set()

        self.crowd.knocked = notice  # type: ignore[method-assign]

    @property
    def knocking(self) -> int:
        return self.crowd._knocking.total()

    async def until_knocking(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.knocking > count:
                self.fewer.clear()
                await self.fewer.wait()

    async def tcp(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that says nothing."""
        return await asyncio.open_connection("127.0.0.1", self.house.server.port)

    async def healthy(self) -> bytes:
        """The whole answer to a question that is sent with the last words about TLS."""
        port = self.house.server.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=self.trusting)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        found = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return found


@asynccontextmanager
async def guarded(folder: Path, **settings: Any) -> AsyncIterator[Guarded]:
    certificate, key = make_certificate(folder)
    house = House(tls=tls_context(certificate, key), **settings)
    await house.server.start()
    try:
        yield Guarded(house, client_context(certificate))
    finally:
        await asyncio.wait_for(house.server.close(), 10)


async def ending(reader: asyncio.StreamReader) -> bytes:
    """What is said up to the end of a connection that the other side ends."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


@both_loops
def test_who_does_not_agree_on_tls_is_counted_and_one_too_many_is_closed_at_once(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, handshakes=3, open_timeout_s=60.0) as doors:
            silent = [await doors.tcp() for _ in range(3)]
            for _ in range(20):
                reader, writer = await doors.tcp()
                assert await ending(reader) == b""
                writer.close()
            assert doors.knocking == 3
            refused = 'rota_connections_refused_total{code="websocket_connection_limit_reached"} 20.0'
            assert refused in doors.house.server._metrics.exposition().decode()
            silent.pop()[1].close()
            await doors.until_knocking(2)
            assert (await doors.healthy()).startswith(b"HTTP/1.1 200")
            for _, writer in silent:
                writer.close()
            await doors.until_knocking(0)

    run(scenario())


@both_loops
def test_who_is_let_in_or_speaks_no_tls_is_counted_no_more(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, handshakes=3, open_timeout_s=60.0) as doors:
            url = doors.house.url.replace("ws://", "wss://")
            async with connect(url, ssl=doors.trusting) as client:
                await (await client.ping())
                assert doors.knocking == 0
                for said in (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b""):
                    reader, writer = await doors.tcp()
                    writer.write(said)
                    if not said:
                        writer.write_eof()
                    assert b"HTTP" not in await ending(reader)
                    writer.close()
                    await doors.until_knocking(0)
                await (await client.ping())

    run(scenario())


@both_loops
def test_who_takes_too_long_over_tls_is_closed_and_counted_no_more(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, open_timeout_s=0.05) as doors:
            for said in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
                reader, writer = await doors.tcp()
                writer.write(said)
                assert await ending(reader) == b""
                writer.close()
                await doors.until_knocking(0)

    run(scenario())


@both_loops
def test_nothing_is_lost_of_what_comes_as_soon_as_a_connection_is_there(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, handshakes=100) as doors:
            for _ in range(4):
                answers = await asyncio.gather(*(doors.healthy() for _ in range(25)))
                assert all(it.endswith(b'{"status":"alive"}') for it in answers)
            await doors.until_knocking(0)

    run(scenario())


@both_loops
def test_a_server_that_closes_does_not_wait_for_those_who_say_nothing(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, open_timeout_s=60.0) as doors:
            before = await doors.tcp()
            assert (await doors.healthy()).startswith(b"HTTP/1.1 200"), "the one before it is accepted"
            await asyncio.wait_for(doors.house.server.close(), 10)
            assert await ending(before[0]) == b""
            before[1].close()
            await doors.until_knocking(0)

    run(scenario())
