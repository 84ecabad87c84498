"""A real child process at the other end of the pair: spoken to, misunderstood, ended and killed.

The children are small scripts that speak the framing themselves, so that nothing of ours checks itself.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from actors import worker_process
from actors.worker_process import WorkerProcess
from protocol.messages import Chunk, FromWorker, LoadModel, ModelFound, SampledToken, Step, StepDone
from tests.actors.taken_files import all_files_taken_but, open_files

FRAMING = """
import os, signal, socket, struct, sys, time
import msgspec

pair = socket.socket(fileno=int(sys.argv[1]))

def exactly(size):
    found = b""
    while len(found) < size:
        part = pair.recv(size - len(found))
        if not part:
            sys.exit(0)
        found += part
    return found

def receive():
    return msgspec.msgpack.decode(exactly(struct.unpack("<I", exactly(4))[0]))

def send(message):
    body = msgspec.msgpack.encode(message)
    pair.sendall(struct.pack("<I", len(body)) + body)

def hello():
    load = receive()
    assert load["type"] == "LoadModel", load
    send({"type": "ModelFound", "name": load["model"], "folder": str(os.getpid())})
"""

ECHO = """
hello()
while True:
    step = receive()
    assert step["type"] == "Step", step
    tokens = [[len(chunk[2])] for chunk in step["chunks"]]
    send({"type": "StepDone", "step": step["step"], "tokens": tokens, "took_s": 0.5})
"""

ROOT = Path(__file__).parents[2]


class Heard:
    """What the process delivered, and how it ended."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[FromWorker] = asyncio.Queue()
        self.endings: list[str] = []
        self.gone = asyncio.Event()

    def end(self, why: str) -> None:
        self.endings.append(why)
        self.gone.set()

    async def next(self) -> FromWorker:
        async with asyncio.timeout(20):
            return await self.messages.get()

    async def ending(self) -> str:
        async with asyncio.timeout(20):
            await self.gone.wait()
        assert len(self.endings) == 1, "gone is said once"
        return self.endings[0]


def child(script: str) -> WorkerProcess:
    return WorkerProcess((sys.executable, "-c", FRAMING + script))


def start(process: WorkerProcess) -> Heard:
    heard = Heard()
    process.start(LoadModel("tiny"), heard.messages.put_nowait, heard.end)
    return heard


@asynccontextmanager
async def running(script: str) -> AsyncIterator[tuple[WorkerProcess, Heard]]:
    process = child(script)
    heard = start(process)
    try:
        yield process, heard
    finally:
        async with asyncio.timeout(20):
            await process.close()


async def pid_of(heard: Heard) -> int:
    found = await heard.next()
    assert isinstance(found, ModelFound)
    return int(found.folder)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- messages ---


async def test_messages_make_the_round_trip_in_order() -> None:
    async with running(ECHO) as (process, heard):
        found = await heard.next()
        assert isinstance(found, ModelFound)
        assert found.name == "tiny", "the model it was to load came first"
        assert int(found.folder) == process.pid
        for number in range(20):
            process.send(Step(number, (Chunk("r", 0, bytes(number), b""),)))
        for number in range(20):
            assert await heard.next() == StepDone(number, (SampledToken(number),), 0.5)


async def test_a_message_far_larger_than_a_pipe_holds_arrives_whole() -> None:
    async with running(ECHO) as (process, heard):
        await heard.next()
        process.send(Step(1, (Chunk("r", 0, bytes(5_000_000), b""),)))
        assert await heard.next() == StepDone(1, (SampledToken(5_000_000),), 0.5)


NO_MESSAGE = "the worker process wrote something that is not a message"


@pytest.mark.parametrize(
    "garbage",
    [
        "pair.sendall(struct.pack('<I', 3) + b'abc')",
        "send({'type': 'Step', 'step': 1, 'chunks': []})",
        "send({'type': 'StepDone', 'step': 'one', 'tokens': [], 'took_s': 0.5})",
        "pair.sendall(b'Traceback (most recent call last):')",
    ],
)
async def test_what_is_not_a_message_ends_the_worker_with_a_reason(garbage: str) -> None:
    async with running(f"hello()\n{garbage}\nreceive()") as (process, heard):
        pid = await pid_of(heard)
        assert (await heard.ending()).startswith(NO_MESSAGE)
        assert not lives(pid)
        assert process.pid is None


# --- ends ---

LATE = "hello()\npair.close()\n"
"""As an interpreter that takes itself apart does: its end of the pair closes before it has ended."""


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("hello()\nos._exit(0)", "the worker process ended with exit code 0"),
        ("hello()\nos._exit(3)", "the worker process ended with exit code 3"),
        (LATE + "time.sleep(0.2)\nsys.exit(3)", "the worker process ended with exit code 3"),
        ("hello()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)", "the worker process was killed by signal 15"),
        ("hello()\nos.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)", "the worker process was killed by signal 9"),
        ("pair.sendall(b'ha')\nos._exit(4)", "the worker process ended with exit code 4"),
    ],
)
async def test_the_end_is_a_sentence_with_the_exit_code_or_the_signal(script: str, sentence: str) -> None:
    async with running(script) as (process, heard):
        assert await heard.ending() == sentence
        assert process.pid is None


async def test_one_that_hangs_up_and_stays_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_LEAVE_S", 0.01)
    async with running(LATE + "time.sleep(600)") as (_, heard):
        pid = await pid_of(heard)
        assert "killed by signal 9" in await heard.ending()
        assert not lives(pid)


