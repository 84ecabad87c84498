"""The doors of rota, over real sockets: who comes in, what plain HTTP answers, how a leaving client is noticed."""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from socket import SO_LINGER, SO_RCVBUF, SOL_SOCKET, create_connection
from socket import socket as Socket_
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from actors.actor import Address, Mailbox
from actors.connection import Connection, ConnectionLimits
from actors.health import Health
from actors.metrics import Metrics
from actors.server import Server, ServerSettings
from actors.socket import Socket, SocketGone
from protocol.messages import (
    Accepted,
    Ask,
    Cancel,
    CloseConnection,
    Ended,
    ModelReady,
    SetPaused,
    Stats,
    Text,
    TextEnd,
)
from protocol.messages import ConnectionClosed as ConnectionClosedMessage
from tests.actors.connection_rig import Recorder

MODEL = ModelReady("m", "/m", "cpu", "float32", 16, 64, 1024, 100, (2,), 1, 1, 1, 0.1)


class House:
    """A server with nothing behind it but what a test puts there."""

    def __init__(
        self, open_connection: Callable[[Socket, str], Awaitable[None]] | None = None, **settings: Any
    ) -> None:
        self.health = Health(1_732_900_000.0)
        self.health.serving(MODEL)
        self.tenants: list[str] = []
        self.codes: list[int] = []
        self.left = asyncio.Event()
        self.inside = asyncio.Event()
        self.server = Server(
            ServerSettings(port=0, **{"close_timeout_s": 0.5, **settings}),
            self.health,
            Metrics(),
            open_connection or self._read_until_gone,
        )

    async def _read_until_gone(self, socket: Socket, tenant: str) -> None:
        self.tenants.append(tenant)
        self.inside.set()
        try:
            while True:
                await socket.recv()
        except SocketGone as gone:
            self.codes.append(gone.code)
            self.left.set()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.server.port}/v1/responses"

    async def http(self, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """What is answered to raw bytes, up to the end of the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await writer.wait_closed()
        top, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(status.split()[1]), headers, body

    async def raw(self, *pieces: bytes, ends: bool = False) -> bytes:
        """What is answered to these bytes, sent one piece after the other, up to the end of the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if ends:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return answer

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in {"Host": "127.0.0.1", **headers}.items()]
        return await self.http("\n".join([f"GET {path} HTTP/1.1", *lines]))


MakeHouse = Callable[..., Awaitable[House]]


@pytest_asyncio.fixture
async def make_house() -> AsyncIterator[MakeHouse]:
    houses: list[House] = []

    async def make(*args: Any, **settings: Any) -> House:
        house = House(*args, **settings)
        await house.server.start()
        houses.append(house)
        return house

    yield make
    for house in houses:
        await asyncio.wait_for(house.server.close(), 10)


