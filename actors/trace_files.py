"""The files of a trace: appended to, begun with their line, and rotated by size.

Knows bytes, sizes and names (`protocol/trace.py`). Knows neither messages nor threads, and says of no error what it
means: every OSError is the caller's.
"""

import os
import stat
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from protocol.trace import BEGUN, numbered

_BEGINS = f'{{"type":"{BEGUN}"'.encode()


class NotATrace(Exception):
    """The file is there, and holds something else, or is another server's. The message says which."""


class TraceFiles:
    """`path`, and `path.1` (the newest) to `path.N` for what no longer fits it, `most_files` with `path` itself.

    A file is rotated when what is to be written would make it larger than `most_bytes`; only a single write that is
    larger by itself does. What is no regular file (a pipe, a device) is written to and never rotated. Not open at
    first.
    """

    def __init__(self, path: Path, most_bytes: int, most_files: int, begun: Callable[[], bytes]) -> None:
        """`begun` makes the line that a file begins with, and a run in a file that was there."""
        self.path = path
        self._most_bytes = most_bytes
        self._most_files = most_files
        self._begun = begun
        self._file: FileIO | None = None
        self._size = 0
        self._written = False
        """Something but how it began was written to the file since it was opened."""
        self._regular = True
        self._run_begun = False
        self.lines = 0
        """Whole lines written so far, those aside that files begin with."""

    def open(self) -> None:
        """For appending. What was cut off at the end of the file is ended. Raises OSError and NotATrace."""
        self.close()
        self._check_older()
        file = _opened(self.path)
        try:
            _lock(file, self.path)
            found = os.fstat(file.fileno())
            self._regular = stat.S_ISREG(found.st_mode)
            self._size = found.st_size if self._regular else 0
            self._written = self._size > 0
            begins = b"" if self._size and self._run_begun else self._begun()
            if self._size:
                begins = self._missing_end() + begins
            self._file = file
            rest = memoryview(begins)
            while rest:
                rest = rest[self._put(rest) :]
            self._run_begun = True
        except BaseException:
            self._file = None
            file.close()
            raise

    def _missing_end(self) -> bytes:
        """What is missing to the last line. Raises NotATrace when the first one is not ours."""
        _check(self.path)
        with self.path.open("rb") as existing:
            existing.seek(-1, os.SEEK_END)
            return b"" if existing.read(1) == b"\n" else b"\n"

    def _check_older(self) -> None:
        """What rotation would remove or write over has to be ours. Raises NotATrace."""
        number = 1
        while (older := numbered(self.path, number)).exists():
            _check(older)
            number += 1

    def write(self, lines: bytes, count: int) -> None:
        """So many whole lines. Raises OSError: some of them may have been written, as `lines` tells, and it is closed.
        The next `write` opens it again, which may raise NotATrace too."""
        try:
            if self._file is None or self._was_moved():
                self.open()
            if self._regular and self._written and self._size + len(lines) > self._most_bytes:
                self._rotate()
            self._written = True
            rest = memoryview(lines)
            while rest:
                written = self._put(rest)
                self.lines += count if written == len(lines) else bytes(rest[:written]).count(b"\n")
                rest = rest[written:]
        except OSError:
            self.close()
            raise

    def _was_moved(self) -> bool:
        """Somebody has taken the file away: nobody would look for what is written to it now."""
        assert self._file is not None
        if not self._regular:
            return False
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return True
        mine = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _put(self, data: memoryview) -> int:
        assert self._file is not None
        count = self._file.write(data)
        self._size += count
        return count

    def _rotate(self) -> None:
        self.close()
        self._check_older()
        number = self._most_files - 1
        while (oldest := numbered(self.path, number) if number else self.path).exists():
            oldest.unlink()
            number += 1
        for newer in range(self._most_files - 2, -1, -1):
            named = numbered(self.path, newer) if newer else self.path
            if named.exists():
                named.replace(numbered(self.path, newer + 1))
        self.open()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _check(path: Path) -> None:
    """Raises NotATrace when it is there and its first line is not ours."""
    with path.open("rb") as existing:
        if not _BEGINS.startswith(existing.read(len(_BEGINS))):
            raise NotATrace(f"{path} exists and is not a trace")


def _opened(path: Path) -> FileIO:
    """For appending. A pipe that nobody reads is an OSError (ENXIO): to wait for a reader would keep the server."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
    os.set_blocking(descriptor, True)
    return FileIO(descriptor, "a")


def _lock(file: FileIO, path: Path) -> None:
    """Two servers would rotate each other's files. Raises NotATrace when another has it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise NotATrace(f"{path} is being written by another server") from None
