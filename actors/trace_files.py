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
    """The file is there, and holds something else."""


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
        file = FileIO(self.path, "a")
        try:
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
        with self.path.open("rb") as existing:
            if not _BEGINS.startswith(existing.read(len(_BEGINS))):
                raise NotATrace(f"{self.path} exists and is not a trace")
            existing.seek(-1, os.SEEK_END)
            return b"" if existing.read(1) == b"\n" else b"\n"

    def write(self, lines: bytes, count: int) -> None:
        """So many whole lines. Raises OSError: some of them may have been written, as `lines` tells, and it is closed.
        The next `write` opens it again, which may raise NotATrace too."""
        try:
            if self._file is None:
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

    def _put(self, data: memoryview) -> int:
        assert self._file is not None
        count = self._file.write(data)
        self._size += count
        return count

    def _rotate(self) -> None:
        self.close()
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
