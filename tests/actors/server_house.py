"""A server over real sockets, with nothing behind its door but what a test puts there; and clients made of bytes."""

import asyncio
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from socket import SO_RCVBUF, SOL_SOCKET, create_connection
from socket import socket as Socket_
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from actors.health import Health
from actors.keys import Keys
from actors.metrics import Metrics
from actors.server import Server, ServerSettings
from actors.socket import Socket, SocketGone
from protocol.messages import (
    ModelReady,
)

MODEL = ModelReady("m", "/m", "cpu", "float32", 16, 64, 1024, 100, (2,), 1, 1, 1, 0.1)


class House:
    """A server with nothing behind it but what a test puts there."""

    def __init__(
        self,
        open_connection: Callable[[Socket, str], Awaitable[None]] | None = None,
        open_watcher: Callable[[Socket, str], Awaitable[None]] | None = None,
        *,
        keys: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """`keys`: in clear, by name."""
        self.health = Health(1_732_900_000.0)
        self.health.serving(MODEL)
        self.tenants: list[str] = []
        self.codes: list[int] = []
        self.left = asyncio.Event()
        self.inside = asyncio.Event()
        self.server = Server(
            ServerSettings(port=0, keys=Keys.in_clear(keys or {}), **{"close_timeout_s": 0.5, **settings}),
            self.health,
            Metrics(),
            open_connection or self._read_until_gone,
            open_watcher or self._read_until_gone,
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


async def refusal(house: House, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refused:
        await connect(house.url, **options)
    response = refused.value.response
    assert response.headers["Content-Type"] == "application/json"
    error = json.loads(response.body)["error"]
    assert {"type", "code", "message", "param"} <= error.keys()
    return response.status_code, error


def raw_client(house: House, buffer: int = 8192) -> Socket_:
    """A client that never reads after its upgrade, with a small buffer of its own."""
    client = create_connection(("127.0.0.1", house.server.port))
    client.setsockopt(SOL_SOCKET, SO_RCVBUF, buffer)
    client.sendall(
        b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return client


def masked(payload: bytes) -> bytes:
    """A text frame from a client, under a mask of zeros."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else bytes([0x80 | 126]) + struct.pack(">H", len(payload))
    return b"\x81" + size + bytes(4) + payload