async def refusal(house: House, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refused:
        await connect(house.url, **options)
    response = refused.value.response
    assert response.headers["Content-Type"] == "application/json"
    error = json.loads(response.body)["error"]
    assert {"type", "code", "message", "param"} <= error.keys()
    return response.status_code, error


# --- who may come in -------------------------------------------------------------------------------------------------


async def test_anyone_comes_in_when_there_are_no_keys(make_house: MakeHouse) -> None:
    house = await make_house()
    async with connect(house.url, additional_headers={"Authorization": "Bearer whatever"}) as client:
        assert client.subprotocol is None
        await house.inside.wait()
    assert house.tenants == [""]


async def test_a_key_opens_the_door_and_names_the_tenant(make_house: MakeHouse) -> None:
    house = await make_house(keys={"shop": "sesame", "blog": "mellon"})
    async with connect(house.url, additional_headers={"Authorization": "Bearer mellon"}):
        await house.inside.wait()
    assert house.tenants == ["blog"]


async def test_a_browser_sends_its_key_as_a_subprotocol_that_is_not_echoed(make_house: MakeHouse) -> None:
    house = await make_house(keys={"shop": "sesame"})
    offered = [Subprotocol("responses"), Subprotocol("openai-insecure-api-key.sesame")]
    async with connect(house.url, subprotocols=offered) as client:
        assert client.subprotocol == "responses"
        assert client.response is not None
        assert "sesame" not in str(client.response.headers)


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer ", "Basic sesame", "Bearer sésame"])
async def test_a_missing_or_wrong_key_is_401(make_house: MakeHouse, authorization: str | None) -> None:
    house = await make_house(keys={"shop": "sesame"})
    head = "GET /v1/responses HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: websocket"
    head += f"\nAuthorization: {authorization}"
    status, headers, body = await house.http(head)
    assert (status, json.loads(body)["error"]["code"]) == (401, "authentication_failed")
    assert headers["www-authenticate"] == "Bearer"
    assert b"wrong" not in body.replace(b"missing or wrong", b"")


async def test_origins_are_the_servers_own_listed_or_absent(make_house: MakeHouse) -> None:
    house = await make_house(origins=("https://shop.example",))
    own = Origin(f"http://127.0.0.1:{house.server.port}")
    for allowed in (None, own, Origin("https://shop.example")):
        async with connect(house.url, origin=allowed):
            pass
    for foreign in ("https://evil.example", "null", f"http://127.0.0.1:{house.server.port + 1}"):
        status, error = await refusal(house, origin=Origin(foreign))
        assert (status, error["code"]) == (403, "origin_not_allowed")


async def test_a_foreign_name_for_loopback_is_not_the_servers_own(make_house: MakeHouse) -> None:
    house = await make_house()
    head = "GET /v1/responses HTTP/1.1\nHost: evil.example\nOrigin: http://evil.example\nConnection: Upgrade"
    status, _, body = await house.http(head)
    assert (status, json.loads(body)["error"]["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize(
    ("origin", "host"),
    [("http://[::", "x"), ("http://a]b", "a]b"), ("http://[x", "[x"), ("http://\u2100x", "\u2100x"), ("http://[", "[")],
)
async def test_an_origin_or_host_that_is_no_address_is_not_the_servers_own(
    make_house: MakeHouse, origin: str, host: str
) -> None:
    house = await make_house()
    head = f"GET /v1/responses HTTP/1.1\nHost: {host}\nOrigin: {origin}\nConnection: Upgrade\nUpgrade: websocket"
    status, _, body = await house.http(head)
    assert (status, json.loads(body)["error"]["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("limit", ["connections", "connections_per_address"])
async def test_too_many_sockets_are_refused_until_one_leaves(make_house: MakeHouse, limit: str) -> None:
    house = await make_house(**{limit: 1})
    async with connect(house.url):
        status, error = await refusal(house)
        assert (status, error["code"]) == (429, "websocket_connection_limit_reached")
        assert error["retry_after_ms"] > 0
    await house.left.wait()
    async with connect(house.url):
        pass


async def test_draining_refuses_new_sockets_and_keeps_the_open_one(make_house: MakeHouse) -> None:
    house = await make_house()
    async with connect(house.url) as client:
        house.server.stop_accepting()
        status, error = await refusal(house)
        assert (status, error["code"]) == (503, "shutting_down")
        assert (await house.get("/readyz"))[0] == 503
        await (await client.ping())


async def test_a_faulty_handshake_is_explained_in_json(make_house: MakeHouse) -> None:
    house = await make_house()
    head = "GET /v1/responses HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13"
    status, _, body = await house.http(head)
    assert status == 400
    assert "Sec-WebSocket-Key" in json.loads(body)["error"]["message"]


async def test_a_taken_port_is_an_os_error(make_house: MakeHouse) -> None:
    house = await make_house()
    with pytest.raises(OSError, match="in use"):
        await Server(ServerSettings(port=house.server.port), house.health, Metrics(), Flood()).start()


# --- plain HTTP ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/chat.js", "text/javascript"), ("/chat.css", "text/css"), ("/favicon.svg", "image/svg+xml")],
)
async def test_the_page_is_served_with_its_policy(make_house: MakeHouse, path: str, kind: str) -> None:
    house = await make_house(keys={"shop": "sesame"})
    status, headers, body = await house.get(path)
    assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
    assert body
    assert headers["content-length"] == str(len(body))
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    status, _, body = await house.get(path, If_None_Match=headers["etag"])
    assert (status, body) == (304, b"")


@pytest.mark.parametrize("path", ["/nothing", "/__init__.py", "/../pyproject.toml", "/v1/nothing", "/index.html/"])
async def test_what_is_not_there_is_404(make_house: MakeHouse, path: str) -> None:
    status, headers, body = await (await make_house()).get(path)
    assert (status, headers["content-type"]) == (404, "application/json")
    message = json.loads(body)["error"]["message"]
    for way in ("/,", "/v1/models", "/v1/responses", "/metrics", "/healthz", "/readyz"):
        assert way in message


async def test_head_is_get_without_the_body(make_house: MakeHouse) -> None:
    house = await make_house()
    _, _, page = await house.get("/")
    status, headers, body = await house.http("HEAD / HTTP/1.1\nHost: x")
    assert (status, body, headers["content-length"]) == (200, b"", str(len(page)))
    assert (await house.http("HEAD /nothing HTTP/1.1\nHost: x"))[0] == 404


async def test_a_post_is_told_of_the_websocket_whatever_its_body(make_house: MakeHouse) -> None:
    house = await make_house()
    head = "POST /v1/responses HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 300000"
    status, headers, body = await house.http(head, b"x" * 300_000)
    assert (status, headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert "WebSocket at /v1/responses" in json.loads(body)["error"]["message"]
    assert (await house.http("DELETE / HTTP/1.1\nHost: x"))[0] == 405


async def test_a_get_of_the_websocket_without_an_upgrade_is_told_so(make_house: MakeHouse) -> None:
    status, headers, body = await (await make_house()).get("/v1/responses")
    assert (status, headers["upgrade"]) == (426, "websocket")
    assert "WebSocket" in json.loads(body)["error"]["message"]


async def test_a_request_in_small_pieces_is_read_whole(make_house: MakeHouse) -> None:
    house = await make_house()
    reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port)
    for byte in b"POST /v1/responses HTTP/1.1\r\nHost: x\r\n\r\n":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 405 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        ("Content-Length: 5", b"abcde"),
        ("Content-Length: 70000", b"x" * 70_000),
        ("Transfer-Encoding: chunked", b"5\r\nabcde\r\n0\r\n\r\n"),
        ("X: y", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
async def test_what_follows_a_request_does_not_matter(
    make_house: MakeHouse, method: str, framing: str, body: bytes, at_once: bool
) -> None:
    house = await make_house()
    request = f"{method} /healthz HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode() + body
    pieces = [request] if at_once else [bytes([byte]) for byte in request[:80]] + [request[80:]]
    status = {"GET": 200, "HEAD": 200, "OPTIONS": 204, "POST": 405}[method]
    assert (await house.raw(*pieces)).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET / HTTP/3\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400),
        (b"GET /v1/responses HTTP/1.1\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nabcde", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\r\n" + bytes(100), 400),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"A" * 100_000, 414),
        (b"POST /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n", 431),
    ],
)
async def test_a_request_that_cannot_be_read_is_told_so_in_json(
    make_house: MakeHouse, request_: bytes, status: int
) -> None:
    top, _, body = (await (await make_house()).raw(request_)).partition(b"\r\n\r\n")
    assert top.startswith(f"HTTP/1.1 {status} ".encode())
    if status >= 400:
        assert b"Content-Type: application/json" in top
        assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize("said", [b"", b"GE", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_client_that_leaves_within_its_request_is_let_go(make_house: MakeHouse, said: bytes) -> None:
    answer = await (await make_house()).raw(said, ends=True)
    assert answer[:13] == (b"HTTP/1.1 400 " if said else b"")


async def test_ready_says_why_it_is_not(make_house: MakeHouse) -> None:
    house = await make_house()
    assert (await house.get("/readyz"))[0] == 200
    house.health.down("The worker is being started again.")
    status, _, body = await house.get("/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "The worker is being started again.")
    assert (await house.get("/healthz"))[0] == 200
    house.health.serving(MODEL)
    house.health.drain()
    status, _, body = await house.get("/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "The server is shutting down.")


async def test_metrics_are_served(make_house: MakeHouse) -> None:
    status, headers, body = await (await make_house()).get("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    assert b"rota_connections" in body


async def test_models_need_the_key_and_name_the_model(make_house: MakeHouse) -> None:
    house = await make_house(keys={"shop": "sesame"})
    assert (await house.get("/v1/models"))[0] == 401
    status, _, body = await house.get("/v1/models", Authorization="Bearer sesame")
    card = {"id": "m", "object": "model", "created": 1_732_900_000, "owned_by": "rota"}
    assert (status, json.loads(body)) == (200, {"object": "list", "data": [card]})
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{house.server.port}/v1", api_key="sesame")
    assert [model.id async for model in client.models.list()] == ["m"]
    await client.close()


async def test_a_server_that_loads_says_so_to_everyone(make_house: MakeHouse) -> None:
    house = await make_house()
    house.health.model = None
    house.health.down("The model is being loaded.")
    status, headers, body = await house.get("/v1/models")
    assert (status, json.loads(body)["error"]["code"]) == (503, "server_overloaded")
    assert "retry-after-ms" in headers
    status, error = await refusal(house)
    assert (status, error["message"]) == (503, "The model is being loaded. Try again in 1.0 s.")


async def test_a_listed_page_may_ask_for_the_models(make_house: MakeHouse) -> None:
    house = await make_house(origins=("https://shop.example",))
    head = "OPTIONS /v1/models HTTP/1.1\nHost: x\nOrigin: {}\nAccess-Control-Request-Method: GET"
    status, headers, _ = await house.http(head.format("https://shop.example"))
    assert (status, headers["access-control-allow-origin"]) == (204, "https://shop.example")
    assert headers["access-control-allow-headers"] == "Authorization"
    _, headers, _ = await house.http(head.format("https://evil.example"))
    assert "access-control-allow-origin" not in headers


# --- an open socket --------------------------------------------------------------------------------------------------


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
    """Sends without end and says when it is stuck: what a connection to a reader that reads nothing does."""

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

    async def stuck(self) -> None:
        """Until nothing more fits between here and the reader."""
        before = -1
        while self.sent != before:
            before = self.sent
            await asyncio.sleep(0.1)


_PING = b"\x89\xfd" + bytes(4) + b"x" * 125


def raw_client(house: House, buffer: int = 8192) -> Socket_:
    """A client that never reads after its upgrade, with a small buffer of its own."""
    client = create_connection(("127.0.0.1", house.server.port))
    client.setsockopt(SOL_SOCKET, SO_RCVBUF, buffer)
    client.sendall(
        b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return client


@pytest.mark.parametrize("way", ["reset", "end", "goodbye"])
async def test_a_reader_that_leaves_with_everything_unread_is_noticed_at_once(make_house: MakeHouse, way: str) -> None:
    flood = Flood()
    house = await make_house(flood)
    client = raw_client(house)
    try:
        async with asyncio.timeout(5):
            await flood.stuck()
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


async def test_a_client_that_pings_and_never_reads_is_let_go(make_house: MakeHouse) -> None:
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


# --- with a connection behind the door ------------------------------------------------------------------------------


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
        client.sendall(_masked(b'{"type": "response.create", "model": "m", "input": "x"}'))
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
        client.sendall(_masked(json.dumps({"type": "response.create", "stream_id": lane, "input": "x"}).encode()))
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


def _masked(payload: bytes) -> bytes:
    """A text frame from a client, under a mask of zeros."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0x80 | 126]) + struct.pack(">H", len(payload))
    return b"\x81" + size + bytes(4) + payload
