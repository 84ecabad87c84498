"""Who cannot come in hears what to do about it: at a server with TLS, without it, and at what is no such server."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from loadgen.client import NotOpened, Unreachable, connected, first_model
from tests.actors.certificates import make_certificate


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Signed by itself; nobody trusts it yet."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return make_certificate(tmp_path)


@asynccontextmanager
async def serving(certificate: tuple[Path, Path] | None = None) -> AsyncIterator[int]:
    """A server with a list of models, under TLS if it has a certificate; its port."""
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)

    async def listen(connection: ServerConnection) -> None:
        await connection.wait_closed()

    def models(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(HTTPStatus.OK, '{"data": [{"id": "m"}]}') if request.path == "/v1/models" else None

    async with serve(listen, "127.0.0.1", 0, ssl=tls, process_request=models) as server:
        yield next(iter(server.sockets)).getsockname()[1]


@asynccontextmanager
async def saying(junk: bytes) -> AsyncIterator[int]:
    """A port at which everybody is told that and hung up on."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(junk)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def complaints(address: str) -> list[str]:
    """Of whoever asks for the models there, and of whoever opens a socket; none of who gets in."""
    said = []
    try:
        await asyncio.to_thread(first_model, f"{address}/v1/responses", None, 10.0)
    except Unreachable as why:
        said.append(str(why))
    try:
        await (await connected(f"{address}/v1/responses", None)).close()
    except NotOpened as why:
        said.append(str(why))
    return said


async def test_a_server_under_tls_that_is_asked_without_is_to_be_named_so(certificate: tuple[Path, Path]) -> None:
    async with serving(certificate) as port:
        said = await complaints(f"ws://127.0.0.1:{port}")
        assert len(said) == 2
        for complaint in said:
            assert complaint.endswith(f"If it serves under TLS, name it as wss://127.0.0.1:{port}.")


async def test_a_server_without_tls_that_is_asked_under_it_is_to_be_named_so() -> None:
    async with serving() as port:
        said = await complaints(f"wss://127.0.0.1:{port}")
        assert len(said) == 2
        for complaint in said:
            assert complaint.endswith(f"If it serves without TLS, name it as ws://127.0.0.1:{port}.")


async def test_a_certificate_that_signs_itself_is_trusted_by_a_variable_that_the_refusal_names(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(certificate) as port:
        refused = await complaints(f"wss://127.0.0.1:{port}")
        assert len(refused) == 2
        for complaint in refused:
            assert complaint.startswith(f"The certificate of wss://127.0.0.1:{port} is not trusted: self-signed cert")
            assert "put SSL_CERT_FILE=cert.pem before the command" in complaint
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert await complaints(f"wss://127.0.0.1:{port}") == []
        for complaint in await complaints(f"wss://localhost:{port}"):
            assert "certificate is not valid for 'localhost'." in complaint
            assert "SSL_CERT_FILE" not in complaint, "it is set, and no help"


@pytest.mark.parametrize("junk", [b"", b"hello\r\n", b"\x15\x03\x03\x00\x02\x02\x46"])
async def test_what_is_no_web_server_is_told_in_a_sentence(junk: bytes) -> None:
    async with saying(junk) as port:
        said = await complaints(f"ws://127.0.0.1:{port}")
    assert len(said) == 2
    assert all(f"127.0.0.1:{port}" in complaint and "\n" not in complaint for complaint in said)
