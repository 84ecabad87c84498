"""The files of a trace on a real disk: how they begin, that nothing merges, that they stay as few and small as said."""

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from actors.trace_files import NotATrace, TraceFiles
from protocol.trace import files_of
from tests.actors.small_disk import files_no_larger_than

BEGINS = b'{"type":"trace.begun","time":'
LINE = b'{"type":"Tick","time":1.0}\n'


def files(path: Path, most_bytes: int = 1_000_000, most_files: int = 3) -> TraceFiles:
    """Open. Each file says by a number when it was begun."""
    numbers = count(1)
    made = TraceFiles(path, most_bytes, most_files, lambda: BEGINS + b"%d}\n" % next(numbers))
    made.open()
    return made


def begun(number: int) -> bytes:
    return BEGINS + b"%d}\n" % number


def test_a_file_begins_with_its_line_and_what_is_written_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = files(path)
    assert path.read_bytes() == begun(1)
    trace.write(LINE * 2, 2)
    assert path.read_bytes() == begun(1) + LINE * 2
    assert trace.lines == 2
    trace.close()


def test_another_run_is_appended_behind_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for _ in range(2):
        trace = files(path)
        trace.write(LINE, 1)
        trace.close()
    assert path.read_bytes() == (begun(1) + LINE) * 2


@pytest.mark.parametrize("cut", [1, 5, len(LINE) - 1])
def test_a_line_that_was_cut_off_is_ended_so_that_nothing_merges(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(begun(0) + LINE + LINE[:cut])
    trace = files(path)
    trace.write(LINE, 1)
    trace.close()
    assert path.read_bytes() == begun(0) + LINE + LINE[:cut] + b"\n" + begun(1) + LINE


def test_a_first_line_that_was_cut_off_is_still_known_for_ours(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(BEGINS[:9])
    files(path).close()
    assert path.read_bytes() == BEGINS[:9] + b"\n" + begun(1)


@pytest.mark.parametrize("content", [b"model = 'mine'\n", b"\x00", LINE])
def test_what_is_no_trace_is_left_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rota.toml"
    path.write_bytes(content)
    with pytest.raises(NotATrace, match="exists and is not a trace"):
        files(path)
    assert path.read_bytes() == content


def test_where_no_file_can_be_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files(tmp_path / "nowhere" / "trace")
    with pytest.raises(IsADirectoryError):
        files(tmp_path)


# --- rotation ---


def test_a_file_that_would_become_too_large_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    room = len(begun(1)) + 2 * len(LINE)
    trace = files(path, room)
    for _ in range(8):
        trace.write(LINE, 1)
    trace.close()
    older = [tmp_path / "trace.2", tmp_path / "trace.1", path]
    assert files_of(path) == older
    assert [file.read_bytes() for file in older] == [begun(number) + LINE * 2 for number in (2, 3, 4)]


def test_one_file_alone_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = files(path, len(begun(1)) + len(LINE), most_files=1)
    for _ in range(3):
        trace.write(LINE, 1)
    trace.close()
    assert files_of(path) == [path]
    assert path.read_bytes() == begun(3) + LINE


def test_fewer_files_than_before_leave_no_more_than_that(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for kept in (5, 2):
        trace = files(path, 1, kept)
        for _ in range(6):
            trace.write(LINE, 1)
        trace.close()
        assert len(files_of(path)) == kept


def test_a_file_of_an_earlier_run_that_is_full_is_rotated_before_anything_is_added(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(begun(0) + LINE * 9)
    trace = files(path, 100)
    trace.write(LINE, 1)
    trace.close()
    assert (tmp_path / "trace.1").read_bytes() == begun(0) + LINE * 9 + begun(1)
    assert path.read_bytes() == begun(2) + LINE


def test_what_is_larger_than_a_file_may_be_is_written_to_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = files(path, 100)
    trace.write(LINE, 1)
    trace.write(LINE * 9, 9)
    trace.write(LINE, 1)
    trace.close()
    assert [file.read_bytes().count(LINE) for file in files_of(path)] == [1, 9, 1]


# --- when it cannot be written ---


def test_a_full_disk_is_an_error_and_what_was_written_of_it_is_counted_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = files(path)
    with files_no_larger_than(len(begun(1)) + 3 * len(LINE) + 4), pytest.raises(OSError, match="too large"):
        trace.write(LINE * 5, 5)
    assert trace.lines == 3
    trace.write(LINE, 1)
    trace.close()
    assert trace.lines == 4
    # The run was begun before: it does not begin again.
    assert path.read_bytes() == begun(1) + LINE * 3 + LINE[:4] + b"\n" + LINE


def test_a_device_is_written_to_and_never_rotated() -> None:
    trace = files(Path("/dev/null"), 1)
    for _ in range(3):
        trace.write(LINE, 1)
    trace.close()
    assert trace.lines == 3
    with pytest.raises(OSError, match="No space left"):
        files(Path("/dev/full"))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_rotation_removes_and_writes_over_nothing_that_is_no_trace(number: int, tmp_path: Path) -> None:
    for older in range(1, 4):
        (tmp_path / f"trace.{older}").write_bytes(b"precious\n" if older == number else begun(0))
    with pytest.raises(NotATrace, match=rf"trace\.{number} exists and is not a trace"):
        files(tmp_path / "trace", most_files=2)
    assert (tmp_path / f"trace.{number}").read_bytes() == b"precious\n"


def test_what_was_put_there_while_it_was_written_stays_too(tmp_path: Path) -> None:
    trace = files(tmp_path / "trace", most_bytes=100)
    trace.write(LINE, 1)
    (tmp_path / "trace.1").write_bytes(b"precious\n")
    with pytest.raises(NotATrace):
        trace.write(LINE * 9, 9)
    assert (tmp_path / "trace.1").read_bytes() == b"precious\n"


def test_a_second_server_on_the_same_file_is_told(tmp_path: Path) -> None:
    first = files(tmp_path / "trace")
    with pytest.raises(NotATrace, match="is being written by another server"):
        files(tmp_path / "trace")
    first.close()
    files(tmp_path / "trace").close()


@pytest.mark.parametrize("gone", ["moved", "removed"])
def test_a_file_that_is_taken_away_is_begun_anew(gone: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = files(path)
    trace.write(LINE, 1)
    if gone == "moved":
        path.rename(tmp_path / "kept")
    else:
        path.unlink()
    trace.write(LINE, 1)
    trace.close()
    assert path.read_bytes() == begun(2) + LINE
    if gone == "moved":
        assert (tmp_path / "kept").read_bytes() == begun(1) + LINE


def test_a_pipe_that_nobody_reads_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device") as refused:
        files(path)
    assert refused.value.errno == errno.ENXIO
