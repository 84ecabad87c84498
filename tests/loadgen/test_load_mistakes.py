import json
import sys
from pathlib import Path

import pytest

from loadgen.command_line import Misuse
from loadgen.load import run
from tests.loadgen.load_command import parsed, rota_load
from tests.loadgen.scripted_server import answer, scripted_server


def test_another_machine_is_loaded_only_on_purpose(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.load.first_model", lambda *a: pytest.fail("it was contacted"))
    assert run(parsed("example.org:8000")) == 2
    assert "example.org is not this machine" in capsys.readouterr().err

    def stop_here(url: str, key: str | None, timeout_s: float) -> str:
        raise Misuse(f"would ask {url}")

    monkeypatch.setattr("loadgen.load.first_model", stop_here)
    assert run(parsed("example.org:8000", "--anywhere")) == 2
    assert capsys.readouterr().err == "would ask ws://example.org:8000/v1/responses\n"


@pytest.mark.parametrize("flags", [(), ("--model", "m")])
def test_no_server_is_one_sentence_and_exit_code_2(
    free_port: int, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parsed(f"127.0.0.1:{free_port}", "--quiet", *flags)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"Nothing answers at ws://127.0.0.1:{free_port}: is `rota serve` running there?")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_server_that_opens_no_socket_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as server:
        server.decline = lambda upgrade: (401, '{"error": {"code": "authentication_failed", "message": "Wrong key."}}')
        assert rota_load(server, sockets=2) == 2
    assert capsys.readouterr().err.endswith(" answers: Wrong key. (Give a key with --key.)\n")


def test_what_a_server_says_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as server:
        server.decline = lambda upgrade: (401, json.dumps({"error": {"message": "Wrong\x1b[2J\x9b key.\r\nOK"}}))
        assert rota_load(server, sockets=2) == 2
        assert capsys.readouterr().err.endswith(" answers: Wrong[2J key. OK (Give a key with --key.)\n")


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        (("--people", "51", "--prompt-tokens", "1000000"), "51,000,000"),
        (("--sockets", "600", "--requests", "100", "--prompt-tokens", "1000"), "60,000,000"),
    ],
)
def test_too_many_prompt_tokens_are_told_before_the_load(
    flags: tuple[str, ...], tokens: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, *flags, sockets=None) == 2
        assert server.requests == []
    assert capsys.readouterr().err == (
        f"The prompts have {tokens} tokens in all, and 50,000,000 is the most that is played: "
        "ask for fewer requests or shorter prompts.\n"
    )


def test_a_redirect_is_not_followed(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as elsewhere, scripted_server(answer) as server:
        server.redirect_to = elsewhere.url.replace("ws://", "http://").replace("/responses", "/models")
        assert rota_load(server, "--key", "secret") == 2
        assert "/v1/models answers: HTTP 307" in capsys.readouterr().err
        server.redirect_to = elsewhere.url
        assert rota_load(server, "--model", "m", sockets=2) == 2
        assert " answers: HTTP 307" in capsys.readouterr().err
    assert elsewhere.upgrades == []


def test_a_file_that_cannot_be_written_is_told_before_the_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, "--json", str(tmp_path / "no" / "figures.json")) == 2
        assert server.requests == []
        assert "there is no folder" in capsys.readouterr().err
        assert rota_load(server, "--json", str(tmp_path)) == 2
        assert server.requests == []
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_the_limit_on_open_files_is_raised_or_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, 128))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    with scripted_server(answer) as server:
        assert rota_load(server) == 0
        assert asked == [(65, 128)]
        assert rota_load(server, sockets=100) == 2
    assert capsys.readouterr().err == (
        "This machine allows a process 128 open files, and 164 are needed: lower --sockets.\n"
    )
