"""What is shown on stderr while a load runs: a live view on a terminal, elsewhere a line every few seconds, or nothing.

Knows counts (`Board`), when to draw them, and how they are laid out. Knows no socket; time comes in as seconds. Never
touches stdout.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.comparison import span
from loadgen.exchange import Exchange
from loadgen.sparkline import COLUMNS, Minute, Scale, scale

PLAIN_EVERY_S = 5.0
FRAME_EVERY_S = 0.095
"""A little under a tenth of a second, so that whoever shows ten times a second is drawn ten times."""
RATE_OVER_S = 2.0
REQUESTS_OVER_S = 5.0
MOST_WAITS = 16_384
"""Kept for the sparklines until they are drawn: the latest, when there are more in a second or nobody draws."""


@dataclass(slots=True)
class Board:
    """The counts of a run as they change.

    Whoever drives a run calls `sent` when a request goes out, `first_text` at its first delta, `text` at each later
    one with the time since the one before, and `end` once for every request, also for those that are never sent. It
    sets `phase`, `open_sockets` and `began_s` itself. A run of its own has a board of its own.
    """

    requests: int
    """Planned, those that have not arrived yet included. It may grow."""
    output_tokens_each: int
    """What a request may at most put out, or will on average: the bar's length is `requests` times this."""
    phase: str = "opening sockets"
    started: int = 0
    """Sent."""
    running: int = 0
    """Sent, and not ended."""
    ended: int = 0
    met: int = 0
    """Of those that ended: within both targets, outside of one, and other ends. One without targets is neither."""
    missed: int = 0
    refused: int = 0
    left: int = 0
    failed: int = 0
    """Failed, dropped with its socket, or cut off at the end of the run."""
    open_sockets: int = 0
    chunks: int = 0
    """Deltas received: here a chunk stands for a token. It may hold more, but usage comes only at the end."""
    bar: int = 0
    """How much of the bar is done: chunks, and what ended requests left of their share."""

    began_s: float | None = None
    """When the first request was to be sent; None: it is not told."""
    arrivals_s: float | None = None
    """How long after `began_s` the last request is due; None: all at once, or not known."""

    ttfts_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WAITS))
    """Of the last second or so: taken out as they are drawn."""
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WAITS))

    @property
    def total(self) -> int:
        return self.requests

    def sent(self) -> None:
        """A request has gone out."""
        self.started += 1
        self.running += 1

    def first_text(self, ttft_s: float) -> None:
        """The first delta of a request has arrived, so long after it was due. It is counted: no `text` for it."""
        self.ttfts_s.append(ttft_s)
        self.chunks += 1
        self.bar += 1

    def text(self, gap_s: float | None = None) -> None:
        """A delta has arrived, `gap_s` after the one before; None: not measured."""
        if gap_s is not None:
            self.gaps_s.append(gap_s)
        self.chunks += 1
        self.bar += 1

    def end(self, exchange: Exchange) -> None:
        """A request has ended, or will never be sent. Its outcome, its texts and whether it met its targets count."""
        self.ended += 1
        self.bar += self.output_tokens_each - len(exchange.texts_s)
        if exchange.sent_s is not None and self.running:
            self.running -= 1
        match exchange.outcome:
            case "refused":
                self.refused += 1
            case "left":
                self.left += 1
            case "failed" | "dropped" | "unfinished":
                self.failed += 1
        met = exchange.met if exchange.has_targets else None
        if met is not None:
            self.met += met
            self.missed += not met


class Display(Protocol):
    """A context that is told now and then how the run stands."""

    def __enter__(self) -> "Display": ...
    def __exit__(self, *exc: object) -> None: ...
    def show(self, board: Board, now_s: float) -> None: ...


class Rate:
    """How many a second over the last `over_s` seconds."""

    def __init__(self, over_s: float = RATE_OVER_S) -> None:
        self._over_s = over_s
        self._points: deque[tuple[float, int]] = deque()

    def at(self, now_s: float, so_far: int) -> float:
        """The rate at `now_s`, when `so_far` had come in all; 0 at the first call."""
        if self._points and so_far < self._points[-1][1]:  # another run, which counts from nothing
            self._points.clear()
        self._points.append((now_s, so_far))
        # The oldest point that is kept is the last one at least `over_s` old.
        while len(self._points) > 2 and now_s - self._points[1][0] >= self._over_s:
            self._points.popleft()
        then_s, before = self._points[0]
        return (so_far - before) / (now_s - then_s) if now_s > then_s else 0.0


class Nothing:
    """For `--quiet`."""

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def show(self, board: Board, now_s: float) -> None:
        pass


