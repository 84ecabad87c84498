"""A worker that loads: how long it may take, what counts as getting on, and what follows when it does not."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.executor import NOTHING
from actors.worker_process import WorkerProcess
from protocol.messages import (
    ModelFound,
    ModelReady,
    ModelRefused,
    WorkerGone,
    WorkerLost,
)
from tests.actors.executor_bench import Bench, done
from tests.actors.recorders import model_ready
from tests.actors.taken_files import all_files_taken_but


def kills_of_a_loader(bench: Bench) -> int:
    """Until long after the time to load is over; checked on the way that it is let have that time."""
    before = bench.child.kills
    bench.sweep(20.0)
    assert bench.child.kills == before
    with capture_logs() as logs:
        bench.sweep(0.1)
        for _ in range(10):
            bench.sweep(20.0)
    assert [entry["event"] for entry in logs] == ["worker.hung"] * (bench.child.kills - before)
    return bench.child.kills - before


async def test_a_later_worker_that_does_not_become_ready_is_killed_once_and_started_again() -> None:
    bench = Bench()
    await bench.worker_says(ModelFound("tiny", "/folder"), model_ready())
    await bench.worker_ends()
    bench.sweep(1.0)
    assert kills_of_a_loader(bench) == 1
    await bench.worker_ends("it was killed by signal 9")
    bench.sweep(1.0)
    assert len(bench.child.starts) == 3
    assert kills_of_a_loader(bench) == 1, "its time counts from its own start"


async def test_a_first_worker_may_fetch_its_model_for_ever_but_not_load_it_for_ever() -> None:
    bench = Bench()
    for _ in range(10):
        bench.sweep(1000.0)
    assert bench.child.kills == 0
    await bench.worker_says(ModelFound("tiny", "/folder"))
    assert kills_of_a_loader(bench) == 1


async def test_a_first_worker_may_fetch_its_model_for_ever_but_not_stand_still() -> None:
    bench = Bench()
    for done_so_far in range(10):
        bench.child.signs = done_so_far
        bench.sweep(1000.0)
    assert bench.child.kills == 0
    assert kills_of_a_loader(bench) == 1
    await bench.worker_ends("it was killed by signal 9")
    why = "the worker process had no model yet, did nothing for 20 s and was killed"
    assert [lost.message for lost in bench.engine.of(WorkerLost)] == [why]
    bench.sweep(1.0)
    assert len(bench.child.starts) == 2
    assert kills_of_a_loader(bench) == 1, "its time counts from its own start"


async def test_a_worker_that_is_no_more_to_find_a_model_may_stand_still() -> None:
    for said in (ModelRefused("There is no such model."), model_ready()):
        bench = Bench()
        bench.child.signs = 0
        await bench.worker_says(said)
        for _ in range(10):
            bench.sweep(1000.0)
            await bench.worker_says(done(NOTHING.step))
        assert bench.child.kills == 0


async def test_a_second_worker_of_which_the_first_never_was_ready_may_fetch_as_well() -> None:
    bench = Bench()
    await bench.worker_says(ModelFound("tiny", "/folder"))
    await bench.worker_ends()
    bench.sweep(1.0)
    assert len(bench.child.starts) == 2
    assert kills_of_a_loader(bench) == 0


async def test_a_worker_that_is_ready_or_gone_is_not_loading() -> None:
    bench = Bench()
    await bench.worker_says(ModelFound("tiny", "/folder"), model_ready())
    bench.sweep(1000.0)
    await bench.worker_ends()
    bench.sweep(1.0)
    bench.clock.pass_(19.9)
    await bench.worker_ends()
    bench.sweep(0.2)
    assert len(bench.child.starts) == 2, "the third is not due yet"
    bench.sweep(1.0)
    assert len(bench.child.starts) == 3
    bench.sweep(19.9)
    assert bench.child.kills == 0


LOADER = """
import os, pathlib, signal, socket, struct, sys

import msgspec

from protocol.messages import ModelFound
from tests.actors.recorders import model_ready

stopped_before, stops, pair = pathlib.Path(sys.argv[1]), sys.argv[2], socket.socket(fileno=int(sys.argv[3]))

def send(message):
    body = msgspec.msgpack.encode(message)
    pair.sendall(struct.pack("<I", len(body)) + body)

def stop(where):
    if where == stops and not stopped_before.exists():
        stopped_before.touch()
        os.kill(os.getpid(), signal.SIGSTOP)

stop("before it has found its model")
send(ModelFound("tiny", str(os.getpid())))
stop("while it loads")
send(model_ready())
while pair.recv(4096):
    pass
"""


def loader(folder: Path, stops: str = "never") -> WorkerProcess:
    """One that stops once, there."""
    return WorkerProcess((sys.executable, "-c", LOADER, str(folder / "stopped"), stops))


@pytest.mark.parametrize("stops", ["before it has found its model", "while it loads"])
async def test_a_real_loader_that_is_stopped_is_killed_and_the_next_one_serves(tmp_path: Path, stops: str) -> None:
    bench = Bench(worker := loader(tmp_path, stops))
    try:
        async with asyncio.timeout(60):
            while (pid := worker.pid) is None:  # noqa: ASYNC110  the moment meant has no event
                await asyncio.sleep(0)
            if stops == "while it loads":
                await bench.hear(ModelFound)
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
            bench.sweep()
            bench.sweep(20.1)
            gone = await bench.hear(WorkerGone)
            assert gone == WorkerGone(1, "the worker process was killed by signal 9")
            bench.sweep(1.0)
            await bench.hear(ModelReady)
    finally:
        await worker.close()
    heard = [type(message) for message in bench.engine.heard]
    assert heard[-3:] == [WorkerLost, ModelFound, ModelReady]


FETCHER = """
import subprocess, sys

WORK = '''
import sys, time

with open(sys.argv[1], "w") as told:
    while True:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        told.write(".")
        told.flush()
'''
subprocess.run([sys.executable, "-c", WORK, sys.argv[1]], stderr=subprocess.DEVNULL)
"""
"""One that waits for a child of its own, which works until nobody listens to it."""


async def test_a_real_worker_whose_own_child_fetches_is_not_killed_however_long_it_takes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    bench = Bench(worker := WorkerProcess((sys.executable, "-c", FETCHER, str(tmp_path / "told"))))
    try:
        async with asyncio.timeout(60):
            told = await asyncio.to_thread(open, tmp_path / "told", "rb", buffering=0)
            with told, capture_logs() as logs:
                for _ in range(5):
                    # What comes second was surely done after the last look.
                    for _ in range(2):
                        assert await asyncio.to_thread(told.read, 2**16)
                    bench.sweep(20.1)
    finally:
        await worker.close()
    assert logs == []


async def test_a_worker_lost_while_no_file_can_be_opened_is_started_again_when_one_can(tmp_path: Path) -> None:
    bench = Bench(loader(tmp_path))
    try:
        async with asyncio.timeout(60):
            found = await bench.hear(ModelFound)
            assert isinstance(found, ModelFound)
            await bench.hear(ModelReady)
            with all_files_taken_but(0):
                os.kill(int(found.folder), signal.SIGKILL)
                await bench.hear(WorkerGone)
                for worker in (2, 3):
                    bench.sweep(2.0)
                    why = "the worker process could not be started: [Errno 24] Too many open files: '/dev/null'"
                    assert await bench.hear(WorkerGone) == WorkerGone(worker, why)
            bench.sweep(2.0)
            await bench.hear(ModelReady)
    finally:
        await bench.worker.close()
