"""Markdown while it is being written: which of its blocks are finished, and how the last one is drawn.

Knows where blocks end, and that nothing in a text may reach the terminal as an escape code, whatever Markdown makes of
it. Knows no socket and no terminal.
"""

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment

from loadgen.chat_wire import harmless

_PARSER = MarkdownIt().enable(["table", "strikethrough"])
"""As rich reads it."""
_FENCES = ("```", "~~~")
LONG_LINE = 1000
"""Characters, more than any screen is wide: a block of few lines that is longer than so many a line of the screen is
one endless line."""


def finished(text: str) -> int:
    """How much of the beginning of `text` is finished blocks: more text cannot change how they look.

    0 while the first block is still being written. Only whole lines are looked at: of half a line nobody knows what it
    will be.
    """
    lines = text[: text.rfind("\n") + 1].splitlines(keepends=True)
    starts = [token.map[0] for token in _PARSER.parse("".join(lines)) if token.level == 0 and token.map]
    # A closing token has no lines, so every one that has them begins a block.
    return sum(map(len, lines[: starts[-1]])) if len(starts) > 1 else 0


class Rendered:
    """Markdown on a console, without blank lines around it and without blanks at the ends of its lines.

    `last_lines`: only so many lines of its end, for a block longer than the screen.
    """

    def __init__(self, text: str, last_lines: int | None = None) -> None:
        self.text = text if last_lines is None else _end_of(text, last_lines)
        self._last_lines = last_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Links are written out: whoever reads should see where one leads, and a hidden one is an escape code.
        rendered = console.render_lines(Markdown(self.text, hyperlinks=False), options, pad=False)
        lines = [_trimmed([_safe(segment) for segment in line]) for line in rendered]
        while lines and not lines[-1]:
            lines.pop()
        begin = next((number for number, line in enumerate(lines) if line), 0)
        for line in lines[begin:] if self._last_lines is None else lines[begin:][-self._last_lines :]:
            yield from line
            yield Segment.line()


def _safe(segment: Segment) -> Segment:
    # A text without escape codes may still hold "%1b" in a link, which Markdown makes one.
    return segment if segment.control else Segment(harmless(segment.text), segment.style)


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Without the blanks at its end, unless they show, as those of a code block do."""
    while line and not (line[-1].style is not None and line[-1].style.bgcolor is not None):
        text = line[-1].text.rstrip()
        if text:
            return [*line[:-1], Segment(text, line[-1].style)]
        line = line[:-1]
    return line


def _end_of(text: str, lines: int) -> str:
    """The part of a long block that is worth rendering to see its last `lines`: a line of source makes one or more."""
    whole = text.splitlines(keepends=True)
    if len(whole) <= 2 * lines:
        return text if len(text) <= lines * LONG_LINE else text[-lines * LONG_LINE :]
    opening = whole[0] if whole[0].startswith(_FENCES) else ""
    return opening + "".join(whole[-lines:])
