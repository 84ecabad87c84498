"""Whether a process gets on, seen from outside: by what it and its children have computed.

Knows Linux's /proc; elsewhere it can say nothing. Knows nothing of what the processes are for.
"""

from collections.abc import Iterator
from pathlib import Path

_TIMES = slice(11, 15)
"""In /proc/PID/stat, behind the name: its own time on a processor, of all threads, and that of children that ended."""


def signs_of_life(pid: int) -> tuple[str, ...] | None:
    """Differs from an earlier one if the process, or a child of its, has done anything since. None: it cannot be said.

    Of a first thread to the nanosecond, of the others to a hundredth of a second: one that only wakes up now and then
    to look at the time is no sign that a process gets on.
    """
    try:
        return tuple(_of_all(Path("/proc", str(pid))))
    except OSError:
        return None


def _of_all(process: Path) -> Iterator[str]:
    times = (process / "stat").read_text().rpartition(")")[2].split()[_TIMES]
    first_thread = (process / "schedstat").read_text().split()[0]
    yield " ".join((process.name, *times, first_thread))
    for task in (process / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _of_all(process.parent / child)
