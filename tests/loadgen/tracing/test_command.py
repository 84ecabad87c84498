"""`rota trace` as it is typed: what it prints, and its exit code."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors import cli
from loadgen.tracing.report import LifeReport
from protocol.trace import BEGUN, FORMAT, TraceLine
from tests.loadgen.tracing.scenes import BEGAN, Scene
from tests.loadgen.tracing.test_perfetto import check

A, B, C = "resp_aaaa1111", "resp_bbbb1111", "resp_bbcc1111"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def scene() -> Scene:
    """A reads, B's prompt of 2,000 tokens comes, C queues behind it."""
    scene = Scene()
    scene.ask(A, 0.0, tokens=100, connection=1)
    at = scene.decode(scene.prefill(A, 0.01, 100), 10, A)
    scene.ask(B, at - 0.005, tokens=2000, connection=2)
    scene.ask(C, at + 0.1, tokens=50, connection=3)
    at = scene.prefill(C, scene.prefill(B, at, 2000, chunk=500), 50)
    at = scene.decode(at, 10, A, B, C)
    for request in (A, B, C):
        scene.end(request, at)
    return scene


@pytest.fixture
def file(scene: Scene, tmp_path: Path) -> Path:
    return scene.write(tmp_path / "trace.jsonl")


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def rota(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            cli.main(["trace", *map(str, arguments)])
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_the_summary_says_what_is_in_the_trace(rota: Any, file: Path, scene: Scene) -> None:
    ran = rota(file)
    assert ran.code == 0
    assert f"{len(scene.lines) - 1:,} messages, 3 requests (3 finished), 26 steps." in ran.out
    assert re.search(r"StepDone +52 ", ran.out)
    assert "waited longest in" in ran.out
    assert "resp_bbcc  1.91 s of 1.96 s to the first token was queueing behind resp_bbbb's prefill (2,000" in ran.out
    assert f"rota trace {file} --request resp_bbbb" in ran.out


def test_a_cut_off_line_rubbish_and_rotated_files_are_said_and_no_error(
    rota: Any, scene: Scene, tmp_path: Path
) -> None:
    whole = [msgspec.json.encode(line) + b"\n" for line in scene.lines]
    begun = msgspec.json.encode(TraceLine(BEGUN, BEGAN + 0.1, format=FORMAT)) + b"\n"
    file = tmp_path / "t"
    (tmp_path / "t.1").write_bytes(b"".join(whole[:60]))
    file.write_bytes(begun + b"".join(whole[60:200]) + b"rubbish\n" + b"".join(whole[200:]) + whole[50][:30])
    ran = rota(file)
    assert ran.code == 0
    assert "in 2 files" in ran.out
    assert "t.1, t." in ran.out
    assert "The last line is cut off" in ran.out
    assert "nothing could be made of it: 1 line." in ran.out
    (tmp_path / "t.1").unlink()
    ran = rota(file)
    assert ran.code == 0
    assert "1 request began before what is left of the trace" in ran.out


@pytest.mark.parametrize("part", ["resp_bbbb1111", "resp_bbb", "bbb", "b1111"])
def test_a_request_is_found_by_a_part_of_its_id(rota: Any, file: Path, part: str) -> None:
    ran = rota(file, "--request", part)
    assert ran.code == 0
    assert "resp_bbbb1111: finished" in ran.out
    assert "prefill chunk 4 of 4: 500 tokens from 1,500" in ran.out
    assert "2.01 s of 2.01 s to the first token was its own prefill: 2,000 tokens in 4 chunks." in ran.out


def test_the_longest_gap_says_who_held_the_device(rota: Any, file: Path) -> None:
    out = rota(file, "--request", "aaaa").out
    assert re.search(r"The longest gap, 2\.0\d s at \d\d:\d\d:\d\d\.\d{3}, was 6 steps \(5 without it\), 9\d %", out)
    assert "of it resp_bbbb's prefill of 2,000 tokens." in out


def test_a_request_that_is_not_there_names_near_ones(rota: Any, file: Path) -> None:
    ran = rota(file, "--request", "resp_bbx")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "rota: No request's id holds 'resp_bbx'. The trace has 3; the nearest: resp_bbbb, resp_bbcc and resp_aaaa.\n"
    )
    ran = rota(file, "--request", "bb")
    assert ran.code == 2
    assert "is part of the ids of 2 requests: resp_bbbb and resp_bbcc. Name one of them." in ran.err


