"""Where the questions of `rota chat` come from: somebody who types, or lines from a pipe.

Knows keys, prompt_toolkit and the history file. Knows no socket and no answers. Neither way blocks the event loop, so
that pings are answered while somebody thinks.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output

from loadgen.chat_commands import COMMANDS, TIERS

PROMPT = "> "
_READ_AT_ONCE = 65_536


class Questions(Protocol):
    alone: bool
    """Nobody watches: that an answer failed must be told by the exit code."""

    async def next(self) -> str | None:
        """The next line, None when there will be no more. Raises `KeyboardInterrupt` when somebody wants something to
        stop and there is nothing."""

    def stoppable(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """While an answer comes in: `stop` is called each time somebody wants it to stop."""


def history_file(environment: Mapping[str, str]) -> Path:
    """`rota/chat-history` in the user's state folder. A relative XDG_STATE_HOME does not count: the specification."""
    named = Path(environment.get("XDG_STATE_HOME", ""))
    state = named if named.is_absolute() else Path.home() / ".local" / "state"
    return state / "rota" / "chat-history"


def history_in(file: Path) -> History:
    """What was typed before, kept in `file` for its owner alone; where that cannot be written, for this session."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
    except OSError:
        return InMemoryHistory()
    return _History(file)


class _History(FileHistory):
    """A full disk costs the history, not the conversation."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


class Terminal:
    """Somebody who types. Enter asks, Alt-Enter begins a new line; what is typed during an answer waits until after."""

    alone = False

    def __init__(self, source: Input, output: Output, history: History) -> None:
        self._source = source
        self._session: PromptSession[str] = PromptSession(
            message=PROMPT,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            history=history,
            completer=_Commands(),
            complete_while_typing=True,
            reserve_space_for_menu=0,
            key_bindings=_keys(),
            input=source,
            output=output,
        )

    async def next(self) -> str | None:
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None

    @contextmanager
    def stoppable(self, stop: Callable[[], None]) -> Iterator[None]:
        def pressed() -> None:
            keys = self._source.read_keys()
            store_typeahead(self._source, [key for key in keys if key.key != Keys.ControlC])
            for key in keys:
                if key.key == Keys.ControlC:
                    stop()

        # Raw, so that Ctrl-C is a key, and nothing that is typed now is written into the middle of the answer.
        with self._source.raw_mode(), self._source.attach(pressed), _on_signal(stop):
            yield


class Lines:
    """Each line of a file descriptor is a question. Empty ones are skipped."""

    alone = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] | None = None

    async def next(self) -> str | None:
        if self._lines is None:
            self._lines = asyncio.Queue()
            # A daemon and no buffered reader: neither would let the program end while it waits for a line.
            arguments = (asyncio.get_running_loop(), self._lines)
            threading.Thread(target=self._read, args=arguments, daemon=True).start()
        return await self._lines.get()

    @contextmanager
    def stoppable(self, stop: Callable[[], None]) -> Iterator[None]:
        """Nobody sits there who would go on: Ctrl-C ends the program, and with it the answer."""
        yield

    def _read(self, loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[str | None]") -> None:
        with suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
            for line in _lines_of(self._descriptor):
                if line.strip():
                    loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, None)


def _lines_of(descriptor: int) -> Iterator[str]:
    begun = b""
    while True:
        try:
            more = os.read(descriptor, _READ_AT_ONCE)
        except OSError:
            more = b""
        if not more:
            yield begun.decode("utf-8", "replace")
            return
        *whole, begun = (begun + more).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")


@contextmanager
def _on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """A SIGINT from outside stops as the key does. Only the main thread may be asked for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def interrupted(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Commands(Completer):
    """Completes the name of a command, and the names a tier may have."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        name, space, rest = text.partition(" ")
        if not space:
            for command, known in COMMANDS.items():
                if command.startswith(name):
                    yield Completion(command, -len(name), display_meta=known.does)
        elif name == "/tier":
            for tier in TIERS:
                if tier.startswith(rest):
                    yield Completion(tier, -len(rest))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _ask(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys
