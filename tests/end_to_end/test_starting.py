"""What keeps rota from serving is said in one sentence, with exit code 2; until it serves, it says that it does not."""

import socket
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.end_to_end.server import run_to_its_end, serving, start, until


def sentence(outcome: tuple[int, str, str]) -> str:
    """The one sentence that a person is told; log lines and progress may stand before it."""
    code, _, errors = outcome
    assert code == 2, errors
    assert "Traceback" not in errors
    assert "engine.ready" not in errors
    last = errors.rstrip().splitlines()[-1]
    assert last.startswith("rota: "), errors
    assert last.endswith(".")
    return last


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = sentence(run_to_its_end(tmp_path, port=port))
    assert str(port) in said
    assert "in use" in said


def test_an_unknown_model_is_named_with_what_would_do(tmp_path: Path) -> None:
    said = sentence(run_to_its_end(tmp_path, "--model", "nonesuch"))
    assert "'nonesuch'" in said
    assert "a folder" in said


def test_too_little_memory_is_refused_with_the_arithmetic(tmp_path: Path, legible_folder: Path) -> None:
    said = sentence(run_to_its_end(tmp_path, "--model", str(legible_folder), "--kv-memory", "1MiB"))
    for number in ("8,192", "256 blocks of 32", "have 1 MiB"):
        assert number in said


def test_no_network_and_nothing_cached_is_said_plainly(tmp_path: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = sentence(run_to_its_end(tmp_path / "server", environment=nowhere))
    assert "could not be fetched" in said
    assert "network" in said
    assert not [left for left in (tmp_path / "cache").rglob("*") if left.is_dir() and left.name.startswith(".")]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--kv-memory", "lots"), "'lots'"),
        (("--max-running", "0"), "max-running"),
        (("--host", "0.0.0.0"), "0.0.0.0"),
    ],
    ids=["size", "number", "open to everyone"],
)
def test_a_setting_that_cannot_be_is_named(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    assert named in sentence(run_to_its_end(tmp_path, *arguments))


async def test_before_it_is_ready_it_is_alive_says_so_and_lets_nobody_in(tmp_path: Path, legible_folder: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = start(tmp_path, "--model", str(legible_folder), port=port)
    try:

        async def answers() -> int | None:
            try:
                return (await server.get("/healthz"))[0]
            except OSError:
                return None

        assert await until(answers) == 200
        status, body = await server.get("/readyz")
        assert status == 503
        assert b"being loaded" in body
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url, proxy=None)
        assert refused.value.response.status_code == 503
        assert b"being loaded" in bytes(refused.value.response.body)
        assert (await server.get("/v1/models"))[0] == 503
        server.terminate()
        assert await server.exit_code() == 0
        assert "Traceback" not in server.errors
    finally:
        server.kill()


def test_the_memory_and_where_to_go_are_printed_for_people(tmp_path: Path, legible_folder: Path) -> None:
    with serving(tmp_path, "--model", str(legible_folder), "--log-format", "auto") as server:
        for words in ("weights", "KV cache", "working", f"http://127.0.0.1:{server.port}/", server.url):
            assert words in server.output