def test_the_slowest_are_a_table_and_the_slowest_one_a_timeline(rota: Any, file: Path) -> None:
    out = rota(file, "--slowest", 2).out
    assert "resp_bbbb" in out
    assert "resp_bbcc" in out
    assert "resp_aaaa1111" not in out
    assert "received on connection" not in out
    assert "resp_bbbb1111: finished" in rota(file, "--slowest", 1).out


@pytest.mark.parametrize("form", ["offset", "clock", "iso", "unix"])
def test_a_moment_can_be_written_in_four_ways(rota: Any, file: Path, form: str) -> None:
    from datetime import datetime

    at = BEGAN + 0.5
    text = {
        "offset": "+0.5",
        "clock": datetime.fromtimestamp(at).strftime("%H:%M:%S.%f"),
        "iso": datetime.fromtimestamp(at).isoformat(),
        "unix": str(at),
    }[form]
    ran = rota(file, "--around", text, "--window", "0.4")
    assert ran.code == 0, ran.err
    assert "Of the device's time: 100 % resp_bbbb's prefill." in ran.out
    assert "resp_bbbb's prefill of 500" in ran.out
    assert re.search(r"resp_aaaa +decoding", ran.out)
    assert re.search(r"resp_bbbb +prefilling", ran.out)
    assert "connection 3 to tokeniser: Ask of resp_bbcc" in ran.out


@pytest.mark.parametrize(("text", "why"), [("+99", "the trace goes from"), ("noon", "is no time")])
def test_a_moment_that_is_none_or_elsewhere_is_refused(rota: Any, file: Path, text: str, why: str) -> None:
    ran = rota(file, "--around", text)
    assert ran.code == 2
    assert why in ran.err


def test_json_holds_the_parts_and_the_sentences(rota: Any, file: Path) -> None:
    [found] = msgspec.json.decode(rota(file, "--request", "bbcc", "--json").out, type=list[LifeReport])
    assert found.request == C
    assert sum(found.parts_ms.values()) == pytest.approx(found.ttft_ms, abs=0.01)
    assert found.causes[0].kind == "prefills"
    assert found.sentences[0].startswith("1.91 s of 1.96 s")
    assert len(json.loads(rota(file, "--json").out)) == 3
    assert len(json.loads(rota(file, "--slowest", "2", "--json").out)) == 2


def test_perfetto_is_written_beside_whatever_is_shown(rota: Any, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran = rota(file, "--perfetto", out)
    assert ran.code == 0
    assert "out.json is written" in ran.out
    assert len(check(out.read_text()).traceEvents) > 300
    ran = rota(file, "--perfetto", tmp_path / "nowhere" / "out.json")
    assert ran.code == 2
    assert "cannot be written" in ran.err


@pytest.mark.parametrize("content", [None, b"", b"some text\n"])
def test_what_is_no_trace_is_a_sentence_and_exit_code_2(rota: Any, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    ran = rota(tmp_path / "t")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("rota: ")
    assert ran.err.count("\n") == 1


def test_a_trace_without_requests_is_summarised_too(rota: Any, tmp_path: Path) -> None:
    file = Scene().write(tmp_path / "t")
    assert "3 messages, 0 requests, 0 steps." in rota(file).out
    assert rota(file, "--slowest", 1).code == 2
    assert rota(file, "--request", "a").err == "rota: The trace holds no request.\n"


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.1", "./trace.jsonl"])
def test_a_trace_is_not_written_over_by_what_is_made_of_it(rota: Any, file: Path, name: str) -> None:
    (older := file.with_name("trace.jsonl.1")).write_bytes(file.read_bytes())
    before = file.read_bytes()
    ran = rota(file, "--perfetto", file.parent / name)
    assert ran.code == 2
    assert "is a file of the trace itself: name another." in ran.err
    assert file.read_bytes() == older.read_bytes() == before


def test_a_window_around_nothing_is_refused(rota: Any, file: Path) -> None:
    ran = rota(file, "--window", 3)
    assert ran.code == 2
    assert "--around" in ran.err
