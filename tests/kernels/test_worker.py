import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pytest
import torch

from kernels.native.binding import Library
from protocol.messages import (
    Chunk,
    FromWorker,
    LoadModel,
    ModelFound,
    ModelReady,
    ModelRefused,
    Sampling,
    Step,
    StepDone,
    ToWorker,
)

ROOT = Path(__file__).parents[2]


class Child:
    """A worker in a process of its own, and our end of its socket."""

    def __init__(self, log: IO[str]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(120)
        self.socket = ours
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kernels.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self._file = ours.makefile("rb")

    def send(self, message: ToWorker) -> None:
        body = msgspec.msgpack.encode(message)
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def receive(self) -> FromWorker | None:
        head = self._file.read(4)
        if len(head) < 4:
            return None
        message: FromWorker = msgspec.msgpack.decode(self._file.read(struct.unpack("<I", head)[0]), type=FromWorker)
        return message

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def load(self, model: str, **wishes: Any) -> ModelReady:
        self.send(LoadModel(model, device="cpu", dtype="float32", kv_memory=2**22, **wishes))
        found, ready = self.receive(), self.receive()
        assert isinstance(found, ModelFound)
        assert isinstance(ready, ModelReady)
        assert (ready.name, ready.folder) == (found.name, found.folder)
        return ready


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"


@pytest.fixture
def child(log: Path) -> Iterator[Child]:
    with log.open("w") as file:
        one = Child(file)
        yield one
    one.close()
    one.process.kill()
    one.process.wait(20)


def prompt(tokens: list[int], blocks: list[int], sampling: Sampling | None = None) -> Chunk:
    return Chunk("r", 0, np.array(tokens, "<i4").tobytes(), np.array(blocks, "<i4").tobytes(), sampling)


def test_it_loads_runs_steps_and_ends_when_the_parent_is_gone(
    child: Child, log: Path, small_folder: Path, small_reference: Any
) -> None:
    ready = child.load(str(small_folder), kernels="torch")
    assert ready.kernels == "plain torch"
    assert ready.device == "cpu"
    assert ready.dtype == "float32"
    assert (ready.max_context, ready.vocabulary, ready.end_tokens) == (2048, 258, (257,))
    assert (ready.blocks, ready.kv_bytes) == (2**22 // 16384, 2**22)
    assert ready.working_bytes > 0
    assert 0 < ready.first_step_s < 5
    for meant_for_the_parent in (signal.SIGINT, signal.SIGHUP):
        child.process.send_signal(meant_for_the_parent)
    for number in range(1, 4):
        child.send(Step(number, (prompt([1, 2, number], [number], Sampling(logprobs=2)), prompt([4], [9]))))
        done = child.receive()
        assert isinstance(done, StepDone)
        assert (done.step, len(done.tokens)) == (number, 1)
        assert 0 < done.took_s < 5
        with torch.inference_mode():
            logits = small_reference(input_ids=torch.tensor([[1, 2, number]])).logits[0, -1]
        assert done.tokens[0].token == int(logits.argmax())
        assert len(done.tokens[0].top) == 2
    child.close()
    assert child.process.wait(20) == 0
    assert log.read_text() == ""


def test_it_refuses_in_a_sentence_and_ends(child: Child) -> None:
    child.send(LoadModel("no-such-model"))
    refused = child.receive()
    assert isinstance(refused, ModelRefused)
    assert refused.message.startswith("There is no model 'no-such-model'")
    assert child.receive() is None
    assert child.process.wait(20) == 3


def test_it_refuses_after_the_model_was_found(child: Child, small_folder: Path) -> None:
    child.send(LoadModel(str(small_folder), device="cpu", kv_memory=1000))
    assert isinstance(child.receive(), ModelFound)
    refused = child.receive()
    assert isinstance(refused, ModelRefused)
    assert "Not one request of the full context fits: 2,048 tokens" in refused.message


def test_on_our_own_kernels_it_runs_the_same_and_a_step_that_cannot_be_run_ends_it_with_a_traceback(
    child: Child, log: Path, small_folder: Path, small_reference: Any, cpu_kernels: Library
) -> None:
    assert child.load(str(small_folder), kernels="native").kernels.startswith("our CPU kernels on vectors")
    child.send(Step(1, (prompt([1, 2, 3], [7], Sampling()), prompt([4], [9]))))
    done = child.receive()
    assert isinstance(done, StepDone)
    with torch.inference_mode():
        logits = small_reference(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1]
    assert [it.token for it in done.tokens] == [int(logits.argmax())]
    assert log.read_text() == ""
    child.send(Step(2, (prompt([1] * 40, [0]),)))
    assert child.receive() is None
    assert child.process.wait(20) not in (0, 3)
    assert "ValueError: 1 blocks of 32 do not cover" in log.read_text()


def test_it_ends_at_once_when_nobody_loads_anything(child: Child) -> None:
    child.close()
    assert child.process.wait(20) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux'")
def test_it_dies_with_its_parent_even_when_the_socket_stays_open(small_folder: Path) -> None:
    ours, theirs = socket.socketpair()
    # A parent that starts a worker, says its process id and is then killed; we hold the other end all the while.
    code = (
        "import subprocess, sys, time\n"
        "fd = int(sys.argv[1])\n"
        "child = subprocess.Popen([sys.executable, '-m', 'kernels.worker', str(fd)], pass_fds=[fd])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with ours, theirs:
        parent = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with parent:
            assert parent.stdout is not None
            worker = int(parent.stdout.readline())
            body = msgspec.msgpack.encode(LoadModel(str(small_folder), device="cpu", dtype="float32"))
            ours.sendall(struct.pack("<I", len(body)) + body)
            ours.settimeout(120)
            assert ours.recv(4), "it has started"
            watch = os.pidfd_open(worker)
            parent.kill()
        import select

        assert select.select([watch], [], [], 20)[0], "the worker has ended"
        os.close(watch)
