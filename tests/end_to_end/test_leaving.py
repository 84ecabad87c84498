"""How the server leaves, and how it carries on when its worker is killed."""

import os
import signal
import time
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.end_to_end.client import connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server, until

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
