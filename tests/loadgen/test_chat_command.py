"""`rota chat` as a command: its flags, its exit codes, and questions from a pipe."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.chat import add_arguments, run
from tests.loadgen.chat_scripts import Turns, refuses
from tests.loadgen.scripted_server import answer, scripted_server


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(flags)


class Piped:
    """`rota chat` with lines from a pipe, its answers to another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._file = folder / "questions"

    def __call__(self, lines: str, *flags: str) -> int:
        self._file.write_text(lines, "utf-8")
        with self._file.open() as questions:
            self._monkeypatch.setattr("sys.stdin", questions)
            return run(parsed(*flags))


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Piped:
    return Piped(monkeypatch, tmp_path)


def test_each_piped_line_is_a_question_and_the_answers_are_plain_text(
    piped: Piped, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(answer) as server:
        assert piped("One?\n\n/seed 3\nTwo?", server.url, "--system", "Be brief.", "--targets", "ttft=1s") == 0
    said = capsys.readouterr()
    assert said.out == "Hello ✓.\nHello ✓.\n"
    assert "\x1b" not in said.err
    assert [request["input"] for request in server.requests] == ["One?", "Two?"]
    assert [request.get("seed") for request in server.requests] == [None, 3]
    assert server.requests[0]["model"] == "m"
    assert server.requests[0]["instructions"] == "Be brief."
    assert server.requests[0]["targets"] == {"ttft_ms": 1000.0}


def test_a_failed_answer_to_a_pipe_is_an_exit_code(piped: Piped, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(Turns(refuses("model_not_found", "There is no x."))) as server:
        assert piped("One?\nTwo?\n", server.url) == 1
    said = capsys.readouterr()
    assert said.out == "Hello ✓.\n"
    assert "Refused: There is no x." in said.err


def test_whoever_stops_reading_ends_it_without_a_traceback() -> None:
    with scripted_server(answer) as server:
        chat = subprocess.Popen(
            [sys.executable, "-m", "actors.cli", "chat", server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdout.close()
        chat.stdin.write(b"One?\nTwo?\n")
        chat.stdin.close()
        assert chat.stderr is not None
        said = chat.stderr.read().decode()
        chat.stderr.close()
        assert chat.wait(60) == 141
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


def test_who_cannot_talk_at_all_hears_why_in_a_sentence(
    piped: Piped, free_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (
        (f"127.0.0.1:{free_port}",),
        (f"127.0.0.1:{free_port}", "--model", "m"),
        ("example.org",),
        ("ftp://localhost",),
    ):
        assert piped("One?\n", *flags) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_another_machine_is_talked_to_only_on_purpose(piped: Piped, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def model(url: str, key: str | None, timeout_s: float) -> str:
        asked.append(url)
        raise SystemExit(9)

    monkeypatch.setattr("loadgen.chat.first_model", model)
    assert piped("", "example.org") == 2
    assert asked == []
    with pytest.raises(SystemExit):
        piped("", "example.org", "--anywhere")
    assert asked == ["ws://example.org:8000/v1/responses"]


@pytest.mark.parametrize("flag", [("--targets", "soon"), ("--seed", "-1"), ("--temperature", "3")])
def test_a_wrong_flag_is_usage(flag: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*flag)
    assert flag[1] in capsys.readouterr().err


def test_the_key_is_sent(piped: Piped) -> None:
    with scripted_server(answer) as server:
        assert piped("One?\n", server.url, "--key", "k3y") == 0
    assert server.upgrades[0]["Authorization"] == "Bearer k3y"


def test_the_key_is_found_in_the_environment_where_no_list_of_processes_shows_it(
    piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_KEY", "k3y")
    with scripted_server(answer) as server:
        assert piped("One?\n", server.url) == 0
        assert piped("One?\n", server.url, "--key", "other") == 0
    assert [upgrade["Authorization"] for upgrade in server.upgrades] == ["Bearer k3y", "Bearer other"]
