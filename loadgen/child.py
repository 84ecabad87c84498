"""A process of our own, for as long as a block lasts, with whatever it started itself.

Knows process groups, and how to end one: always, whatever happens in the block. Knows nothing of what runs in it.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import IO

LEAVE_S = 15.0
"""How long it has to leave by itself."""
_LONGEST_LINE = 2**26
"""Bytes, of what it says on its standard output."""
_LAST_BYTES = 2**14


class Child:
    """It is spoken to through `process`; what it logs goes to a file, so that it never waits for a reader."""

    def __init__(self, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self.process = process
        self._log = log

    def last_words(self) -> str:
        """The last line that it logged, the latest sign of what went wrong; "" when it has said nothing."""
        self._log.flush()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LAST_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


@asynccontextmanager
async def child(command: Sequence[str], environment: Mapping[str, str], *, talks: bool = False) -> AsyncIterator[Child]:
    """Start it with these variables beside our own; end it, and all its group, with the block.

    With `talks`, its standard input and output are pipes; else its output is logged too. Raises `OSError` when it
    cannot be started.
    """
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE if talks else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if talks else log,
            stderr=log,
            env={**os.environ, **environment},
            limit=_LONGEST_LINE,
            start_new_session=True,  # a Ctrl-C is for us: we end it
        )
        try:
            yield Child(process, log)
        finally:
            await end_group(process)


async def end_group(process: asyncio.subprocess.Process) -> None:
    """Ask it to leave, then make it, and whatever is left of its group, which it leads.

    A cancel while it is leaving ends it at once, and is passed on.
    """
    try:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)  # `send_signal` may reap it behind the event loop's back
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
