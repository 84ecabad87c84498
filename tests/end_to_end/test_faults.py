"""The worker dies, hangs, or finds no memory at any moment: who ran is told, who waited keeps its place, and all the
while `/healthz` and `/readyz` say what is true.

One server for all of them, on a device that takes time, two steps in flight: each test leaves it serving.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.end_to_end.client import Client, connected
from tests.end_to_end.fragile_worker import FAULTS
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server, start, until

HANG_S = 3.0
LATE_S = 8.0
"""How much longer than it must take a busy machine may take to notice: asking when idle, looking, being scheduled."""
ENDLESS = {"max_output_tokens": 8000, "ignore_eos": True}
SETTINGS = ("--dtype", "float32", "--max-running", "2", "--chunk-tokens", "16", "--hang-s", str(HANG_S))
MODULE = "tests.end_to_end.fragile_worker"


class Fragile(NamedTuple):
    server: Server
    faults: Path

    def will(self, fault: str) -> None:
        (self.faults / fault).touch()


@pytest.fixture(scope="module")
def fragile(legible_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragile]:
    folder = tmp_path_factory.mktemp("fragile")
    faults = folder / "faults"
    faults.mkdir()
    arguments = ("--model", str(legible_folder), *SETTINGS)
    server = start(folder, *arguments, environment={FAULTS: str(faults)}, module=MODULE)
    try:
        server.wait_until_ready()
        yield Fragile(server, faults)
        server.terminate()
        assert server.process.wait(30) == 0, server.errors
        assert not [line for line in server.log if line["event"].startswith("audit.") or line["level"] == "critical"]
    finally:
        server.kill()


def workers_of(server: Server) -> list[psutil.Process]:
    """One, or none between two."""

    def works(process: psutil.Process) -> bool:
        try:
            return MODULE in process.cmdline()
        except psutil.Error:  # it has just ended
            return False

    return [one for one in psutil.Process(server.process.pid).children() if works(one)]


def worker_of(server: Server) -> psutil.Process:
    [worker] = workers_of(server)
    return worker


def kill(fragile: Fragile) -> None:
    worker_of(fragile.server).kill()


def stop(fragile: Fragile) -> None:
    worker_of(fragile.server).suspend()


def raise_in_a_step(fragile: Fragile) -> None:
    fragile.will("raise")


Fault = Callable[[Fragile], None]
FAULTS_OF_A_WORKER = [(kill, "killed by signal 9"), (stop, "made no progress for"), (raise_in_a_step, "exit code 1")]


class Seen(NamedTuple):
    """One look at the server, which began and ended at these times."""

    began: float
    ended: float
    alive: int
    ready: int
    reason: str
    worker: int | None
    """Its process, if there was one both before and after the look."""


class Looks:
    """Asks again and again how the server is, for as long as the test goes on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.seen: list[Seen] = []

    async def look(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(0.02)

    async def once(self) -> None:
        before, began = self._worker(), time.monotonic()
        alive, _ = await self._server.get("/healthz")
        ready, body = await self._server.get("/readyz")
        reason = json.loads(body).get("reason", "")
        worker = before if before == self._worker() else None
        self.seen.append(Seen(began, time.monotonic(), alive, ready, reason, worker))

    def _worker(self) -> int | None:
        try:
            worker = worker_of(self._server)
            return worker.pid if worker.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else None
        except (ValueError, psutil.Error):
            return None

    async def comes_down_and_up_again(self, broken: float, old: int, cause: str, within_s: float) -> None:
        """`broken`: when. And it is never said to be one when it is the other."""

        async def down_and_up() -> bool:
            states = [seen.ready for seen in self.seen if seen.began > broken]
            return 503 in states and states[-1] == 200

        await until(down_and_up, within_s + 60, "worker again")
        since = [seen for seen in self.seen if seen.began > broken]
        assert {seen.alive for seen in self.seen} == {200}, "the server itself is alive all the time"
        states = [state for state, _ in groupby(seen.ready for seen in since)]
        assert states in ([503, 200], [200, 503, 200]), f"it was down once, and not {states}"
        down = [seen for seen in since if seen.ready == 503]
        assert down[0].began - broken < within_s, "it was noticed too late"
        assert all("being started again" in seen.reason and cause in seen.reason for seen in down), down[0].reason
        up = [seen for seen in since if seen.began > down[-1].began and seen.ready == 200]
        assert old not in {seen.worker for seen in down[1:] + up}, "the one that broke is still there"
        assert all(seen.worker is not None for seen in up), "ready without a worker"
        print(
            f"down {down[0].ended - broken:.2f} s after the fault, up again {up[0].ended - down[0].began:.2f} s later, "
            f"{len(since)} looks"
        )


@asynccontextmanager
async def looked_at(server: Server) -> AsyncIterator[Looks]:
    looks = Looks(server)
    task = asyncio.create_task(looks.look())
    try:
        await until(lambda: _ready(server), what="server that is ready")
        looks.seen.clear()
        yield looks
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _ready(server: Server) -> bool:
    return (await server.get("/readyz"))[0] == 200


async def is_served(client: Client, legible: Reference) -> None:
    answer = await client.ask("And now?", max_output_tokens=20)
    assert answer.text == legible.answer("And now?", 20).text


@pytest.mark.parametrize(("fault", "cause"), FAULTS_OF_A_WORKER, ids=lambda it: getattr(it, "__name__", ""))
async def test_whoever_ran_is_told_and_whoever_waited_is_answered(
    fragile: Fragile, legible: Reference, fault: Fault, cause: str
) -> None:
    server = fragile.server
    async with connected(server) as client, connected(server) as elsewhere, looked_at(server) as looks:
        decoding, prefilling, waiting = client.lane("decoding"), elsewhere, client.lane("waiting")
        await decoding.create("For ever.", **ENDLESS)
        await decoding.until("response.output_text.delta", 3)
        await prefilling.create("x" * 8000, max_output_tokens=20)
        await prefilling.until("response.in_progress")
        await waiting.create("My turn?", max_output_tokens=20)
        await waiting.until("response.queued")
        old = worker_of(server).pid
        lost = len(server.logged("worker.lost"))
        broken = time.monotonic()
        fault(fragile)
        for lane in (decoding, prefilling):
            failed = await lane.answer()
            assert failed.terminal["type"] == "response.failed"
            assert failed.response["error"]["code"] == "server_error"
            assert failed.response["rota"]["error_code"] == "worker_failed"
            assert failed.response["rota"]["delivered_chars"] == len(failed.text)
            assert bool(failed.text) is (lane is decoding)
            assert (await server.finished(failed.id))["error_code"] == "worker_failed"
        print(f"told after {time.monotonic() - broken:.2f} s")
        await looks.comes_down_and_up_again(broken, old, cause, (HANG_S if fault is stop else 0) + LATE_S)
        answer = await waiting.answer()
        assert answer.text == legible.answer("My turn?", 20).text
        assert len(server.logged("worker.lost")) == lost + 1
        assert server.logged("worker.lost")[-1]["steps_in_flight"] >= 1
        await is_served(elsewhere, legible)
    await server.empty()


@pytest.mark.parametrize(("fault", "cause"), FAULTS_OF_A_WORKER[:2], ids=lambda it: getattr(it, "__name__", ""))
async def test_a_worker_that_breaks_while_nobody_asks_is_noticed_and_replaced(
    fragile: Fragile, legible: Reference, fault: Fault, cause: str
) -> None:
    """A hang too: it is asked now and then whether it is there."""
    server = fragile.server
    async with connected(server) as client, looked_at(server) as looks:
        await is_served(client, legible)
        broken, old = time.monotonic(), worker_of(server).pid
        fault(fragile)
        asked_s = HANG_S / 2 if fault is stop else 0.0
        await looks.comes_down_and_up_again(broken, old, cause, asked_s + (HANG_S if fault is stop else 0) + LATE_S)
        await is_served(client, legible)
    await server.empty()


async def test_workers_that_cannot_be_started_again_are_tried_again_and_whoever_waits_is_answered(
    fragile: Fragile, legible: Reference
) -> None:
    """The next one finds too little memory, the one after it runs out of memory, and a third is killed as it loads."""
    server = fragile.server
    async with connected(server) as client, looked_at(server) as looks:
        await is_served(client, legible)
        lost, refused = len(server.logged("worker.lost")), len(server.logged("worker.refused"))
        fragile.will("no memory")
        fragile.will("out of memory")
        broken, old = time.monotonic(), worker_of(server).pid
        worker_of(server).kill()

        async def is_down() -> bool:
            return not await _ready(server)

        async def third_one_loads() -> bool:
            return len(server.logged("worker.lost")) == lost + 2 and len(workers_of(server)) == 1

        await until(is_down)
        await client.create("Am I waiting?", max_output_tokens=20)
        await until(third_one_loads, what="third worker")
        worker_of(server).kill()
        await looks.comes_down_and_up_again(broken, old, "", LATE_S)
        assert (await client.answer()).text == legible.answer("Am I waiting?", 20).text
        assert len(server.logged("worker.refused")) == refused + 1
        delays = [line["next_start_s"] for line in server.logged("worker.lost")[lost:]]
        assert delays == [0.5, 1.0, 2.0, 4.0], "each start waits longer than the one before"
    await server.empty()


@pytest.mark.parametrize("fault", [kill, stop], ids=lambda it: it.__name__)
async def test_a_worker_that_breaks_while_the_server_leaves_keeps_nobody(
    legible_folder: Path, tmp_path: Path, fault: Fault
) -> None:
    arguments = ("--model", str(legible_folder), *SETTINGS, "--grace-s", "60")
    server = start(tmp_path, *arguments, environment={FAULTS: str(tmp_path)}, module=MODULE)
    try:
        server.wait_until_ready()
        async with connected(server) as client:
            await client.create("For ever.", **ENDLESS)
            await client.until("response.output_text.delta", 3)
            os.kill(server.process.pid, signal.SIGTERM)

            async def drains() -> bool:
                return b"shutting down" in (await server.get("/readyz"))[1]

            await until(drains)
            fault(Fragile(server, tmp_path))
            failed = await client.answer()
            assert failed.response["rota"]["error_code"] == "worker_failed"
            assert failed.response["rota"]["delivered_chars"] == len(failed.text) > 0
            assert await client.closed() == 1001
            assert await server.exit_code() == 0
        assert "Traceback" not in server.errors
    finally:
        server.kill()
