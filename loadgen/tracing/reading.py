"""The files of a trace as a stream of lines, whatever state they are in; and the same while they grow.

Knows files, rotation and what can be wrong with a line. Knows nothing of what a line means.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec

from loadgen.chat_wire import harmless_line
from protocol.trace import BEGUN, FORMAT, LOST, TraceLine, files_of, lines, numbered

_BLOCK = 1 << 20
_MOST_S = 1e11
"""Far beyond any time that a server writes, and within what a calendar can say."""
_TEXTS = ("type", "from_", "to", "lane", "request", "reason", "code", "service_tier", "message")


class TraceError(Exception):
    """What was asked for cannot be done. The message is one sentence."""


class Found:
    """What reading a trace came upon, beside its lines."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.lines = 0
        self.unreadable = 0
        """Lines that are none, without one cut off at a file's end."""
        self.cut_off = 0
        """Lines that are not whole because their writer was cut off."""
        self.spoiled = False
        """The last line was unreadable."""
        self.lost = 0
        """Messages that the writer could not write."""
        self.written_by = ""


def read(file: Path, found: Found) -> Iterator[TraceLine]:
    """Every line of the trace, oldest file first, and in `found` what is missing. Raises `TraceError`.

    Of the lines that files begin with only the first is given: any other `BEGUN` is the start of another run.
    """
    with ExitStack() as opened:
        for handle in _open(file, found, opened):
            before = found.lines
            for line in _decoded(_blocks(handle), found):
                if line.type != BEGUN or not before or found.lines > before + 1:
                    yield line
    if not found.lines:
        if not found.unreadable and not found.cut_off:
            raise TraceError(f"{file} is empty: no server has written a trace to it yet.")
        raise TraceError(not_a_trace(file))


def not_a_trace(file: Path) -> str:
    return f"{file} is not a trace: none of its lines is one that `rota serve --trace` writes."


def _open(file: Path, found: Found, opened: ExitStack) -> list[BinaryIO]:
    """All files at once: one that is rotated away while another is read is still the one that was opened."""
    handles: dict[tuple[int, int], BinaryIO] = {}
    for path in files_of(file):
        try:
            handle = opened.enter_context(path.open("rb"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}.") from error
        known = os.fstat(handle.fileno())
        if (known.st_dev, known.st_ino) not in handles:
            handles[known.st_dev, known.st_ino] = handle
            found.files.append(path)
    if not handles:
        raise TraceError(f"There is no file {file}. Start a server with `rota serve --trace {file}` to have one.")
    return list(handles.values())


def _blocks(handle: BinaryIO) -> Iterator[bytes]:
    while block := handle.read(_BLOCK):
        yield block


def _decoded(blocks: Iterable[bytes], found: Found) -> Iterator[TraceLine]:
    rest = b""
    for block in blocks:
        parts = (rest + block).split(b"\n")
        rest = parts.pop()
        for raw in parts:
            line = decode(raw, found)
            if line is not None:
                yield line
    if rest.strip():
        unreadable = found.unreadable
        line = decode(rest, found)
        if line is not None:
            yield line
        elif found.unreadable > unreadable:
            found.unreadable = unreadable
            found.cut_off += 1


def decode(raw: bytes, found: Found) -> TraceLine | None:
    """One line without its end; None, and counted, when it is none. Raises `TraceError` on a newer format."""
    try:
        line = lines.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        line = None
    if line is None or not _possible(line):
        found.spoiled = bool(raw.strip())
        found.unreadable += found.spoiled
        return None
    if line.type in (BEGUN, LOST) and found.spoiled:  # its writer was cut off, and the next one has ended its line
        found.unreadable -= 1
        found.cut_off += 1
    found.spoiled = False
    if b"\\" in raw or not raw.isascii():
        line = _harmless(line)
    found.lines += 1
    if line.type == BEGUN:
        if line.format is not None and line.format > FORMAT:
            raise TraceError(
                f"The trace has format {line.format}, and this rota reads up to {FORMAT}: read it with the rota "
                "that wrote it, or a newer one."
            )
        found.written_by = line.message or found.written_by
    elif line.type == LOST:
        found.lost += line.lost or 0
    return line


def _possible(line: TraceLine) -> bool:
    """Whether its times can be times: a spoiled file may say anything."""
    durations = line.waited_s, line.handled_s or 0.0, line.took_s or 0.0, line.lane_s or 0.0
    return 0 <= line.time < _MOST_S and all(0 <= each < _MOST_S for each in durations)


def _harmless(line: TraceLine) -> TraceLine:
    """Without what a terminal would obey: whoever wrote the file may not have been a server."""
    texts = {name: harmless_line(text) for name in _TEXTS if (text := getattr(line, name))}
    chunks = tuple((harmless_line(request), *rest) for request, *rest in line.chunks)
    requests = tuple(map(harmless_line, line.requests))
    return msgspec.structs.replace(line, chunks=chunks, requests=requests, **texts)


class Tail:
    """A trace that grows. `poll` gives what has come since; a file that is not there yet holds nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._handle: BinaryIO | None = None
        self._rest = b""
        self._rotated = False
        """Nothing was read yet of a file that follows another."""
        self.found = Found()

    @property
    def waiting(self) -> bool:
        """There is no file yet."""
        return self._handle is None

    def poll(self) -> list[TraceLine]:
        """The lines that have been written whole since the last call, across a rotation. Never waits."""
        came: list[TraceLine] = []
        if self._handle is None and not self._begin(self._file):
            return came
        while True:
            self._take(came)
            newer = self._newer()
            if newer is None:
                return came
            # What was written between the last read and the rotation.
            self._take(came)
            if not self._begin(newer):
                return came
            self._rotated = True

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _begin(self, path: Path) -> bool:
        try:
            handle = path.open("rb")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}.") from error
        if self._rest.strip():
            self.found.cut_off += 1
        self.close()
        self._handle, self._rest = handle, b""
        self.found.files.append(path)
        return True

    def _take(self, came: list[TraceLine]) -> None:
        assert self._handle is not None
        if os.fstat(self._handle.fileno()).st_size < self._handle.tell():
            self._handle.seek(0)
            self._rest = b""
        for block in _blocks(self._handle):
            parts = (self._rest + block).split(b"\n")
            self._rest = parts.pop()
            for raw in parts:
                line = decode(raw, self.found)
                if line is not None:
                    if line.type != BEGUN or not self._rotated:
                        came.append(line)
                    self._rotated = False

    def _newer(self) -> Path | None:
        """The file that follows the one being read; None while that is the newest, or there is no newer one yet."""
        assert self._handle is not None
        mine = os.fstat(self._handle.fileno())
        if _same(self._file, mine) or not self._file.exists():
            return None
        number = 1
        while (rotated := numbered(self._file, number)).exists():
            if _same(rotated, mine):
                return numbered(self._file, number - 1) if number > 1 else self._file
            number += 1
        return self._file


def _same(path: Path, of: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), of)
    except OSError:
        return False
