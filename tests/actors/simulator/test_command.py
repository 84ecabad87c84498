"""`rota simulate`: what it prints, what it writes, and the sentence when it cannot."""

import json
from pathlib import Path

import pytest

from actors import cli
from actors.simulator.hardware import as_toml
from tests.actors.simulator.plain import PLAIN

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{second:02}.0000000,{200 + 10 * second},{3 + second % 4}\n" for second in range(0, 60, 2)
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "trace.csv"
    file.write_text(TRACE, encoding="utf-8")
    return str(file)


@pytest.fixture
def plain(tmp_path: Path) -> str:
    file = tmp_path / "plain.toml"
    file.write_text(as_toml(PLAIN), encoding="utf-8")
    return str(file)


def code_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(["simulate", *arguments])
    return caught.value.code


def test_the_laptops_stand_side_by_side_under_all_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("laptops") == 0
    shown = capsys.readouterr()
    assert "laptops on laptop, simulated: 3 requests, 12,500 tokens in" in shown.out
    assert " out; targets: first token " in shown.out
    for policy in ("slack", "fixed_chunk", "decode_first", "prefill_first"):
        assert policy in shown.out
    assert shown.err == ""


def test_figures_and_pictures_are_written(tmp_path: Path, plain: str, trace: str) -> None:
    files = [tmp_path / name for name in ("out.svg", "out.html", "out.json")]
    flags = [argument for file in files for argument in (f"--{file.suffix[1:]}", str(file))]
    assert code_of(trace, "--hardware", plain, "--policies", "slack,prefill-first", *flags) == 0
    assert files[0].read_text(encoding="utf-8").startswith("<svg")
    assert "<svg" in files[1].read_text(encoding="utf-8")
    figures = json.loads(files[2].read_text(encoding="utf-8"))
    assert figures["scenario"] == "trace"
    assert [policy["policy"] for policy in figures["policies"]] == ["slack", "prefill_first"]
    assert [policy["finished"] for policy in figures["policies"]] == [30, 30]


def test_a_file_that_cannot_be_written_is_found_out_before_and_others_are_left_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.svg"
    old.write_text("kept", encoding="utf-8")
    assert code_of("laptops", "--svg", str(new), "--json", str(old), "--html", str(tmp_path)) == 2
    assert capsys.readouterr().out == ""
    assert old.read_text(encoding="utf-8") == "kept"
    assert not new.exists()


def test_a_part_of_a_trace_can_be_made_faster_longer_and_stricter(tmp_path: Path, plain: str, trace: str) -> None:
    file = tmp_path / "out.json"
    part = ("--first", "2", "--count", "5", "--rate", "2", "--tokens", "0.5", "--targets", "ttft=300ms,itl=none")
    assert code_of(trace, "--hardware", plain, "--policies", "slack", *part, "--json", str(file)) == 0
    (policy,) = json.loads(file.read_text(encoding="utf-8"))["policies"]
    lives = policy["per_request"]
    assert [life["prompt_tokens"] for life in lives] == [120, 130, 140, 150, 160]
    assert [life["arrived_s"] for life in lives] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert {(life["ttft_target_s"], life["itl_target_s"]) for life in lives} == {(0.3, None)}


def test_the_bounds_of_the_waiting_room_are_those_given(tmp_path: Path, plain: str, trace: str) -> None:
    file = tmp_path / "out.json"
    bounds = ("--max-running", "1", "--max-waiting", "0", "--rate", "1000")
    assert code_of(trace, "--hardware", plain, "--policies", "slack", *bounds, "--json", str(file)) == 0
    (policy,) = json.loads(file.read_text(encoding="utf-8"))["policies"]
    assert policy["not_finished"]["server_overloaded"] > 20


def test_find_rate_tells_how_many_devices_a_load_takes(
    plain: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(trace, "--hardware", plain, "--policies", "fixed_chunk", "--find-rate", "--load", "10") == 0
    shown = capsys.readouterr().out
    assert "plains for 10/s" in shown
    (row,) = (line.split() for line in shown.splitlines() if line.strip().startswith("fixed_chunk") and "%" in line)
    per_s, devices = float(row[3]), int(row[5])
    assert (devices - 1) * per_s < 10 <= devices * per_s * 1.01


def test_a_rate_at_which_all_came_within_a_minute_is_marked_and_sure_of_no_number(
    plain: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(trace, "--hardware", plain, "--policies", "fixed_chunk", "--find-rate", "--load", "10") == 0
    shown = capsys.readouterr().out
    (row,) = (line.split() for line in shown.splitlines() if line.strip().startswith("fixed_chunk") and "%" in line)
    assert (row[1], row[6:]) == ("*", ["or", "more"])
    assert "* fixed_chunk: at that rate all 30 requests have arrived within " in shown
    assert "requests or more (--count)." in shown


def test_a_rate_that_has_lasted_stands_unmarked_with_its_number(
    plain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slow.csv"
    rows = (f"2023-11-16 18:{minute:02}:00,200,50\n" for minute in range(60))
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows), encoding="utf-8")
    slow = ("--max-running", "1", "--max-waiting", "2", "--targets", "ttft=3s,itl=none")
    assert code_of(str(file), "--hardware", plain, "--policies", "fixed_chunk", "--find-rate", *slow) == 0
    shown = capsys.readouterr().out
    assert "fixed_chunk" in shown
    assert "*" not in shown
    assert "or more" not in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Name a scenario, such as laptops, or a file with --calibrate, but not both."),
        (["laptops", "--calibrate", "x.toml"], "but not both."),
        (["laptop"], "There is no scenario 'laptop': did you mean laptops"),
        (["laptops", "--hardware", "h2000"], "There is no hardware 'h2000'"),
        (["laptops", "--tokens", "2"], "--tokens is for a .csv trace, and laptops is none."),
        (["laptops", "--load", "2"], "--load is for --find-rate."),
        (["laptops", "--model", "x"], "--model is for --calibrate"),
        (["laptops", "--find-rate"], "laptops has no rate: all that it has arrives at once."),
        (["laptops", "--find-rate", "--svg", "x.svg"], "leave out --svg."),
        (["laptops", "--svg", "/nowhere/at/all/x.svg"], "there is no folder /nowhere/at/all."),
        (["laptops", "--json", "/"], "/ cannot be written: Is a directory."),
        (["laptops", "--json", "/sys/version.json"], "/sys/version.json cannot be written: "),
        (["laptops", "--svg", "x.out", "--html", "./x.out"], "--svg and --html name the same file: x.out."),
        (["nowhere.csv"], "The trace nowhere.csv cannot be read"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("rota: ")
    assert shown.err.count("\n") == 1
    assert sentence in shown.err


def test_a_trace_is_one_in_capital_letters_too(plain: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    loud = Path(trace).rename(Path(trace).with_name("TRACE.CSV"))
    assert code_of(str(loud), "--hardware", plain, "--policies", "slack", "--count", "2") == 0
    assert "TRACE on plain, simulated: 2 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policies", "slak"], "'slak' is none of slack, fixed_chunk, decode_first, prefill_first"),
        (["--rate", "0"], "0 is not between 1e-06 and 1e+06"),
        (["--rate", "x"], "'x' is not a number"),
        (["--max-running", "0"], "0 is less than 1"),
        (["--seed", "1.5"], "'1.5' is not a whole number"),
        (["--targets", "ttft=5s,gap=1s"], "'gap=1s' is not like ttft=5s, itl=500ms or itl=none"),
    ],
)
def test_an_argument_that_cannot_be_is_named(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("laptops", *arguments) == 2
    assert sentence in capsys.readouterr().err
