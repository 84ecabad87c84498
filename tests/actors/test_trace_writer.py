"""The thread that writes the trace: nothing is lost unsaid, and whatever happens to the file, nobody else notices."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from actors import trace_lines
from actors.trace_files import TraceFiles
from actors.trace_writer import AT_ONCE, TraceWriter
from actors.tracing import Record, Tracer
from protocol.messages import TokensTaken
from protocol.trace import BEGUN, LOST, TraceLine, lines
from tests.actors.small_disk import files_no_larger_than

LONGEST_S = 30.0


def record(number: int) -> Record:
    return Record(TokensTaken(number), "detokeniser", "scheduler", "control", 1.0, 1.25, 1.5)


class Poison:
    """Of which no line can be made."""

    @property
    def request(self) -> str:
        raise ValueError("poison")


def until(true: Callable[[], object]) -> None:
    """Look again and again at what another thread does."""
    deadline = time.monotonic() + LONGEST_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def read(path: Path) -> list[TraceLine]:
    return [lines.decode(line) for line in path.read_bytes().splitlines()]


@contextmanager
def writing(path: Path, most: int = 100_000) -> Iterator[Tracer]:
    tracer = Tracer(lambda: 5.0, lambda: 1_005.0, most)
    files = TraceFiles(path, 1_000_000, 2, lambda: msgspec.json.encode(trace_lines.begun(0.0)) + b"\n")
    files.open()
    writer = TraceWriter(tracer, files, every_s=0.001)
    writer.start()
    try:
        yield tracer
    finally:
        writer.close()


def test_all_that_was_recorded_is_written_in_its_order_before_close_returns(tmp_path: Path) -> None:
    said = 5 * AT_ONCE + 7
    with writing(tmp_path / "trace") as tracer:
        for number in range(said):
            tracer.record(record(number))
    begun, *rest = read(tmp_path / "trace")
    assert begun.type == BEGUN
    assert [line.step for line in rest] == list(range(said))
    assert (rest[0].time, rest[0].waited_s, rest[0].handled_s) == (1_001.0, 0.25, 0.25)


def test_it_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with writing(tmp_path / "trace") as tracer:
        for number in range(3):
            tracer.record(record(number))
            until(lambda: len(read(tmp_path / "trace")) == number + 2)  # noqa: B023


def test_messages_that_found_no_room_are_told_of_once_and_in_the_log(tmp_path: Path) -> None:
    with capture_logs() as logs, writing(tmp_path / "trace", most=0) as tracer:
        for number in range(5):
            tracer.record(record(number))
        until(lambda: len(read(tmp_path / "trace")) > 1)
        tracer.most = 10
        tracer.record(record(5))
    told = [line for line in read(tmp_path / "trace") if line.type == LOST]
    assert sum(line.lost or 0 for line in told) == 5
    assert told[0].time == 1_005.0
    assert read(tmp_path / "trace")[-1].step == 5
    assert [entry["event"] for entry in logs] == ["trace.behind"]


def test_a_full_disk_is_said_once_what_it_cost_is_counted_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    steps = count()
    recorded: list[int] = []

    def say(tracer: Tracer) -> None:
        recorded.append(next(steps))
        tracer.record(record(recorded[-1]))

    with capture_logs() as logs, writing(path) as tracer:
        say(tracer)
        until(lambda: len(read(path)) == 2)
        with files_no_larger_than(path.stat().st_size + 10):
            for _ in range(3):
                say(tracer)
                until(lambda: not tracer.records)
            until(lambda: logs)
        until(lambda: any(entry["event"] == "trace.writable" for entry in logs))
        say(tracer)
    begun, *found = [line for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    made = [lines.decode(line) for line in found]
    assert lines.decode(begun).type == BEGUN
    assert [line.step for line in made if line.type == "TokensTaken"] == [0, recorded[-1]]
    assert sum(line.lost or 0 for line in made if line.type == LOST) == 3
    assert [entry["event"] for entry in logs] == ["trace.unwritable", "trace.writable"]
    assert logs[0]["why"] == "File too large"


def test_a_defect_in_writing_ends_the_trace_and_nothing_else(tmp_path: Path) -> None:
    with capture_logs() as logs, writing(tmp_path / "trace") as tracer:
        tracer.record(record(0))
        until(lambda: len(read(tmp_path / "trace")) == 2)
        tracer.record(Record(Poison(), "", "scheduler", "data", 1.0, 1.0, 1.0))
        until(lambda: tracer.most == 0)
        tracer.record(record(1))
        assert not tracer.records
    assert len(read(tmp_path / "trace")) == 2
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("trace.failed", "error")]
