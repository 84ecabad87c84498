"""The executor's child process: how it is started, spoken to and killed.

Knows frames on a socket pair (4 bytes of little-endian length, then msgpack) and exit codes. Knows nothing of what the
messages mean, nor of the code that runs in the child beyond the module's name.
"""

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Protocol

import msgspec

from actors.signs_of_life import signs_of_life
from protocol.messages import FromWorker, LoadModel, Step, ToWorker

_LENGTH = struct.Struct("<I")
_LONGEST_FRAME = 64 * 2**20
"""Far above a step of 1024 rows with 20 alternatives each; text taken for a length is mostly far above this."""
_FILES = 16
"""More than it takes, for a moment, to start a child."""
_LEAVE_S = 2.0
"""How long a child may take to end after it has closed its end of the pair."""


class Child(Protocol):
    """A worker that can be started, spoken to and killed. `start` may be called again after `gone` was."""

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        """Begin a new worker. `deliver` gets its messages in order; then `gone`, once, with why it ended."""
        ...

    def send(self, step: Step) -> None:
        """Hand it a step. Ignored once it is gone."""
        ...

    def signs_of_life(self) -> object:
        """Two of these differ if it has done anything in between. None: that cannot be said."""
        ...

    def kill(self) -> None:
        """End it at once. `gone` follows."""
        ...

    def abandon(self) -> None:
        """End it at once, and say nothing more of it, not even that it is gone."""
        ...

    async def close(self) -> None:
        """End it, and return when it is gone."""
        ...


class WorkerProcess:
    """`python -m kernels.worker` on the other end of a socket pair.

    The child leaves when the pair closes, so it never outlives its parent.
    """

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-m", "kernels.worker")) -> None:
        self._command = command
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[str] | None = None
        self._to_be_killed = False
        self._abandoned = False

    @property
    def pid(self) -> int | None:
        """The child's process id while it lives."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        assert self._task is None or self._task.done(), "one worker at a time"
        self._to_be_killed = False
        self._process = self._writer = None
        self._task = asyncio.create_task(self._live(load, deliver), name="worker process")
        self._task.add_done_callback(lambda task: self._over(task, gone))

    def send(self, step: Step) -> None:
        self._write(step)

    def signs_of_life(self) -> object:
        return None if self.pid is None else signs_of_life(self.pid)

    def kill(self) -> None:
        self._to_be_killed = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def abandon(self) -> None:
        self._abandoned = True
        self.kill()

    async def close(self) -> None:
        self.kill()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _write(self, message: ToWorker) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        body = self._encoder.encode(message)
        self._writer.write(_LENGTH.pack(len(body)) + body)

    def _over(self, life: asyncio.Task[str], gone: Callable[[str], None]) -> None:
        """Whatever went wrong, `gone` is said: without it no other worker would ever be started."""
        if life.cancelled():
            return
        error = life.exception()
        if error is not None:
            self.kill()
        if not self._abandoned:
            gone(life.result() if error is None else f"the worker process could not be started: {error}")

    async def _live(self, load: LoadModel, deliver: Callable[[FromWorker], None]) -> str:
        """Why it ended. Raises whatever keeps it from being started, such as too many open files."""
        _look_for_room()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, str(theirs.fileno()), pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL
                )
            except BaseException:
                ours.close()
                raise
        if self._to_be_killed:
            self.kill()
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._write(load)
            why = await self._read(reader, deliver)
        except Exception as error:  # noqa: BLE001 nobody waits for this task: only `gone` is ever heard of
            why = f"the worker process could not be spoken to: {error}"
        if why is None:
            # Python closes its sockets before it has ended: a kill now would take the place of its exit code.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _LEAVE_S)
        # Whoever closed its end of the pair without ending cannot be spoken to any more.
        self.kill()
        code = await self._process.wait()
        await self._hang_up(ours)
        return why or _ending(code)

    async def _hang_up(self, ours: socket.socket) -> None:
        if self._writer is None:
            ours.close()
            return
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, deliver: Callable[[FromWorker], None]) -> str | None:
        """Deliver frames until the child closes its end. A reason when what it wrote cannot be understood."""
        while True:
            try:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > _LONGEST_FRAME:
                    return f"the worker process wrote something that is not a message: {length:,} bytes are announced"
                message = self._decoder.decode(await reader.readexactly(length))
                if not self._abandoned:
                    deliver(message)
            except (asyncio.IncompleteReadError, OSError):
                return None
            except msgspec.DecodeError as error:
                return f"the worker process wrote something that is not a message: {error}"


def _look_for_room() -> None:
    """Raises OSError when fewer files can be opened than it takes: uvloop loses some when it fails half-way."""
    with contextlib.ExitStack() as found:
        for _ in range(_FILES):
            found.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def _ending(code: int) -> str:
    if code < 0:
        return f"the worker process was killed by signal {-code}"
    return f"the worker process ended with exit code {code}"
