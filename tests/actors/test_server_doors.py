"""What a server does about pages of other sites, proxies, TLS and crowds, over real sockets."""

import asyncio
import contextlib
import json
import socket
import ssl
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.typing import Origin

from actors.proxies import Proxies
from actors.socket import Socket, SocketGone
from actors.tls import tls_context
from tests.actors.certificates import client_context, make_certificate
from tests.actors.server_house import House, MakeHouse, refusal

UPGRADE = "Connection: Upgrade\nUpgrade: websocket"
LOCAL_PROXY = Proxies(["127.0.0.1"])


async def code_of(house: House, host: str, origin: str | None, *headers: str, path: str = "/v1/responses") -> str:
    """The error that a handshake gets before its last header is missed; "" when nothing else is wrong with it."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", UPGRADE, "Sec-WebSocket-Version: 13", *headers]
    if origin is not None:
        lines.append(f"Origin: {origin}")
    status, _, body = await house.http("\n".join(lines))
    error = json.loads(body)["error"]
    if status == 400 and "Sec-WebSocket-Key" in error["message"]:
        return ""
    return str(error["code"])


# --- pages of other sites ---


async def test_a_page_of_another_site_is_refused_with_a_key_and_without(make_house: MakeHouse) -> None:
    house = await make_house(keys={"shop": "sesame"})
    host = f"127.0.0.1:{house.server.port}"
    for origin in (
        "https://evil.example",
        "null",
        "",
        f"https://{host}",
        "http://127.0.0.1:1",
        f"http://{host}.evil.example",
    ):
        expected = "" if origin == "" else "origin_not_allowed"
        for path in ("/v1/responses", "/v1/turns"):
            found = await code_of(house, host, origin, "Authorization: Bearer sesame", path=path)
            assert found == expected, f"{origin} at {path}"
        if origin:
            assert await code_of(house, host, origin) == "origin_not_allowed", "it learns nothing about keys"


async def test_cookies_open_nothing(make_house: MakeHouse) -> None:
    house = await make_house(keys={"shop": "sesame"})
    host = f"127.0.0.1:{house.server.port}"
    cookies = ("Cookie: key=sesame; Authorization=Bearer sesame",)
    assert await code_of(house, host, None, *cookies) == "authentication_failed"
    assert await code_of(house, host, f"http://{host}", *cookies) == "authentication_failed"


async def test_the_own_page_comes_in_in_any_case_and_spelling_of_its_host(make_house: MakeHouse) -> None:
    house = await make_house()
    port = house.server.port
    for host, origin in (
        (f"localhost:{port}", f"http://LOCALHOST:{port}"),
        (f"LocalHost:{port}", f"http://localhost:{port}"),
        (f"[::1]:{port}", f"http://[::1]:{port}"),
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("127.0.0.1:80", "http://127.0.0.1"),
    ):
        assert await code_of(house, host, origin) == "", f"{origin} at {host}"
    assert await code_of(house, f"[::1]:{port}", f"http://[::2]:{port}") == "origin_not_allowed"


async def test_two_origins_are_none(make_house: MakeHouse) -> None:
    house = await make_house()
    host = f"127.0.0.1:{house.server.port}"
    assert await code_of(house, host, f"http://{host}", "Origin: https://evil.example") == "origin_not_allowed"


# --- proxies ---


async def test_a_trusted_proxy_is_believed_about_scheme_and_visitor(make_house: MakeHouse) -> None:
    house = await make_house(proxies=LOCAL_PROXY)
    forwarded = ("X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https")
    assert await code_of(house, "chat.example", "https://chat.example", *forwarded) == ""
    assert await code_of(house, "chat.example", "http://chat.example", *forwarded) == "origin_not_allowed"
    assert await code_of(house, "chat.example", "https://evil.example", *forwarded) == "origin_not_allowed"


async def test_nobody_else_is(make_house: MakeHouse) -> None:
    house = await make_house(proxies=Proxies(["10.0.0.0/8"]))
    forwarded = ("X-Forwarded-For: 10.0.0.1", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil.example")
    assert await code_of(house, "chat.example", "https://chat.example", *forwarded) == "origin_not_allowed"
    host = f"127.0.0.1:{house.server.port}"
    assert await code_of(house, host, "http://evil.example", *forwarded) == "origin_not_allowed"


async def test_sockets_are_counted_by_the_address_behind_the_proxy(make_house: MakeHouse) -> None:
    house = await make_house(proxies=LOCAL_PROXY, connections_per_address=1)

    def behind(address: str) -> dict[str, Any]:
        return {"additional_headers": {"X-Forwarded-For": address}}

    async with connect(house.url, **behind("203.0.113.9")), connect(house.url, **behind("203.0.113.10")):
        for same in ("203.0.113.9", "1.2.3.4, 203.0.113.9"):
            status, error = await refusal(house, **behind(same))
            assert (status, error["code"]) == (429, "websocket_connection_limit_reached")
    async with connect(house.url, **behind("2001:db8::1")):
        assert (await refusal(house, **behind("2001:db8::2")))[0] == 429, "a network of one visitor"


async def test_without_trust_all_count_as_the_proxy(make_house: MakeHouse) -> None:
    house = await make_house(connections_per_address=1)
    async with connect(house.url, additional_headers={"X-Forwarded-For": "203.0.113.9"}):
        status, _ = await refusal(house, additional_headers={"X-Forwarded-For": "203.0.113.10"})
        assert status == 429


async def test_unless_it_is_set_an_address_may_have_256_and_this_machine_any_number(make_house: MakeHouse) -> None:
    house = await make_house(proxies=LOCAL_PROXY)
    crowd = house.server._crowd
    for _ in range(256):
        crowd.enter("203.0.113.9")
        crowd.enter("127.0.0.1")
    status, error = await refusal(house, additional_headers={"X-Forwarded-For": "203.0.113.9"})
    assert status == 429
    assert "256 connections from your address are open" in error["message"]
    async with connect(house.url):
        pass


# --- those who do not say what they want ---


async def test_who_says_nothing_is_let_go_after_the_handshake_s_time(make_house: MakeHouse) -> None:
    house = await make_house(open_timeout_s=0.05)
    for said in (b"", b"GET /v1/resp", b"GET /v1/responses HTTP/1.1\r\nHost: x\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port)
        writer.write(said)
        assert b"101" not in await asyncio.wait_for(reader.read(), 10)
        writer.close()


async def test_more_who_say_nothing_than_may_are_closed_at_once_and_whoever_is_in_stays(make_house: MakeHouse) -> None:
    house = await make_house(handshakes=3, open_timeout_s=60.0)
    async with connect(house.url) as client:
        silent = [await asyncio.open_connection("127.0.0.1", house.server.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await (await client.ping())
        crowd, seen_to_go = house.server._crowd, asyncio.Event()
        knocked = crowd.knocked
        crowd.knocked = lambda peer: (knocked(peer), seen_to_go.set())[0]  # type: ignore[method-assign,func-returns-value]
        silent.pop()[1].close()
        await asyncio.wait_for(seen_to_go.wait(), 10)
        async with connect(house.url):
            pass
        for _, writer in silent:
            writer.close()


# --- TLS ---


async def test_under_tls_sockets_pages_and_models_are_answered(make_house: MakeHouse, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)

    async def echo(socket: Socket, _: str) -> None:
        try:
            while True:
                heard = await socket.recv()
                assert isinstance(heard, str)
                await socket.send(heard.encode())
        except SocketGone:
            pass

    house = await make_house(echo, tls=tls_context(certificate, key), keys={"shop": "sesame"})
    trusting = client_context(certificate)
    address = f"127.0.0.1:{house.server.port}"
    page, key_header = Origin(f"https://{address}"), {"Authorization": "Bearer sesame"}
    url = f"wss://{address}/v1/responses"
    async with connect(url, ssl=trusting, origin=page, additional_headers=key_header) as client:
        for text in ("short", "x" * 200_000):
            await client.send(text)
            assert await client.recv() == text
    reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port, ssl=trusting)
    writer.write(f"GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def test_under_tls_a_page_that_came_without_it_is_another_site(make_house: MakeHouse, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    house = await make_house(tls=tls_context(certificate, key))
    address = f"127.0.0.1:{house.server.port}"
    reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port, ssl=client_context(certificate))
    head = f"GET /v1/responses HTTP/1.1\nHost: {address}\nOrigin: http://{address}\n{UPGRADE}\n\n"
    writer.write(head.replace("\n", "\r\n").encode())
    assert b"origin_not_allowed" in await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_whoever_speaks_no_tls_or_an_old_one_is_not_answered(make_house: MakeHouse, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    house = await make_house(tls=tls_context(certificate, key))
    reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        assert b"200 OK" not in await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert tls_context(certificate, key).minimum_version is ssl.TLSVersion.TLSv1_2


async def test_whoever_comes_while_the_loop_is_busy_waits_to_be_accepted_and_need_not_try_again(
    make_house: MakeHouse,
) -> None:
    """The system would try again for them only after a second, then after two more."""
    house = await make_house()
    with contextlib.ExitStack() as stack:
        for _ in range(600):  # nothing is accepted meanwhile: this holds the loop
            address = ("127.0.0.1", house.server.port)
            stack.enter_context(contextlib.closing(socket.create_connection(address, timeout=0.9)))
    assert (await house.get("/healthz"))[0] == 200
