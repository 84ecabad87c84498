"""Who comes in at the server's door, over real sockets."""

import json

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from actors.metrics import Metrics
from actors.server import Server, ServerSettings
from actors.socket import Socket
from tests.actors.server_house import MakeHouse, refusal


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


async def test_who_runs_the_server_is_told_why_a_page_is_kept_out_but_not_each_time(make_house: MakeHouse) -> None:
    house = await make_house(keys={"anna": "sesame"})
    with capture_logs() as said:
        for _ in range(3):
            with pytest.raises(InvalidStatus):
                await connect(house.url, origin=Origin("https://shop.example"))
            with pytest.raises(InvalidStatus):
                await connect(house.url, additional_headers={"Authorization": "Bearer wr0ng-key"})
    refused = [line for line in said if line["event"] == "door.refused"]
    assert [line["code"] for line in refused] == ["origin_not_allowed", "authentication_failed"]
    assert "https://shop.example" in refused[0]["why"]
    assert "--origins" in refused[0]["why"]
    assert "--trusted-proxies" in refused[0]["why"]
    assert {line["address"] for line in refused} == {"127.0.0.1"}
    assert "wr0ng" not in str(said)


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

    async def nobody(_: Socket, __: str) -> None:
        raise AssertionError("it is open")

    with pytest.raises(OSError, match="in use"):
        await Server(ServerSettings(port=house.server.port), house.health, Metrics(), nobody, nobody).start()
