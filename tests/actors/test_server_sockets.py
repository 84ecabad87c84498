"""An open WebSocket over the network: its frames, its closing, and how a client that leaves is noticed."""

import asyncio
import contextlib
import struct
from socket import SO_LINGER, SOL_SOCKET

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from actors.socket import Socket, SocketGone
from actors.websocket import HttpConnection
from tests.actors.server_house import MakeHouse, raw_client


async def test_text_and_binary_frames_are_told_apart(make_house: MakeHouse) -> None:
    received: asyncio.Queue[bytes | str] = asyncio.Queue()

    async def listen(socket: Socket, _: str) -> None:
        for _frame in range(2):
            received.put_nowait(await socket.recv())

    house = await make_house(listen)
    async with connect(house.url) as client:
        await client.send("text ✓")
        await client.send(b"binary")
        assert await received.get() == "text ✓"
        assert await received.get() == b"binary"


async def test_a_frame_that_is_too_big_closes_with_1009(make_house: MakeHouse) -> None:
    house = await make_house()
    client = await connect(house.url)
    sending = asyncio.create_task(client.send("x" * 20_000_000))
    with pytest.raises(ConnectionClosed) as closed:
        await client.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    await asyncio.gather(sending, return_exceptions=True)
    await house.left.wait()
    assert house.codes == [1009]


async def test_a_close_has_its_code_and_reason(make_house: MakeHouse) -> None:
    async def close(socket: Socket, _: str) -> None:
        await socket.close(1013, "try again later")
        await socket.close(1000, "")

    house = await make_house(close)
    async with connect(house.url) as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "try again later")


async def test_closing_the_server_closes_sockets_with_1001(make_house: MakeHouse) -> None:
    house = await make_house()
    async with connect(house.url) as client:
        await house.inside.wait()
        closing = asyncio.create_task(house.server.close())
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        await closing
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


class Flood:
    """Sends without end: what a connection to a reader that reads nothing does."""

    def __init__(self) -> None:
        self.sent = 0
        self.gone = asyncio.Event()
        self.code = 0

    async def __call__(self, socket: Socket, tenant: str) -> None:
        sending = asyncio.create_task(self._send(socket))
        try:
            while True:
                await socket.recv()
        except SocketGone as gone:
            self.code = gone.code
            self.gone.set()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, socket: Socket) -> None:
        while True:
            await socket.send(b"x" * 1000)
            self.sent += 1


@pytest.fixture
def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set while the buffers between server and reader are full, the system's and asyncio's: when writing is paused."""
    full = asyncio.Event()
    pause, resume = HttpConnection.pause_writing, HttpConnection.resume_writing

    def pause_writing(self: HttpConnection) -> None:
        pause(self)
        full.set()

    def resume_writing(self: HttpConnection) -> None:
        resume(self)
        full.clear()

    monkeypatch.setattr(HttpConnection, "pause_writing", pause_writing)
    monkeypatch.setattr(HttpConnection, "resume_writing", resume_writing)
    return full


@pytest.mark.parametrize("way", ["reset", "end", "goodbye"])
async def test_a_reader_that_leaves_with_everything_unread_is_noticed_at_once(
    make_house: MakeHouse, nothing_fits: asyncio.Event, way: str
) -> None:
    flood = Flood()
    house = await make_house(flood)
    client = raw_client(house)
    try:
        async with asyncio.timeout(5):
            await nothing_fits.wait()
        assert 0 < flood.sent < 1000
        match way:
            case "reset":
                client.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            case "end":
                client.close()
            case "goodbye":
                client.sendall(b"\x88\x82\x00\x00\x00\x00\x03\xe9")
        async with asyncio.timeout(0.4):
            await flood.gone.wait()
        assert flood.code == (1001 if way == "goodbye" else 1006)
    finally:
        client.close()


_PING = b"\x89\xfd" + bytes(4) + b"x" * 125


async def test_a_client_that_pings_and_never_reads_is_let_go(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.websocket.CONTROL_FRAME", 0)  # It pings slowly enough.
    house = await make_house()
    client = raw_client(house)
    client.setblocking(False)
    try:
        await house.inside.wait()
        assert house.server._listening is not None
        (connection,) = house.server._listening.connections
        most = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while not house.left.is_set():
                    await asyncio.get_running_loop().sock_sendall(client, _PING * 100)
                    most = max(most, connection.transport.get_write_buffer_size())
        await asyncio.wait_for(house.left.wait(), 5)
        assert house.codes == [1006]
        assert most < 400_000
    finally:
        client.close()


async def test_a_client_that_pings_while_it_reads_a_huge_frame_slowly_is_kept(make_house: MakeHouse) -> None:
    async def send(socket: Socket, _: str) -> None:
        with contextlib.suppress(SocketGone):
            await socket.send(b"x" * 2_000_000)
            await socket.recv()

    house = await make_house(send)
    client = raw_client(house, 64 * 2**10)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(10):
            got = 0
            while got < 2_000_000:
                await loop.sock_sendall(client, _PING)
                piece = await loop.sock_recv(client, 200_000)
                assert piece, "the socket was closed"
                got += len(piece)
    finally:
        client.close()
