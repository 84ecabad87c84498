"""A person at a terminal for tests of `rota chat`: keys that are pressed, and what was written, to be waited for.

Knows prompt_toolkit's pipe input. Knows no server.
"""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from loadgen.chat import talk
from loadgen.chat_input import Terminal
from loadgen.chat_screen import PlainScreen, Screen
from loadgen.chat_socket import Session
from loadgen.chat_wire import Settings

PATIENCE_S = 30.0


class Written(io.StringIO):
    """A stream of which one can wait to hold a text."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def write(self, text: str) -> int:
        self._more.set()
        return super().write(text)

    async def shows(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.getvalue().count(text) < times:
                self._more.clear()
                await self._more.wait()


class Person:
    """Types, and reads the answers on `out` and the rest on `aside`."""

    def __init__(self, keys: PipeInput) -> None:
        self._keys = keys
        self.out, self.aside = Written(), Written()
        self.code: int | None = None

    def press(self, keys: str) -> None:
        self._keys.send_text(keys)

    def type(self, line: str) -> None:
        self.press(f"{line}\r")


@asynccontextmanager
async def talking(
    url: str,
    settings: Settings | None = None,
    *,
    history: History | None = None,
    screen: Screen | None = None,
    stop_patience_s: float = PATIENCE_S,
) -> AsyncIterator[Person]:
    """`rota chat`, until the block ends and the person leaves by Ctrl-D."""
    with create_pipe_input() as keys:
        person = Person(keys)
        shown = PlainScreen(person.out, person.aside) if screen is None else screen
        typed = Terminal(keys, DummyOutput(), history or InMemoryHistory())
        session = Session(url, None, stop_patience_s)
        running = asyncio.create_task(talk(session, settings or Settings("m"), typed, shown))
        try:
            yield person
            if not running.done():
                person.press("\x04")
            async with asyncio.timeout(PATIENCE_S):
                person.code = await running
        finally:
            running.cancel()
