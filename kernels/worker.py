"""`python -m kernels.worker FD`: the process that holds the device, the weights and the KV tensors.

A plain loop on an inherited socket: LoadModel in; ModelFound and then ModelReady or ModelRefused out; then one
StepDone or StepFailed for each Step, in their order, until the other end closes. A frame is its length (4 bytes,
little-endian) and that many bytes of MessagePack, one message of `ToWorker` or `FromWorker`. Knows no request and keeps
nothing between steps but the cache and what the last one chose; what goes wrong in a step, other than that there is no
memory for it, ends the process, and the parent starts another.
"""

import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from functools import partial

import msgspec

from kernels import ModelError
from kernels.default_model import die_with_parent
from protocol.messages import (
    FromWorker,
    LoadModel,
    ModelFound,
    ModelRefused,
    Step,
    StepDone,
    StepFailed,
    ToWorker,
)

LENGTH = struct.Struct("<I")
REFUSED_STATUS = 3
"""Exit status after ModelRefused, so that a log tells it from a crash."""


class Pipe:
    """The worker's end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = msgspec.msgpack.Decoder(ToWorker)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self) -> LoadModel | Step | None:
        """The next message; None when the other end has closed."""
        head = self._exactly(LENGTH.size)
        body = head and self._exactly(LENGTH.unpack(head)[0])
        return self._decoder.decode(body) if body else None

    def send(self, message: FromWorker) -> None:
        body = self._encoder.encode(message)
        self._sock.sendall(LENGTH.pack(len(body)) + body)

    def _exactly(self, size: int) -> bytearray | None:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            try:
                count = self._sock.recv_into(view)
            except ConnectionError:
                return None
            if count == 0:
                return None
            view = view[count:]
        return found


def serve(pipe: Pipe) -> int:
    """The whole life of a worker. Returns its exit status."""
    load = pipe.receive()
    if load is None:
        return 0
    if not isinstance(load, LoadModel):
        raise TypeError(f"the first message is a LoadModel, not a {type(load).__name__}")
    try:
        run = _ready(pipe, load)
    except ModelError as error:
        pipe.send(ModelRefused(str(error)))
        return REFUSED_STATUS

    def next_step() -> Step | None:
        message = pipe.receive()
        if isinstance(message, LoadModel):
            raise TypeError("a worker that has loaded takes Steps, not another LoadModel")
        return message

    run(next_step, pipe.send)
    return 0


Run = Callable[[Callable[[], Step | None], Callable[[StepDone | StepFailed], None]], None]
"""Takes steps from the first until it gives None, and tells the second how each has ended."""


def _ready(pipe: Pipe, load: LoadModel) -> Run:
    """Find, load and measure the model, telling the parent each time. Returns what runs its steps."""
    from kernels import checkpoint

    files = checkpoint.resolve(load.model)
    pipe.send(ModelFound(files.name, str(files.folder)))

    if load.kernels == "none":
        from kernels import nothing

        ready, made_up = nothing.load(files, load)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pipe.send(ready)
        return made_up.serve

    # Only now: importing torch and transformers takes seconds, in which the parent can load the tokeniser.
    from kernels import serving, turns

    loaded = serving.load(files, load)
    # Service managers signal every process of a group, as a terminal does. Running answers are to end first, and
    # nothing half-made is left to take out of the cache: from here on the parent says when to leave.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send(loaded.ready)
    return partial(turns.overlapped if loaded.runner.runs_beside else turns.one_by_one, loaded.runner)


def main() -> None:
    die_with_parent()
    # A Ctrl-C at the terminal, or its end, reaches every process of the group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A polite end still unwinds, so that a half-made model is taken out of the cache.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Whatever a library prints belongs to the log, not to the parent's standard output.
    os.dup2(2, 1)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if "OMP_WAIT_POLICY" not in os.environ:
        # GNU's OpenMP lets a thread that waits for the others spin for milliseconds. As soon as anything else wants a
        # core (our own event loop does), a step of 16 rows then takes three times as long: measured on two cores.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.setblocking(True)
    try:
        status = serve(Pipe(sock))
    except BrokenPipeError:  # the parent has gone while we were answering it
        status = 0
    except Exception:  # noqa: BLE001  told, and then out at once: a device that has failed may hang whoever cleans up
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    # Tearing torch down takes a good part of a second and frees nothing the system does not free at once.
    os._exit(status)


if __name__ == "__main__":
    main()
