"""`rota trace --follow`: a line for each end, a warning for what is remarkable, through rotations, until Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from loadgen.tracing.command import follow
from loadgen.tracing.follow import KEPT_S, Following
from loadgen.tracing.reading import TraceError
from protocol.trace import BEGUN, FORMAT, TraceLine
from tests.loadgen.tracing.scenes import BEGAN, Scene

A, B, C = "resp_aaaa1111", "resp_bbbb1111", "resp_cccc1111"


def append(file: Path, lines: list[TraceLine]) -> None:
    with file.open("ab") as growing:
        growing.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def followed(file: Path, *happens: Callable[[], object]) -> str:
    """What is printed while these things happen, one before each look."""
    out, left = io.StringIO(), list(happens)

    def more() -> bool:
        if not left:
            return False
        left.pop(0)()
        return True

    follow(file, Console(file=out, width=400, no_color=True), sleep=lambda _: None, more=more)
    return out.getvalue()


def scene() -> Scene:
    made = Scene()
    made.ask(A, 0.0, tokens=100, connection=1)
    at = made.decode(made.prefill(A, 0.01, 100), 10, A)
    made.ask(B, at, tokens=500, connection=2)
    at = made.prefill(B, at + 0.002, 500, chunk=500, beside=(A,))
    at = made.decode(at, 5, A, B)
    made.end(A, at)
    made.end(B, at, "stop")
    made.ask(C, at, connection=3, admitted=False)
    made.refuse(C, at + 0.012, "server_overloaded")
    return made


def told(text: str) -> list[str]:
    return [line.split("  ", 1)[1] for line in text.splitlines() if "  " in line]


def test_ends_refusals_and_long_gaps_are_told_as_they_happen(tmp_path: Path) -> None:
    file = tmp_path / "t"
    lines = scene().lines
    out = followed(file, lambda: None, lambda: append(file, lines[:80]), lambda: append(file, lines[80:]))
    assert out.startswith(f"Waiting for {file}.")
    assert [line.split(",")[0].split(" (")[0] for line in told(out)] == [
        "warning: a gap of resp_aaaa1111",
        "resp_aaaa1111  length",
        "resp_bbbb1111  stop",
        "resp_cccc1111  refused",
    ]
    assert "was a step of 503 ms, 99 % of it resp_bbbb1111's prefill of 500 tokens." in told(out)[0]
    assert "100 tokens in, 17 out, first text 112 ms, longest gap 505 ms. 102 ms of 112 ms" in told(out)[1]
    assert told(out)[3] == "resp_cccc1111  refused (server_overloaded) after 12 ms"


def test_what_was_there_before_is_not_told_but_known(tmp_path: Path) -> None:
    file = tmp_path / "t"
    lines = scene().lines
    ends = next(index for index, line in enumerate(lines) if line.type == "Ended")
    append(file, lines[:ends])
    out = followed(file, lambda: None, lambda: append(file, lines[ends:]))
    assert "Waiting" not in out
    assert "warning" not in out
    assert "resp_bbbb1111  stop, 500 tokens in, 6 out" in out


def test_it_follows_a_rotation(tmp_path: Path) -> None:
    file = tmp_path / "t"
    lines = scene().lines
    begun = [TraceLine(BEGUN, BEGAN, format=FORMAT)]

    def rotate() -> None:
        append(file, lines[50:90])
        os.replace(file, tmp_path / "t.1")
        append(file, begun + lines[90:])

    out = followed(file, lambda: append(file, lines[:50]), rotate)
    assert len(told(out)) == 4
    assert "17 out" in out


def test_a_lost_worker_and_a_preemption_are_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "t"
    made = Scene()
    made.ask(A, 0.0, tokens=100)
    at = made.step(0.01, 0.1, (A, 0, 100, True))
    at = made.step(at, 0.1, (A, 0, 101, True))
    made.lose_worker(at + 0.1)
    made.end(A, at + 0.1, "failed", code="worker_failed")
    out = followed(file, lambda: append(file, made.lines))
    assert "warning: resp_aaaa1111 had been preempted for memory, and is read again." in out
    assert "warning: the worker was lost; what ran has failed, and another is being started." in out
    assert "resp_aaaa1111  failed (worker_failed), 100 tokens in, 2 out" in out


def test_one_whose_last_text_never_comes_is_told_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "t"
    made = Scene()
    made.ask(A, 0.0, tokens=100)
    made.end(A, made.prefill(A, 0.01, 100), text=False)
    out = followed(file, lambda: append(file, made.lines), lambda: None)
    assert out.count("resp_aaaa1111  length") == 1


def test_what_has_ended_long_ago_is_forgotten() -> None:
    following = Following(Console(file=io.StringIO(), width=200))
    made = Scene()
    at = 0.01
    for number in range(60):
        request = f"resp_{number:04d}"
        made.ask(request, at, tokens=10)
        at = made.decode(made.prefill(request, at + 0.002, 10), 50, request, took_s=0.1)
        made.end(request, at)
    for line in made.lines:
        following.feed(line)
    kept = [life for life in following.lives.all.values() if life.over_at is not None]
    assert 1 < len(kept) <= KEPT_S / 5 + 2
    assert len(following.lives.device.steps) < 1024 + 400


def test_what_is_no_trace_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_bytes(b"some text\n")
    with pytest.raises(TraceError, match="is not a trace"):
        followed(file, lambda: None)


def test_ctrl_c_ends_it_quietly_with_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "actors.cli", "trace", str(tmp_path / "t"), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"Waiting for" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")