async def test_every_message_comes_before_the_end() -> None:
    async with running(
        "hello()\nfor n in range(50): send({'type': 'StepDone', 'step': n, 'tokens': [], 'took_s': 0})\nos._exit(0)"
    ) as (_, heard):
        await heard.ending()
        assert heard.messages.qsize() == 51


async def test_a_kill_ends_it_at_once_and_a_step_sent_later_is_ignored() -> None:
    async with running(ECHO) as (process, heard):
        pid = await pid_of(heard)
        process.kill()
        assert await heard.ending() == "the worker process was killed by signal 9"
        assert not lives(pid)
        process.kill()
        process.send(Step(1, ()))
        assert process.pid is None


async def test_a_command_that_is_not_there_is_an_end_with_a_reason() -> None:
    process = WorkerProcess(("/nowhere/python",))
    heard = start(process)
    assert (await heard.ending()).startswith("the worker process could not be started: ")
    await process.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_one_for_which_too_few_files_are_left_is_gone_with_a_reason_and_loses_none(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def scenario() -> None:
        process, left = child(ECHO), 0
        # What a loop opens once, for all its children.
        await (await asyncio.create_subprocess_exec("true")).wait()
        before = open_files()
        while process.pid is None:
            assert left < 40, "however many files are left, it is not started"
            with all_files_taken_but(left):
                heard = start(process)
                first = asyncio.ensure_future(heard.next())
                ended = asyncio.ensure_future(heard.ending())
                await asyncio.wait((first, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                assert "could not be started: [Errno 24] Too many open files" in ended.result()
                first.cancel()
                assert open_files() == before, f"with {left} files left"
            left += 1
        assert left > 1
        assert isinstance(await first, ModelFound)
        await process.close()
        assert await ended == "the worker process was killed by signal 9"

    run(scenario())


async def test_what_cannot_be_said_to_the_child_ends_it_with_a_reason() -> None:
    process, heard = child(ECHO), Heard()
    process.start(LoadModel("tiny", kv_memory=2**64), heard.messages.put_nowait, heard.end)
    assert (await heard.ending()).startswith("the worker process could not be spoken to: ")
    assert process.pid is None
    await process.close()


async def test_a_message_that_cannot_be_taken_ends_the_child_with_a_reason() -> None:
    def refuse(message: FromWorker) -> None:
        raise ValueError("not now")

    process, heard = child(ECHO), Heard()
    process.start(LoadModel("tiny"), refuse, heard.end)
    assert await heard.ending() == "the worker process could not be spoken to: not now"
    await process.close()


async def test_another_can_be_started_when_the_first_is_gone() -> None:
    async with running(ECHO) as (process, heard):
        first = await pid_of(heard)
        with pytest.raises(AssertionError, match="one worker at a time"):
            start(process)
        process.kill()
        await heard.ending()
        again = start(process)
        assert await pid_of(again) != first
        process.send(Step(1, ()))
        assert await again.next() == StepDone(1, (), 0.5)


# --- leaving nothing behind ---


async def test_close_leaves_no_process() -> None:
    process = child(ECHO)
    heard = start(process)
    pid = await pid_of(heard)
    await process.close()
    assert not lives(pid)
    assert process.pid is None
    await process.close()


async def test_close_of_one_that_was_never_started_returns() -> None:
    await child(ECHO).close()


async def after_no_turn(process: WorkerProcess) -> None:
    pass


async def after_one_turn(process: WorkerProcess) -> None:
    await asyncio.sleep(0)


async def as_soon_as_it_has_a_pid(process: WorkerProcess) -> None:
    while process.pid is None:  # noqa: ASYNC110  the moment meant has no event
        await asyncio.sleep(0)


@pytest.mark.parametrize("when", [after_no_turn, after_one_turn, as_soon_as_it_has_a_pid])
@pytest.mark.parametrize("restarted", [False, True])
async def test_close_while_it_is_being_started_leaves_no_process(when: Callable[..., object], restarted: bool) -> None:
    process = child(ECHO)
    heard = start(process)
    if restarted:
        await heard.next()
        process.kill()
        await heard.ending()
        heard = start(process)
    coroutine = when(process)
    assert asyncio.iscoroutine(coroutine)
    await coroutine
    async with asyncio.timeout(20):
        await process.close()
    assert process.pid is None


async def test_an_abandoned_worker_is_heard_no_more_not_even_that_it_is_gone() -> None:
    process = child(ECHO)
    heard = start(process)
    pid = await pid_of(heard)
    process.send(Step(1, ()))
    process.abandon()
    await process.close()
    assert not lives(pid)
    assert heard.messages.empty()
    assert heard.endings == []


async def test_an_abandoned_worker_that_could_not_be_started_says_nothing() -> None:
    process = WorkerProcess(("/nowhere/python",))
    heard = start(process)
    process.abandon()
    await process.close()
    assert heard.endings == []


PARENT = """
import asyncio, os, signal, sys
from actors.worker_process import WorkerProcess
from protocol.messages import LoadModel

async def main():
    process = WorkerProcess((sys.executable, "-c", sys.argv[1]))
    found = asyncio.Event()
    process.start(LoadModel("tiny"), lambda message: found.set(), print)
    await found.wait()
    print("it runs", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_the_child_ends_when_its_parent_is_killed() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            parent = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PARENT, FRAMING + ECHO, stdout=theirs.fileno(), cwd=ROOT
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        async with asyncio.timeout(30):
            # Both hold the other end of this pair: it closes when both have ended.
            assert await reader.read() == b"it runs\n"
            assert await parent.wait() == -9
        writer.close()
        await writer.wait_closed()
