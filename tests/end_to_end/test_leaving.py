"""How the server leaves, and how it carries on when its worker is killed."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.end_to_end.client import connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server, serving, until

ENDLESS = {"max_output_tokens": 8000, "ignore_eos": True}


async def test_sigterm_lets_answers_end_interrupts_the_rest_and_exits_with_0(own: Start, legible_folder: Path) -> None:
    """To the whole process group, as a service manager sends it: the worker must not leave before its parent."""
    server = own("--model", str(legible_folder), "--dtype", "float32", "--grace-s", "2.5")
    async with connected(server) as client, connected(server) as idle:
        short, endless = client.lane("short"), client.lane("endless")
        await endless.create("For ever.", **ENDLESS)
        await endless.until("response.output_text.delta")
        await short.create("Not long.", max_output_tokens=60, ignore_eos=True)
        await short.until("response.output_text.delta")
        told = time.monotonic()
        os.killpg(server.process.pid, signal.SIGTERM)

        async def refuses() -> bool:
            status, _ = await server.get("/readyz")
            return status == 503

        await until(refuses)
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url, proxy=None)
        assert refused.value.response.status_code == 503
        assert b"shutting_down" in bytes(refused.value.response.body)
        assert (await idle.ask("One more?")).error["code"] == "shutting_down"

        ended = await short.answer()
        assert (ended.reason, ended.usage["output_tokens"]) == ("length", 60)
        interrupted = await endless.answer()
        interrupted_s = time.monotonic() - told
        assert interrupted.terminal["type"] == "response.failed"
        assert interrupted.response["rota"]["error_code"] == "shutting_down"
        assert interrupted.text
        assert await client.closed() == 1001
        assert await idle.closed() == 1001
        assert await server.exit_code() == 0
        print(f"interrupted {interrupted_s:.2f} s after SIGTERM, gone after {time.monotonic() - told:.2f} s")
    assert "Traceback" not in server.errors
    for answer, code in ((ended, None), (interrupted, "shutting_down")):
        assert len(server.logged("request.finished", request=answer.id, error_code=code)) == 1


async def test_a_server_whose_terminal_is_closed_lets_answers_end_and_exits_with_0(
    tmp_path: Path, legible_folder: Path
) -> None:
    """However often it is told so: the system says it to the whole process group, and a shell may as well."""
    server, master = started_in_a_terminal(tmp_path, "--model", str(legible_folder), "--dtype", "float32")
    try:
        said = b""
        async with asyncio.timeout(60):
            while (ready := re.search(rb"ws://127\.0\.0\.1:(\d+)/v1/responses", said)) is None:
                said += await asyncio.to_thread(os.read, master, 4096)
        server.port, server.model = int(ready[1]), legible_folder.name
        async with connected(server) as client:
            await client.create("Not long.", max_output_tokens=300, ignore_eos=True)
            await client.until("response.output_text.delta")
            os.close(master)
            for _ in range(2):
                os.killpg(server.process.pid, signal.SIGHUP)
            ended = await client.answer()
            assert (ended.reason, ended.usage["output_tokens"]) == ("length", 300)
            assert await client.closed() == 1001
        assert await server.exit_code() == 0
    finally:
        server.kill()


def started_in_a_terminal(folder: Path, *arguments: str) -> tuple[Server, int]:
    """A server, and the other end of a terminal that is its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "actors.cli", "serve", "--port", "0", "--log-format", "json", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    return Server(process, folder, 0), master


def test_a_server_under_nohup_stays(tmp_path: Path, legible_folder: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serving(tmp_path / "server", "--model", str(legible_folder), "--kernels", "none") as server:
            os.killpg(server.process.pid, signal.SIGHUP)
            server.terminate()
            assert server.process.wait(20) == 0
            assert len(server.logged("engine.draining")) == 1, "the hang-up was not ignored"
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_killing_the_worker_fails_what_ran_keeps_what_waited_and_serves_again(
    own: Start, legible_folder: Path, legible: Reference
) -> None:
    arguments = ("--model", str(legible_folder), "--dtype", "float32", "--max-running", "2")
    server = own(*arguments)
    async with connected(server) as client, connected(server) as elsewhere:
        running = [client.lane("running"), elsewhere]
        for lane in running:
            await lane.create("For ever.", **ENDLESS)
            await lane.until("response.output_text.delta", 3)
        waiting = client.lane("waiting")
        await waiting.create("My turn?", max_output_tokens=20)
        await waiting.until("response.queued")
        old = server.worker
        began = time.monotonic()
        old.kill()
        for lane in running:
            failed = await lane.answer()
            assert failed.terminal["type"] == "response.failed"
            assert failed.response["status"] == "failed"
            assert failed.response["error"]["code"] == "server_error"
            assert failed.response["rota"]["error_code"] == "worker_failed"
            assert failed.response["rota"]["delivered_chars"] == len(failed.text) > 0
            assert (await server.finished(failed.id))["error_code"] == "worker_failed"
        told_s = time.monotonic() - began
        answer = await waiting.answer()
        assert answer.text == legible.answer("My turn?", 20).text
        print(f"told after {told_s * 1e3:.0f} ms, served again after {time.monotonic() - began:.1f} s")
        again = await elsewhere.ask("And mine?", max_output_tokens=20)
        assert again.text == legible.answer("And mine?", 20).text
        assert server.worker.pid != old.pid
    seen = await server.empty()
    assert seen.value("rota_worker_restarts_total") == 1
    assert (await server.get("/readyz"))[0] == 200


async def test_until_a_new_worker_is_there_readyz_says_why_not(own: Start, legible_folder: Path) -> None:
    server: Server = own("--model", str(legible_folder), "--dtype", "float32")
    server.worker.kill()

    async def down() -> bytes | None:
        status, body = await server.get("/readyz")
        return body if status == 503 else None

    assert b"started again" in await until(down)
    assert (await server.get("/healthz"))[0] == 200
    # And whoever stops it now need not wait for the model either.
    server.terminate()
    assert await server.exit_code() == 0
