"""A `rota serve` of our own, for as long as a block lasts.

Knows the command line, the line of the log that says it is ready, and how to end it: always, whatever happens in the
block. Knows nothing of what is asked of it.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from loadgen.child import end_group
from loadgen.client import Unreachable

START_S = 600.0
"""It may have to fetch and convert its model."""
COMMAND = (sys.executable, "-m", "actors.cli", "serve")

_LONGEST_LINE = 2**20
_LAST_LINES = 5


class OwnServer(msgspec.Struct, frozen=True):
    url: str
    model: str


class _Line(msgspec.Struct):
    """Of the log."""

    event: str = ""
    url: str = ""
    model: str = ""


@asynccontextmanager
async def own_server(arguments: Sequence[str], command: Sequence[str] = ()) -> AsyncIterator[OwnServer]:
    """Start it on a free port of loopback and wait until it is ready; end it with the block.

    Raises `Unreachable` with what it said itself when it ends before, or takes longer than `START_S`.
    """
    process = await asyncio.create_subprocess_exec(
        *(command or COMMAND),
        *("--host", "127.0.0.1", "--port", "0", "--log-format", "json", "--grace-s", "0"),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
        start_new_session=True,  # a Ctrl-C is for us: we end it
    )
    said: deque[str] = deque(maxlen=_LAST_LINES)
    ready: asyncio.Future[OwnServer | None] = asyncio.get_running_loop().create_future()
    listening = asyncio.create_task(_listen(process, said, ready))
    try:
        try:
            async with asyncio.timeout(START_S):
                server = await ready
        except TimeoutError:
            raise Unreachable(f"rota serve was not ready after {START_S:.0f} s.") from None
        if server is None:
            raise Unreachable(_last_words(said, await process.wait()))
        yield server
    finally:
        await end_group(process)
        await listening


async def _listen(
    process: asyncio.subprocess.Process, said: deque[str], ready: asyncio.Future[OwnServer | None]
) -> None:
    """Read what it says until it ends: a full pipe would stop it."""
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:  # a line beyond the limit: nothing that we wait for
            continue
        if not line:
            break
        text = line.decode(errors="replace").strip()
        try:
            logged = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError:
            said.append(text)
            continue
        if logged.event == "engine.ready" and not ready.done():
            ready.set_result(OwnServer(logged.url, logged.model))
    if not ready.done():
        ready.set_result(None)


def _last_words(said: Sequence[str], code: int) -> str:
    """Its own sentence, if it ended with one."""
    for line in said:
        if line.startswith("rota: "):
            return f"rota serve: {line.removeprefix('rota: ')}"
    last = f": {said[-1]}" if said else ""
    return f"rota serve ended with code {code}{last}"
