"""One worker at a time: its messages passed on, its hangs and its end noticed, and another started after a delay."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.actor import Mailbox
from actors.executor import Executor, ExecutorInbox
from actors.metrics import Metrics
from actors.worker_process import Child, WorkerProcess
from protocol.messages import (
    FromWorker,
    LoadModel,
    ModelFound,
    ModelReady,
    ModelRefused,
    Step,
    StepDone,
    Sweep,
    WorkerGone,
    WorkerLost,
)
from tests.actors.recorders import HandClock, Recorder, model_ready


class ScriptedChild:
    """A worker that says what the test says, and keeps what it is told."""

    def __init__(self) -> None:
        self.starts: list[tuple[LoadModel, Callable[[FromWorker], None], Callable[[str], None]]] = []
        self.steps: list[Step] = []
        self.kills = 0

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        self.starts.append((load, deliver, gone))

    def send(self, step: Step) -> None:
        self.steps.append(step)

    def kill(self) -> None:
        self.kills += 1

    def abandon(self) -> None:
        raise AssertionError("the engine abandons a worker, not the executor")

    async def close(self) -> None:
        raise AssertionError("the engine closes a worker, not the executor")


class Bench:
    """An executor that has started its first worker."""

    def __init__(self, worker: Child | None = None) -> None:
        self.clock = HandClock()
        self.child = ScriptedChild()
        self.worker = self.child if worker is None else worker
        self.scheduler, self.engine = Recorder(), Recorder()
        self.metrics = Metrics()
        self.mailbox: Mailbox[ExecutorInbox] = Mailbox(self.clock, 8)
        self.actor = Executor(
            self.mailbox,
            child=self.worker,
            load=LoadModel("tiny"),
            scheduler=self.scheduler.address,
            engine=self.engine.address,
            metrics=self.metrics,
            clock=self.clock,
            hang_s=10.0,
            load_s=20.0,
            first_delay_s=0.5,
            longest_delay_s=3.0,
        )
        self.actor.start()

    def say(self, *messages: ExecutorInbox) -> None:
        for message in messages:
            self.actor.handle(message)

    async def worker_says(self, *messages: FromWorker, worker: int = -1) -> None:
        for message in messages:
            self.child.starts[worker][1](message)
        await self.handle_waiting()

    async def worker_ends(self, why: str = "it ended", worker: int = -1) -> None:
        self.child.starts[worker][2](why)
        await self.handle_waiting()

    async def handle_waiting(self) -> None:
        while any(lane.depth for lane in self.mailbox.statistics().values()):
            self.say(await self.mailbox.take())

    def sweep(self, after_s: float = 0.0) -> None:
        self.say(Sweep(self.clock.pass_(after_s)))


def done(number: int) -> StepDone:
    return StepDone(number, (), 0.01)


async def test_a_worker_is_given_its_model_first_and_its_news_go_to_whom_they_concern() -> None:
    bench = Bench()
    assert bench.child.starts[0][0] == LoadModel("tiny")
    await bench.worker_says(ModelFound("tiny", "/folder"), model_ready())
    assert bench.engine.heard == [ModelFound("tiny", "/folder"), model_ready()]
    assert bench.scheduler.heard == [model_ready()]


async def test_steps_go_to_the_worker_and_their_results_to_the_scheduler() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()), Step(2, ()))
    assert bench.child.steps == [Step(1, ()), Step(2, ())]
    await bench.worker_says(done(1))
    assert bench.scheduler.of(StepDone) == [done(1)]


async def test_a_step_for_a_worker_that_is_not_ready_is_dropped() -> None:
    bench = Bench()
    bench.say(Step(1, ()))
    await bench.worker_says(model_ready())
    await bench.worker_ends()
    bench.say(Step(2, ()))
    assert bench.child.steps == []
    bench.sweep(100.0)
    assert bench.child.kills == 0, "and it is not waited for"


async def test_a_result_nobody_waits_for_is_not_passed_on() -> None:
    bench = Bench()
    await bench.worker_says(model_ready(), done(7))
    assert bench.scheduler.of(StepDone) == []


async def test_everyone_is_told_of_a_lost_worker_and_another_starts_after_a_delay() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    with capture_logs() as logs:
        await bench.worker_ends("it was killed by signal 9")
    lost = WorkerLost("it was killed by signal 9", 100.0)
    assert bench.scheduler.heard[-1] == lost
    assert bench.engine.heard[-1] == lost
    assert [(entry["event"], entry["why"]) for entry in logs] == [("worker.lost", "it was killed by signal 9")]
    bench.sweep(0.4)
    assert len(bench.child.starts) == 1
    bench.sweep(0.2)
    assert len(bench.child.starts) == 2
    bench.sweep(5.0)
    assert len(bench.child.starts) == 2, "once"
    assert "rota_worker_restarts_total 1.0" in bench.metrics.exposition().decode()


async def test_what_an_earlier_worker_still_says_is_not_heard() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    await bench.worker_ends()
    bench.sweep(1.0)
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()))
    heard = len(bench.scheduler.heard)
    await bench.worker_says(done(1), model_ready(), worker=0)
    await bench.worker_ends("once more", worker=0)
    assert len(bench.scheduler.heard) == heard
    await bench.worker_says(done(1))
    assert bench.scheduler.heard[-1] == done(1)


async def test_the_delay_doubles_up_to_a_bound_and_a_finished_step_resets_it() -> None:
    bench = Bench()

    async def delay_until_the_next_start() -> float:
        before, since = len(bench.child.starts), bench.clock()
        await bench.worker_ends()
        while len(bench.child.starts) == before:
            bench.sweep(0.25)
        return bench.clock() - since

    assert [await delay_until_the_next_start() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    await bench.worker_says(model_ready())
    assert await delay_until_the_next_start() == 3.0, "to be ready is not yet progress"
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()))
    await bench.worker_says(done(1))
    assert await delay_until_the_next_start() == 0.5


async def test_a_worker_that_makes_no_progress_is_killed() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.sweep(1000.0)
    assert bench.child.kills == 0, "without a step it has nothing to do"
    bench.say(Step(1, ()))
    bench.sweep(10.0)
    assert bench.child.kills == 0
    with capture_logs() as logs:
        bench.sweep(0.1)
    assert bench.child.kills == 1
    assert logs[0]["event"] == "worker.hung"
    await bench.worker_ends("killed")
    bench.sweep(0.25)
    assert bench.child.kills == 1


async def test_a_steps_time_counts_from_when_it_could_begin() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()), Step(2, ()))
    bench.clock.pass_(9.0)
    await bench.worker_says(done(1))
    bench.sweep(9.0)
    assert bench.child.kills == 0
    bench.sweep(1.5)
    assert bench.child.kills == 1


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

pair, stopped_before = socket.socket(fileno=int(sys.argv[2])), pathlib.Path(sys.argv[1])

def send(message):
    body = msgspec.msgpack.encode(message)
    pair.sendall(struct.pack("<I", len(body)) + body)

send(ModelFound("tiny", str(os.getpid())))
if not stopped_before.exists():
    stopped_before.touch()
    os.kill(os.getpid(), signal.SIGSTOP)
send(model_ready())
while pair.recv(4096):
    pass
"""


