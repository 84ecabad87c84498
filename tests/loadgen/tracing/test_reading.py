"""A trace in whatever state its files are: whole, cut off, spoiled, rotated, growing."""

import os
from pathlib import Path

import msgspec
import pytest

from loadgen.tracing.lives import Lives
from loadgen.tracing.reading import Found, Tail, TraceError, read
from protocol.trace import BEGUN, FORMAT, LOST, TraceLine
from tests.loadgen.tracing.scenes import BEGAN, Scene


def encoded(*lines: TraceLine) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def begun(at: float = BEGAN) -> TraceLine:
    return TraceLine(BEGUN, at, format=FORMAT)


def tick(number: int) -> TraceLine:
    return TraceLine("Tick", BEGAN + number, "timer", "reaper")


def numbers(lines: list[TraceLine]) -> list[float]:
    return [line.time - BEGAN for line in lines if line.type == "Tick"]


def test_a_last_line_that_is_cut_off_is_said_and_no_error(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(encoded(begun(), tick(1), tick(2)) + encoded(tick(3))[:-9])
    found = Found()
    assert numbers(list(read(file, found))) == [1, 2]
    assert (found.lines, found.cut_off, found.unreadable) == (3, 1, 0)


def test_a_last_line_without_its_end_that_is_whole_is_read(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(encoded(begun(), tick(1))[:-1])
    found = Found()
    assert numbers(list(read(file, found))) == [1]
    assert found.cut_off == 0


RUBBISH = {
    "bytes": b"\xff\xfe\x00",
    "empty": b"{}",
    "another type": b'{"type":1,"time":2}',
    "a list": b'["a"]',
    "cut": b'{"type":"Tick","ti',
    "nested": b'{"type":"Tick","time":1,"zz":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no calendar's time": b'{"type":"Tick","time":1e300}',
    "before all time": b'{"type":"Tick","time":-5}',
    "endless": b'{"type":"StepDone","time":1800000001,"took_s":1e308}',
    "backwards": b'{"type":"Tick","time":1800000001,"waited_s":-5}',
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_in_the_middle_is_counted_and_left_out(tmp_path: Path, rubbish: bytes) -> None:
    file = tmp_path / "t"
    file.write_bytes(encoded(begun(), tick(1)) + rubbish + b"\n" + encoded(tick(2)))
    found = Found()
    assert numbers(list(read(file, found))) == [1, 2]
    assert (found.unreadable, found.cut_off) == (1, 0)


def test_a_line_that_the_next_run_had_to_end_is_cut_off_and_not_spoiled(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(encoded(begun(), tick(1)) + encoded(tick(2))[:-9] + b"\n" + encoded(begun(BEGAN + 3), tick(4)))
    found = Found()
    assert numbers(list(read(file, found))) == [1, 4]
    assert (found.unreadable, found.cut_off) == (0, 1)


def test_fields_that_are_not_known_yet_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(b'{"type":"Tick","time":1800000001.0,"colour":"blue"}\n')
    assert numbers(list(read(file, Found()))) == [1]


def test_rotated_files_are_read_oldest_first_and_begin_no_other_run(tmp_path: Path) -> None:
    file = tmp_path / "t"
    (tmp_path / "t.2").write_bytes(encoded(begun(), tick(1)))
    (tmp_path / "t.1").write_bytes(encoded(begun(BEGAN + 1), tick(2)))
    file.write_bytes(encoded(begun(BEGAN + 2), tick(3)))
    found = Found()
    lines = list(read(file, found))
    assert numbers(lines) == [1, 2, 3]
    assert [line.type for line in lines].count(BEGUN) == 1
    assert [path.name for path in found.files] == ["t.2", "t.1", "t"]


def test_another_run_in_the_same_file_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(encoded(begun(), tick(1), begun(BEGAN + 2), tick(3)))
    assert [line.type for line in read(file, Found())] == [BEGUN, "Tick", BEGUN, "Tick"]


def test_a_request_that_its_server_did_not_survive_has_failed() -> None:
    first, second = Scene(), Scene()
    first.ask("resp_a", 0.0)
    second.ask("resp_b", 10.0)
    lives = Lives()
    for line in [*first.lines, begun(BEGAN + 5), *second.lines[1:]]:
        lives.feed(line)
    lives.finish()
    assert (lives.all["resp_a"].state, lives.all["resp_a"].reason) == ("finished", "failed")
    assert lives.all["resp_b"].state == "queued"


def test_what_was_rotated_away_is_not_missed(tmp_path: Path) -> None:
    file = tmp_path / "t"
    (tmp_path / "t.2").write_bytes(encoded(begun(), tick(1)))
    file.write_bytes(encoded(begun(), tick(3)))
    assert numbers(list(read(file, Found()))) == [3]


def test_messages_that_were_lost_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(encoded(begun(), TraceLine(LOST, BEGAN, lost=7), TraceLine(LOST, BEGAN, lost=5)))
    found = Found()
    list(read(file, found))
    assert found.lost == 12


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "There is no file"),
        (b"", "is empty"),
        (b"hello\nworld\n", "is not a trace"),
        (b'{"event":"request.finished"}\n', "is not a trace"),
        (b'{"type":"trace.begun","time":1,"format":99}\n', "has format 99"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "t"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TraceError, match=sentence):
        list(read(file, Found()))


# --- while it grows ---


def test_a_tail_waits_for_the_file_and_for_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "t"
    tail = Tail(file)
    assert tail.poll() == []
    whole = encoded(begun(), tick(1), tick(2))
    file.write_bytes(whole[:-5])
    assert numbers(tail.poll()) == [1]
    with file.open("ab") as growing:
        growing.write(whole[-5:])
    assert numbers(tail.poll()) == [2]
    assert tail.poll() == []
    tail.close()


def rotate(file: Path, most: int = 4) -> None:
    for number in range(most, 0, -1):
        older = file.with_name(f"{file.name}.{number}")
        newer = file.with_name(f"{file.name}.{number - 1}") if number > 1 else file
        if newer.exists():
            os.replace(newer, older)


def append(file: Path, *lines: TraceLine) -> None:
    with file.open("ab") as growing:
        growing.write(encoded(*lines))


def test_a_tail_follows_a_rotation_and_misses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "t"
    tail = Tail(file)
    append(file, begun(), tick(1))
    assert numbers(tail.poll()) == [1]
    append(file, tick(2))
    rotate(file)
    append(file, begun(BEGAN + 2), tick(3))
    rotate(file)
    append(file, begun(BEGAN + 3), tick(4))
    lines = tail.poll()
    assert numbers(lines) == [2, 3, 4]
    assert BEGUN not in [line.type for line in lines]
    tail.close()


def test_a_tail_looks_again_when_the_file_is_rotated_and_not_there_yet(tmp_path: Path) -> None:
    file = tmp_path / "t"
    tail = Tail(file)
    append(file, begun(), tick(1))
    assert numbers(tail.poll()) == [1]
    rotate(file)
    assert tail.poll() == []
    append(file, begun(), tick(2))
    assert numbers(tail.poll()) == [2]
    tail.close()


def test_a_tail_begins_again_in_a_file_that_shrank(tmp_path: Path) -> None:
    file = tmp_path / "t"
    tail = Tail(file)
    append(file, begun(), tick(1), tick(2))
    assert numbers(tail.poll()) == [1, 2]
    file.write_bytes(encoded(begun()))
    tail.poll()
    append(file, tick(3))
    assert numbers(tail.poll()) == [3]
    tail.close()


@pytest.mark.parametrize("obeyed", ["\x1b]0;x\x07\x1b[31m", "\x9b31m", "\u202e"], ids=["escape", "csi", "bidi"])
def test_nothing_that_a_terminal_would_obey_is_read_from_a_file(tmp_path: Path, obeyed: str) -> None:
    file = tmp_path / "t"
    bad = f"a{obeyed}b"
    line = TraceLine(
        bad, BEGAN, bad, bad, request=bad, reason=bad, message=bad, chunks=((bad, 0, 1, True),), requests=(bad,)
    )
    file.write_bytes(encoded(begun(), line))
    (*_, read_back) = read(file, Found())
    said = msgspec.json.decode(msgspec.json.encode(read_back), type=TraceLine)
    for text in (said.type, said.from_, said.to, said.request, said.reason, said.message, said.chunks[0][0]):
        assert text is not None
        assert not set(obeyed[:1]) & set(text)
    assert said.requests == (said.request,)
