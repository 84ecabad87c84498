"""What the server answers to plain HTTP, over real sockets: whatever comes, something that can be read."""

import asyncio
import gzip
import json

import pytest
from openai import AsyncOpenAI

from actors.http_answers import error_answer
from protocol.errors import (
    WireError,
    authentication_failed,
    server_overloaded,
    websocket_connection_limit_reached,
)
from tests.actors.server_house import MODEL, MakeHouse, refusal


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/turns", "text/html"),
        ("/embed", "text/html"),
        ("/rota-chat.js", "text/javascript"),
        ("/chat/element.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/favicon.svg", "image/svg+xml"),
    ],
)
async def test_the_page_is_served_with_its_policy(make_house: MakeHouse, path: str, kind: str) -> None:
    house = await make_house(keys={"shop": "sesame"})
    status, headers, body = await house.get(path)
    assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
    assert body
    assert headers["content-length"] == str(len(body))
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert not any("unsafe" in rule or "http" in rule for rule in policy)
    assert headers["x-content-type-options"] == "nosniff"
    status, _, body = await house.get(path, If_None_Match=headers["etag"])
    assert (status, body) == (304, b"")


async def test_a_page_is_sent_gzipped_to_whoever_takes_that(make_house: MakeHouse) -> None:
    house = await make_house()
    _, plain_headers, plain = await house.get("/chat/element.js")
    _, headers, body = await house.get("/chat/element.js", Accept_Encoding="br, gzip;q=0.8")
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(body) == plain
    assert headers["etag"] == plain_headers["etag"]
    for known in (plain_headers["etag"], plain_headers["etag"].removeprefix("W/"), '"other", ' + headers["etag"], "*"):
        assert (await house.get("/chat/element.js", If_None_Match=known))[0] == 304
    for other in ('"other"', 'W/""', plain_headers["etag"][3:-1]):
        assert (await house.get("/chat/element.js", If_None_Match=other))[0] == 200
    for refused in ("gzip;q=0", "gzip; q=0.0", "gzip;\tq=0", "gzip;q=0;x=1", "br", "identity"):
        _, headers, body = await house.get("/chat/element.js", Accept_Encoding=refused)
        assert body == plain
        assert "content-encoding" not in headers


@pytest.mark.parametrize("path", ["/nothing", "/__init__.py", "/../pyproject.toml", "/v1/nothing", "/index.html/"])
async def test_what_is_not_there_is_404(make_house: MakeHouse, path: str) -> None:
    status, headers, body = await (await make_house()).get(path)
    assert (status, headers["content-type"]) == (404, "application/json")
    message = json.loads(body)["error"]["message"]
    for way in ("/ ", "/embed", "/turns", "/v1/models", "/v1/responses", "/metrics", "/healthz", "/readyz"):
        assert way in message


async def test_head_is_get_without_the_body(make_house: MakeHouse) -> None:
    house = await make_house()
    _, _, page = await house.get("/")
    status, headers, body = await house.http("HEAD / HTTP/1.1\nHost: x")
    assert (status, body, headers["content-length"]) == (200, b"", str(len(page)))
    assert (await house.http("HEAD /nothing HTTP/1.1\nHost: x"))[0] == 404
    for path in ("/v1/responses", "/v1/turns"):
        assert (await house.http(f"HEAD {path} HTTP/1.1\nHost: x"))[0] == 426


async def test_a_post_is_told_of_the_websocket_whatever_its_body(make_house: MakeHouse) -> None:
    house = await make_house()
    head = "POST /v1/responses HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 300000"
    status, headers, body = await house.http(head, b"x" * 300_000)
    assert (status, headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert "WebSocket at /v1/responses" in json.loads(body)["error"]["message"]
    assert (await house.http("DELETE / HTTP/1.1\nHost: x"))[0] == 405
    for path in ("/", "/v1/responses"):
        status, _, body = await house.http(f"{'A' * 7_000} {path} HTTP/1.1\nHost: x")
        assert status == 405
        assert len(body) < 1_000, "what was sent is not sent back"


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
    assert (headers["retry-after-ms"], headers["retry-after"]) == ("1000", "1")
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


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (websocket_connection_limit_reached("Full", 1000.5), "2"),
        (server_overloaded("Full", 40.0), "1"),
        (authentication_failed(), None),
    ],
)
def test_who_may_come_again_is_told_when_in_the_standards_words_too(error: WireError, seconds: str | None) -> None:
    """In whole seconds, and never too soon."""
    assert error_answer(error).headers.get("Retry-After") == seconds