async def test_a_real_loader_that_is_stopped_is_killed_and_the_next_one_serves(tmp_path: Path) -> None:
    bench = Bench(WorkerProcess((sys.executable, "-c", LOADER, str(tmp_path / "stopped"))))

    async def hear(kind: type[ExecutorInbox]) -> ExecutorInbox:
        while True:
            bench.say(message := await bench.mailbox.take())
            if isinstance(message, kind):
                return message

    try:
        async with asyncio.timeout(60):
            found = await hear(ModelFound)
            assert isinstance(found, ModelFound)
            await asyncio.to_thread(os.waitid, os.P_PID, int(found.folder), os.WSTOPPED | os.WNOWAIT)
            bench.sweep(20.1)
            gone = await hear(WorkerGone)
            assert gone == WorkerGone(1, "the worker process was killed by signal 9")
            bench.sweep(1.0)
            await hear(ModelReady)
    finally:
        await bench.worker.close()
    assert [type(message) for message in bench.engine.heard] == [ModelFound, WorkerLost, ModelFound, ModelReady]


async def test_a_first_worker_that_refuses_its_model_is_the_end_and_is_not_started_again() -> None:
    bench = Bench()
    await bench.worker_says(ModelRefused("There is no such model."))
    await bench.worker_ends("it ended with exit code 3")
    assert bench.engine.heard == [ModelRefused("There is no such model.")]
    bench.sweep(1000.0)
    assert len(bench.child.starts) == 1


async def test_a_later_worker_that_refuses_is_tried_again() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    await bench.worker_ends()
    bench.sweep(1.0)
    with capture_logs() as logs:
        await bench.worker_says(ModelRefused("Too little memory is free."))
    assert [(entry["event"], entry["why"]) for entry in logs] == [("worker.refused", "Too little memory is free.")]
    assert bench.engine.of(ModelRefused) == []
    await bench.worker_ends("it ended with exit code 3")
    bench.sweep(10.0)
    assert len(bench.child.starts) == 3
    await bench.worker_says(model_ready())
    assert len(bench.engine.of(ModelReady)) == 2


async def test_a_first_worker_that_ends_without_a_word_is_started_again() -> None:
    bench = Bench()
    await bench.worker_ends()
    bench.sweep(1.0)
    assert len(bench.child.starts) == 2


@pytest.mark.parametrize("worker", [0, 2])
def test_the_end_of_another_worker_is_not_this_ones(worker: int) -> None:
    bench = Bench()
    bench.say(WorkerGone(worker, "it ended"))
    assert bench.scheduler.heard == []
