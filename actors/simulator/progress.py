"""How far the runs of `rota simulate` are, on stderr: a bar each on a terminal, elsewhere a line now and then.

Knows counts and how they are drawn. Knows nothing of what is counted.
"""

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 5.0


class Bars:
    """A bar a run. A context; called with how far each run is."""

    def __init__(self, console: Console, names: Sequence[str], most: int, what: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(what))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._tasks = [self._progress.add_task(name, total=most) for name in names]

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, far: Sequence[int]) -> None:
        for task, so_far in zip(self._tasks, far, strict=True):
            self._progress.update(task, completed=so_far)


class Lines:
    """A line for all runs every `LINE_EVERY_S`, for logs and pipes: none for what takes less."""

    def __init__(
        self,
        console: Console,
        names: Sequence[str],
        most: int,
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._names = names
        self._of = f"of {most:,} {what}"
        self._clock = clock
        self._begun_s = self._said_s = clock()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is left on the screen to be taken away."""

    def __call__(self, far: Sequence[int]) -> None:
        now_s = self._clock()
        if now_s - self._said_s < LINE_EVERY_S:
            return
        self._said_s = now_s
        each = ", ".join(f"{name} {so_far:,}" for name, so_far in zip(self._names, far, strict=True))
        line = f"{now_s - self._begun_s:.0f} s: {each} {self._of}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def display(console: Console, names: Sequence[str], most: int, what: str) -> Bars | Lines:
    """What suits the console. `most` is where a run ends, in `what` ("requests simulated")."""
    return (Bars if console.is_terminal else Lines)(console, names, most, what)
