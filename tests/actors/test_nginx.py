"""The README's nginx, run as it stands there, in front of a server: whatever it buffers or hides would show here."""

import asyncio
import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from actors.proxies import Proxies
from actors.socket import Socket, SocketGone
from tests.actors.certificates import client_context, make_certificate
from tests.actors.server_house import House, MakeHouse

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
NAME = "chat.example"
PAGE = Origin(f"https://{NAME}")

pytestmark = pytest.mark.skipif(
    NGINX is None, reason="there is no nginx here; on Debian: apt-get install nginx-light (make nginx)"
)


class Answering:
    """Says `first`, and each next thing when its client has answered the last: nothing may be held back on the way."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self, open_: Socket, _: str) -> None:
        word = "first"
        try:
            while True:
                await open_.send(word.encode())
                heard = await open_.recv()
                assert isinstance(heard, str)
                word = heard
        except SocketGone:
            self.gone.set()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def documented() -> str:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    [found] = re.findall(r"```nginx\n(.*?)```", readme, re.DOTALL)
    return str(found)


def configured(folder: Path, port: int, backend: int, certificate: Path, key: Path) -> str:
    """The README's, between the few lines that a whole configuration needs, with the addresses of this test."""
    server = documented()
    for theirs, ours in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/chat.example.pem", str(certificate)),
        ("/etc/ssl/chat.example.key", str(key)),
        ("http://127.0.0.1:8000", f"http://127.0.0.1:{backend}"),
    ):
        assert server.count(theirs) == 1, theirs
        server = server.replace(theirs, ours)
    paths = "".join(
        f"{what}_temp_path {folder}/{what};\n" for what in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}{server}\n}}\n"
    )


@contextlib.contextmanager
def running(folder: Path, configuration: str) -> Iterator[None]:
    assert NGINX is not None
    (folder / "nginx.conf").write_text(configuration)
    command = [NGINX, "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ})
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Proxied:
    """A server with nginx before it, and how a client gets there."""

    def __init__(self, house: House, answering: Answering, port: int, trusting: ssl.SSLContext) -> None:
        self.house = house
        self.answering = answering
        self.port = port
        self.trusting = trusting

    def connect(self, origin: Origin | None = None, **headers: str) -> connect:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return connect(
            f"wss://{NAME}/v1/responses",
            host="127.0.0.1",
            port=self.port,
            ssl=self.trusting,
            server_hostname=NAME,
            # Of this machine, and no trusted proxy's.
            local_addr=("127.0.0.2", 0),
            origin=origin,
            additional_headers=said,
        )

    async def up(self) -> None:
        """nginx listens a moment after it has been started."""
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(OSError):
                    (_, writer) = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def proxied(make_house: MakeHouse, tmp_path: Path) -> AsyncIterator[Proxied]:
    answering = Answering()
    house = await make_house(answering, proxies=Proxies(["127.0.0.1"]), connections_per_address=2)
    certificate, key = make_certificate(tmp_path)
    port = free_port()
    with running(tmp_path, configured(tmp_path, port, house.server.port, certificate, key)):
        found = Proxied(house, answering, port, client_context(certificate))
        await found.up()
        yield found


async def say_after(client: ClientConnection, word: str) -> str:
    await client.send(word)
    return str(await asyncio.wait_for(client.recv(), 10))


async def test_every_word_comes_before_the_next_is_written(proxied: Proxied) -> None:
    async with proxied.connect(PAGE) as client:
        assert await asyncio.wait_for(client.recv(), 10) == "first"
        for number in range(200):
            assert await say_after(client, f"word {number}") == f"word {number}"


async def test_strangers_do_not_see_the_load(proxied: Proxied) -> None:
    async def status(path: str) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", proxied.port, ssl=proxied.trusting, server_hostname=NAME
        )
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
        said = await reader.read()
        writer.close()
        return said.split(b" ", 2)[1]

    assert [await status(path) for path in ("/healthz", "/metrics")] == [b"200", b"404"]


async def test_a_client_that_leaves_is_seen_to_leave(proxied: Proxied) -> None:
    async with proxied.connect(PAGE) as client:
        await client.recv()
        client.transport.abort()
        await asyncio.wait_for(proxied.answering.gone.wait(), 10)


async def test_pages_of_the_proxy_s_name_come_in_and_no_others(proxied: Proxied) -> None:
    for origin in (f"http://{NAME}", "https://evil.example", f"https://{NAME}:8443", "null"):
        with pytest.raises(InvalidStatus) as refused:
            await proxied.connect(Origin(origin))
        assert refused.value.response.status_code == 403
    async with proxied.connect(None), proxied.connect(PAGE):
        pass


async def test_what_a_visitor_makes_up_is_not_believed(proxied: Proxied) -> None:
    """Each claims another address; all have one, which may have two sockets here."""
    async with proxied.connect(PAGE, X_Forwarded_For="1.2.3.4"), proxied.connect(PAGE, Forwarded="for=1.2.3.5"):
        with pytest.raises(InvalidStatus) as refused:
            await proxied.connect(PAGE, X_Forwarded_For="1.2.3.6, 127.0.0.1", X_Forwarded_Proto="http")
        assert refused.value.response.status_code == 429


async def test_a_page_comes_through_whole(proxied: Proxied) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", proxied.port, ssl=proxied.trusting, server_hostname=NAME
    )
    writer.write(f"GET /rota-chat.js HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    _, _, direct = await proxied.house.get("/rota-chat.js")
    assert answer.startswith(b"HTTP/1.1 200")
    assert direct in answer
