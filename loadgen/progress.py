"""What is shown on stderr while a load runs: a live bar on a terminal, elsewhere a line every few seconds, or nothing.

Knows counts (`Board`) and how to draw them. Knows no socket; time comes in as seconds. Never touches stdout.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

PLAIN_EVERY_S = 5.0
RATE_OVER_S = 2.0


@dataclass(slots=True)
class Board:
    """The counts of a run as they change."""

    requests: int
    output_tokens_each: int
    """What each request may at most put out: the bar's length is `requests` times this."""
    phase: str = "opening sockets"
    ended: int = 0
    open_sockets: int = 0
    chunks: int = 0
    """Deltas received: here a chunk stands for a token. It may hold more, but usage comes only at the end."""
    bar: int = 0
    """How much of the bar is done: chunks, and what ended requests left of their limit."""

    began_s: float | None = None
    """When the first request was to be sent; None: it is not told."""

    def text(self) -> None:
        """A delta has arrived."""
        self.chunks += 1
        self.bar += 1

    def end(self, chunks: int) -> None:
        """A request that had brought `chunks` deltas has ended, or will never be sent (0 chunks)."""
        self.ended += 1
        self.bar += max(0, self.output_tokens_each - chunks)


class Display(Protocol):
    """A context that is told now and then how the run stands."""

    def __enter__(self) -> "Display": ...
    def __exit__(self, *exc: object) -> None: ...
    def show(self, board: Board, now_s: float) -> None: ...


class Rate:
    """Chunks per second over the last `RATE_OVER_S`."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def at(self, now_s: float, chunks: int) -> float:
        """The rate at `now_s`, when `chunks` had come in all; 0 at the first call."""
        if self._points and chunks < self._points[-1][1]:  # another run, which counts from nothing
            self._points.clear()
        self._points.append((now_s, chunks))
        # The oldest point that is kept is the last one at least RATE_OVER_S old.
        while len(self._points) > 2 and now_s - self._points[1][0] >= RATE_OVER_S:
            self._points.popleft()
        then_s, before = self._points[0]
        return (chunks - before) / (now_s - then_s) if now_s > then_s else 0.0


class Nothing:
    """For `--quiet`."""

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def show(self, board: Board, now_s: float) -> None:
        pass


class Bar:
    """A live bar, drawn only when `show` is called: a drawing thread would disturb what is being measured."""

    def __init__(self, console: Console) -> None:
        self._rate = Rate()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", counts="")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def show(self, board: Board, now_s: float) -> None:
        self._progress.update(
            self._task,
            description=board.phase,
            total=board.requests * board.output_tokens_each,
            completed=board.bar,
            counts=counts(board, self._rate.at(now_s, board.chunks), now_s),
        )
        self._progress.refresh()


class Lines:
    """A line every `PLAIN_EVERY_S`, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rate = Rate()
        self._started_s: float | None = None
        self._due_s = 0.0

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def show(self, board: Board, now_s: float) -> None:
        rate = self._rate.at(now_s, board.chunks)
        if self._started_s is None:
            self._started_s = now_s
            self._due_s = now_s + PLAIN_EVERY_S
        if now_s >= self._due_s:
            self._due_s = now_s + PLAIN_EVERY_S
            line = f"{now_s - self._started_s:.0f} s, {board.phase}: {counts(board, rate, now_s)}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def counts(board: Board, rate: float, now_s: float) -> str:
    """For example `~312 tokens/s, 14 sockets open, 2/16 ended`; of a single request `reading its prompt, 40 s`."""
    if board.requests == 1 and board.began_s is not None:
        doing = f"~{rate:,.0f} tokens/s" if board.chunks else "reading its prompt"
        return f"{doing}, {now_s - board.began_s:.0f} s"
    return f"~{rate:,.0f} tokens/s, {board.open_sockets} sockets open, {board.ended}/{board.requests} ended"


def display(console: Console, quiet: bool) -> Display:
    """What suits the console: nothing when `quiet`, a bar on a terminal, else lines."""
    if quiet:
        return Nothing()
    return Bar(console) if console.is_terminal else Lines(console)
