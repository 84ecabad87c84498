"""The check that needs a GPU, tried without one."""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.gpu import check
from tests.gpu.findings import Finding, shown

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gpu.check", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False)


def of(parts: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
    """Runs these in place of the check's own parts: the exit code and the JSON that it wrote."""
    monkeypatch.setattr(check, "PARTS", {f"made_up.{name}": limit_s for name, limit_s in parts.items()})
    code = check.main(["--smoke", "--only", ",".join(check.PARTS), "--out", str(tmp_path)])
    [file] = tmp_path.glob("*.json")
    return code, json.loads(file.read_text())


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_sentence() -> None:
    tried = run()
    assert (tried.returncode, tried.stdout) == (2, "")
    assert tried.stderr.startswith("The check needs a CUDA GPU, and torch sees none here")
    assert tried.stderr.count("\n") == 1


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "NEEDED", ("torch", "no-such-package"))
    assert check.main(["--smoke"]) == 2
    assert "The check needs no-such-package, which this Python does not have" in capsys.readouterr().err


def test_every_part_finds_what_it_is_for_with_tiny_shapes_on_a_cpu(tmp_path: Path) -> None:
    tried = run("--smoke", "--limits", "5", "--out", str(tmp_path))
    assert tried.returncode == 0, tried.stdout + tried.stderr
    [file] = tmp_path.glob("*.json")
    told = json.loads(file.read_text())
    assert [part["name"] for part in told["parts"]] == list(check.PARTS)
    for part in told["parts"]:
        assert part["findings"], part
        assert all(math.isfinite(it["value"]) for it in part["findings"]), part
    assert file.with_suffix(".txt").read_text() == tried.stdout
    assert "1 sockets" not in tried.stdout
    assert all(f"\n{part.upper()}" in tried.stdout for part in check.PARTS)


def test_a_part_that_fails_leaves_what_it_found_and_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = of({"fails": 60.0, "finds": 60.0}, tmp_path, monkeypatch)
    assert code == 1
    fails, finds = told["parts"]
    assert fails["failed"] == "ended with code 1: RuntimeError: the device is on fire"
    assert [it["name"] for it in fails["findings"]] == ["found before it failed"]
    assert len(finds["findings"]) == 3
    assert "Failed: made_up.fails." in capsys.readouterr().out


def test_a_part_that_does_not_end_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = of({"hangs": 8.0}, tmp_path, monkeypatch)
    assert code == 1
    [hangs] = told["parts"]
    assert hangs["failed"] == "did not end within 8 s"
    [child] = hangs["findings"]
    until = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        killed = psutil.Process(int(child["value"]))
        while killed.status() != psutil.STATUS_ZOMBIE:  # a busy system takes its time to end whom it was told to kill
            assert time.monotonic() < until, "it was left"
            time.sleep(0.01)


def test_what_there_is_no_time_for_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "ALL_S", 0.0)
    code, told = of({"finds": 60.0}, tmp_path, monkeypatch)
    assert code == 1
    assert told["parts"][0]["failed"] == "not begun: 0 s had gone by"


def test_a_figure_that_is_not_as_wanted_is_named_but_no_speed_in_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = of({"finds": 60.0}, tmp_path, monkeypatch)
    assert code == 1
    assert [it["met"] for it in told["parts"][0]["findings"]] == [True, False, False]
    said = capsys.readouterr().out
    assert "Not as wanted: too much.\n" in said
    [row] = [line for line in said.splitlines() if line.startswith("too much")]
    assert row.split() == ["too", "much", "2", "of", "norm", "<=", "1", "NO", "a", "note"]


def test_what_is_no_number_meets_nothing() -> None:
    assert Finding("", math.nan, "", most=1.0).met is False
    assert Finding("", math.nan, "", least=1.0).met is False
    assert Finding("", 1.0, "", most=1.0).met is True
    assert Finding("", 1.0, "").met is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.98765, "0.988"), (1234567.8, "1,234,568"), (4.2e-6, "4.2e-06"), (math.nan, "nan"), (None, "")],
)
def test_figures_are_shown_with_as_many_digits_as_mean_something(value: float | None, text: str) -> None:
    assert shown(value) == text