class LiveView:
    """Drawn only when `show` is called, and at most ten times a second.

    A drawing thread would disturb what is being measured. A frame takes about 2 ms.
    """

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._board: Board | None = None
        self._due_s = 0.0
        self.done = 0
        """How much of the bar is filled."""

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, board: Board, now_s: float) -> None:
        if board is not self._board:  # another run
            self._board, self._shown_s, self._due_s = board, now_s, now_s
            self._tokens, self._requests = Rate(), Rate(REQUESTS_OVER_S)
            self._ttfts, self._gaps, self.done = Minute(), Minute(), 0
        # Taken in at every call, for a rate is a matter of when; drawn only when it is due.
        tokens_per_s = self._tokens.at(now_s, board.chunks)
        requests_per_s = self._requests.at(now_s, board.ended)
        self._ttfts.take(now_s, board.ttfts_s)
        self._gaps.take(now_s, board.gaps_s)
        if now_s < self._due_s:
            return
        self._due_s = now_s + FRAME_EVERY_S
        self._said = _coming(board, tokens_per_s, requests_per_s)
        # An answer longer than its share, when it ends, would set the bar back.
        self.done = min(_length(board), max(self.done, board.bar))
        self._live.update(self.drawn(board, now_s), refresh=True)

    def drawn(self, board: Board, now_s: float) -> RenderableType:
        """The frame, of what was last shown."""
        sparklines = _sparklines(self._ttfts, self._gaps, self._console.width)
        return Group(self._head(board, now_s), _cut(self._said), _cut(_ends(board)), *sparklines)

    def _head(self, board: Board, now_s: float) -> Table:
        began_s = self._shown_s if board.began_s is None else board.began_s
        time = f"{max(0.0, now_s - began_s):.0f} s"
        if board.arrivals_s:
            time += f", arrivals for {board.arrivals_s:.0f} s"
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True, overflow="ellipsis")
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, overflow="ellipsis", justify="right")
        head.add_row(Text(board.phase, style="bold"), ProgressBar(_length(board), self.done), Text(time))
        return head


def _length(board: Board) -> int:
    return max(1, board.requests * board.output_tokens_each)


def _cut(words: str) -> Text:
    """One line, however narrow the terminal."""
    return Text(words, no_wrap=True, overflow="ellipsis")


def _coming(board: Board, tokens_per_s: float, requests_per_s: float) -> str:
    said = [f"~{tokens_per_s:,.0f} tokens/s", f"{requests_per_s:,.1f} requests/s"]
    if board.started:
        said.append(f"{board.started:,}/{board.requests:,} arrived, {board.running:,} running")
    return " · ".join([*said, f"{board.open_sockets:,} sockets open"])


def _ends(board: Board) -> str:
    said = [f"{board.ended:,}/{board.requests:,} ended"]
    if board.met or board.missed:
        said.append(f"{board.met:,} met their targets, {board.missed:,} missed")
    for count, what in ((board.refused, "refused"), (board.left, "left"), (board.failed, "failed")):
        if count:
            said.append(f"{count:,} {what}")
    return " · ".join(said)


def _sparklines(ttfts: Minute, gaps: Minute, width: int) -> list[RenderableType]:
    """A median and a 99th percentile a second, of what there is; nothing where the terminal is too narrow for it."""
    columns = min(COLUMNS, width - _BESIDE)
    if columns < _LEAST_COLUMNS:
        return []
    lines: list[RenderableType] = []
    scales: list[str] = []
    for name, minute in (("TTFT", ttfts), ("gap", gaps)):
        seconds = list(minute.seconds)[-columns:]
        latest = minute.latest
        if latest is None:
            continue
        of = scale(seconds)
        scales.append(f"{name} {_said(of)}")
        for label, values, now in (
            (f"{name:<4} p50", [each and each.p50 for each in seconds], latest.p50),
            ("     p99", [each and each.p99 for each in seconds], latest.p99),
        ):
            drawn = "".join(map(of.block, values)).rjust(columns)
            lines.append(Text.assemble(f"{label} ", (drawn, "cyan"), f" {span(now):>8}", no_wrap=True))
    if scales:
        lines.append(Text(f"a column a second · {' · '.join(scales)}", style="dim", no_wrap=True, overflow="ellipsis"))
    return lines


_BESIDE = 9 + 9
_LEAST_COLUMNS = 10


def _said(of: Scale) -> str:
    return f"▁ {span(of.low)} █ {span(of.high)}, log" if of.logarithmic else f"▁ 0 █ {span(of.high)}"


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
    """For example `~312 tokens/s, 14 sockets open, 2/16 ended`; of a single request `reading its prompt, 40 s`.

    What went wrong, and how many were in time, only where there is some.
    """
    if board.requests == 1 and board.began_s is not None:
        doing = f"~{rate:,.0f} tokens/s" if board.chunks else "reading its prompt"
        return f"{doing}, {now_s - board.began_s:.0f} s"
    said = f"~{rate:,.0f} tokens/s, {board.open_sockets:,} sockets open, {board.ended:,}/{board.requests:,} ended"
    for count, what in (
        (board.running, "running"),
        (board.met, "met"),
        (board.missed, "missed"),
        (board.refused, "refused"),
        (board.left, "left"),
        (board.failed, "failed"),
    ):
        if count:
            said += f", {count:,} {what}"
    return said


def display(console: Console, quiet: bool) -> Display:
    """What suits the console: nothing when `quiet`, a live view on a terminal, else lines."""
    if quiet:
        return Nothing()
    return LiveView(console) if console.is_terminal else Lines(console)
