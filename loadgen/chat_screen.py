"""What `rota chat` shows: on a terminal Markdown that grows, with a line below it that says where the question stands;
elsewhere plain text.

Knows rich and the size of the screen. Knows no socket and no events. Whatever comes from a server goes through
`harmless` before it is written.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from loadgen.chat_markdown import Rendered, finished
from loadgen.chat_wire import harmless

DRAW_EVERY_S = 0.08
DRAWING_SHARE = 0.2
"""Most of the time that may go into drawing: the socket is read by the same event loop."""
ROWS_BELOW = 3
"""Kept free below a block that is being written: a blank line, the line that says where it stands, the cursor."""


class Screen(Protocol):
    """One answer at a time."""

    def answering(self) -> AbstractContextManager[None]:
        """While an answer comes in. When it leaves, all of the answer is on the screen for good."""

    def standing(self, where: str) -> None:
        """Where the question stands, until text comes or it stands elsewhere. Only within `answering`."""

    def text(self, more: str) -> None:
        """More of the answer. Only within `answering`."""

    def ended(self, line: str) -> None:
        """How the answer ended and what it cost."""

    def note(self, text: str) -> None:
        """Something the program has to say, at any time."""

    def problem(self, sentence: str) -> None:
        """Why there is no answer, or why it broke off."""


class PlainScreen:
    """Answers as they come on `out`, and everything else, once, on `aside`. Without any escape code."""

    def __init__(self, out: TextIO, aside: TextIO) -> None:
        self._out = out
        self._aside = aside
        self._at_line_start = True

    @contextmanager
    def answering(self) -> Iterator[None]:
        try:
            yield
        finally:
            if not self._at_line_start:
                self._write("\n")

    def standing(self, where: str) -> None:
        """Nothing: a line that is overwritten is for those who watch."""

    def text(self, more: str) -> None:
        text = harmless(more)
        if text:
            self._write(text)

    def ended(self, line: str) -> None:
        self.note(line)

    def note(self, text: str) -> None:
        print(harmless(text), file=self._aside, flush=True)

    def problem(self, sentence: str) -> None:
        self.note(sentence)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._at_line_start = text.endswith("\n")


class TerminalScreen:
    """Markdown as it grows. Finished blocks are printed for good; only the last one, and no more of it than fits, is
    drawn anew, so that nothing flickers and nothing is lost above the screen's upper edge."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._spinner = Spinner("dots", style="dim")
        self._unfinished = ""
        self._looked_at = 0
        """So many characters of it were looked through in vain: no block was finished."""
        self._printed_any = False
        self._where = ""
        self._since_s = 0.0
        self._changed = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        self._unfinished, self._printed_any, self._looked_at = "", False, 0
        self.standing("waiting")
        self._live = Live(
            console=self._console,
            auto_refresh=False,  # by the event loop, not by a thread beside it
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        drawing: asyncio.Task[None] | None = None
        try:
            with self._live:
                drawing = asyncio.create_task(self._draw())
                yield
        finally:
            if drawing is not None:
                drawing.cancel()
            self._live = None
            self._settle(len(self._unfinished))

    def standing(self, where: str) -> None:
        self._where, self._since_s, self._changed = where, time.monotonic(), True

    def text(self, more: str) -> None:
        if not self._unfinished and not self._printed_any:
            self.standing("writing")
        text = harmless(more)
        self._unfinished += text
        self._changed = True
        # A long block is not looked through for each of its lines, or it would take the square of its length.
        if "\n" in text and len(self._unfinished) - self._looked_at >= self._looked_at // 8:
            length = finished(self._unfinished)
            self._looked_at = 0 if length else len(self._unfinished)
            self._settle(length)

    def ended(self, line: str) -> None:
        self._console.print(Text(harmless(line), style="dim"))
        self._console.print()

    def note(self, text: str) -> None:
        self._console.print(Text(harmless(text), style="dim"))

    def problem(self, sentence: str) -> None:
        self._console.print(Text(harmless(sentence), style="red"))
        self._console.print()

    def _settle(self, length: int) -> None:
        """Print so much of what is unfinished for good, a blank line between blocks."""
        done, self._unfinished = self._unfinished[:length], self._unfinished[length:]
        if not done.strip():
            return
        if self._printed_any:
            self._console.print()
        self._console.print(Rendered(done), end="")
        self._printed_any = True

    async def _draw(self) -> None:
        """Again and again, as often as may be, until cancelled."""
        while True:
            began_s = time.monotonic()
            assert self._live is not None
            self._live.update(self._picture(), refresh=True)
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(DRAW_EVERY_S, took_s / DRAWING_SHARE))

    def _picture(self) -> RenderableType:
        seconds = time.monotonic() - self._since_s
        since = f", {seconds:.0f} s" if seconds >= 1 else ""
        line = Text(f"{self._where}{since} · Ctrl-C stops", style="dim", no_wrap=True, overflow="ellipsis")
        below = self._spinner
        below.update(text=line)
        if not self._unfinished.strip():
            return below
        block = Rendered(self._unfinished, last_lines=max(1, self._console.height - ROWS_BELOW - self._printed_any))
        above = [Text("")] if self._printed_any else []
        return Group(*above, block, below)
