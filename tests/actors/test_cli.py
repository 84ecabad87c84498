"""The command `rota`: what it says, where, and with which exit code."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors import cli, serving
from actors.config import Config
from actors.engine import EngineStopped

ROOT = Path(__file__).parents[2]


class Served:
    """Stands where the server would be: keeps the settings it was to serve with, or ends as it is told to."""

    def __init__(self) -> None:
        self.settings: list[Config] = []
        self.error: BaseException | None = None

    def serve(self, settings: Config) -> None:
        self.settings.append(settings)
        if self.error is not None:
            raise self.error


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Served:
    """In an empty folder, without a variable of ours."""
    for variable in os.environ:
        if variable.startswith("ROTA_"):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    stand_in = Served()
    monkeypatch.setattr(serving, "serve", stand_in.serve)
    return stand_in


def code_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    return caught.value.code


def test_alone_it_shows_what_it_can_do_and_has_done_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of() == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("usage: rota ")
    assert "load a model and serve it" in shown.out
    assert "open many sockets" in shown.out
    assert shown.err == ""


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("--version") == 0
    assert capsys.readouterr().out == f"rota {importlib.metadata.version('rota')}\n"


@pytest.mark.parametrize("command", [[], ["serve"], ["load"]])
def test_help_is_no_mistake(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(*command, "--help") == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: rota", *command]))


def test_it_serves_with_the_settings_given(served: Served) -> None:
    assert code_of("serve", "--port", "0", "--model", "tiny") == 0
    assert served.settings == [Config(port=0, model="tiny")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-runing", "3"], "--max-runing is not a setting. Did you mean --max-running?"),
        (["--port", "x"], "--port cannot be 'x': it must be a whole number."),
        (["--port", "x", "--prot", "1"], "--prot is not a setting. Did you mean --port?"),
    ],
)
def test_a_setting_that_cannot_be_is_a_sentence_and_code_2(
    arguments: list[str], sentence: str, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("serve", *arguments) == 2
    assert capsys.readouterr().err == f"rota: {sentence}\n"
    assert served.settings == []


def test_a_server_that_cannot_go_on_is_a_sentence_and_code_2(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.error = EngineStopped("There is no such model.")
    assert code_of("serve") == 2
    assert capsys.readouterr().err == "rota: There is no such model.\n"


def test_whoever_interrupts_gets_no_traceback(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.error = KeyboardInterrupt()
    assert code_of("serve") == 130
    assert capsys.readouterr().err == ""


def test_an_unknown_flag_of_load_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("load", "--zzzzzz") == 2
    assert "unrecognized arguments: --zzzzzz" in capsys.readouterr().err


def test_what_only_serving_needs_is_not_imported_to_say_the_version() -> None:
    script = (
        "import sys, contextlib\nfrom actors import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['--version'])\n"
        "print(*(name for name in ('actors.engine', 'actors.serving', 'uvloop', 'torch') if name in sys.modules))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert shown[1:] == [""]


def test_it_makes_a_key_whose_lines_a_server_takes(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("key", "anna") == 0
    made = capsys.readouterr()
    (tmp_path / "keys.toml").write_text(made.out)
    assert code_of("serve", "--keys-file", "keys.toml") == 0
    [key] = [word for word in made.err.split() if word.startswith("rota_")]
    assert served.settings[0].keys.whose(key) == "anna"


def test_keys_of_the_environment_are_not_there_for_the_worker_to_inherit(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_API_KEYS", "anna=hush")
    assert code_of("serve") == 0
    assert served.settings[0].api_keys == ("anna=hush",)
    assert "ROTA_API_KEYS" not in os.environ
