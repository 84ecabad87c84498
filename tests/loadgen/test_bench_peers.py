import argparse
import os
import signal
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from loadgen import bench_peers, own_server
from loadgen.bench_peers import Bench, Engine, default_weights, main, run
from loadgen.client import Unreachable
from loadgen.command_line import Misuse
from loadgen.figures import Load
from loadgen.peer_process import running
from loadgen.peers import PORT, HttpPeer, Missing, PipePeer, find
from tests.loadgen.scripted_server import answer, scripted_server

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.loadgen.fake_peer", "--port", PORT)
LIMIT_S = 60.0
"""Of a start. Nothing here waits for it."""


def peer(name: str = "vLLM", ill: str = "", lives: Path | None = None) -> HttpPeer:
    held = {} if lives is None else {"ROTA_FAKE_PEER_LIVES": str(lives)}
    return HttpPeer(name, COMMAND, "m", {"PYTHONPATH": str(ROOT), "ROTA_FAKE_PEER": ill, **held})


def engine(name: str, ill: str = "") -> Engine:
    return Engine(name, partial(running, peer(name, ill), LIMIT_S))


def load(streams: int, each: int = 1) -> Load:
    return Load(
        url="",
        model="",
        sockets=streams,
        requests_per_socket=each,
        max_output_tokens=5,
        ignore_eos=True,
        temperature=0.0,
        prompt_tokens=60,
        warmup=0,
        seed=0,
        timeout_s=60.0,
    )


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_peers.add_arguments(parser)
    return parser.parse_args(["--streams", "1,2", "--rounds", "2", "--max-output-tokens", "5", *flags])


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    """A named pipe, to be held open by whoever lives."""
    pipe = tmp_path / "lives"
    os.mkfifo(pipe)
    return pipe


# -- one peer


async def test_a_peer_is_waited_for_measured_and_ended() -> None:
    async with running(peer(), LIMIT_S) as measure:
        report = await measure(load(2, 3))
    assert (report.load.api, report.load.model) == ("chat", "m")
    assert (report.requests.finished, report.tokens.output) == (6, 30)
    assert report.all_finished


async def test_a_field_that_a_peer_refuses_is_not_sent() -> None:
    refuses = msgspec.structs.replace(peer(), ignore_eos=False)
    async with running(refuses, LIMIT_S) as measure:
        assert not (await measure(load(1))).load.ignore_eos


async def test_a_peer_that_clings_to_life_is_ended_with_its_child_when_the_block_fails(
    lives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.child.LEAVE_S", 0.1)
    reading = os.open(lives, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ZeroDivisionError):
        async with running(peer(ill="clings", lives=lives), LIMIT_S):
            raise ZeroDivisionError
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b"", "nobody holds the pipe any more"
    os.close(reading)


@pytest.mark.parametrize(
    ("ill", "start_s", "said"),
    [
        ("dies", LIMIT_S, r"^vLLM ended before its time: No such model\.$"),
        ("loads", 1.0, r"^vLLM was not ready after 1 s"),
    ],
)
async def test_a_peer_that_does_not_start_is_told_in_its_own_words(ill: str, start_s: float, said: str) -> None:
    with pytest.raises(Unreachable, match=said):
        async with running(peer(ill=ill), start_s):
            pytest.fail("it was not ready")


async def test_a_command_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(Unreachable, match=r"^vLLM cannot be started: "):
        async with running(HttpPeer("vLLM", ("/no/such/vllm",), "m"), LIMIT_S):
            pytest.fail("it was not ready")


# -- a peer that is asked in lines of JSON


def piped(script: str) -> PipePeer:
    return PipePeer("OpenVINO", (sys.executable, "-c", script))


async def test_openvinos_script_answers_every_prompt_of_every_stream() -> None:
    script = str(ROOT / "loadgen/openvino_lines.py")
    here = {"PYTHONPATH": str(ROOT / "tests/loadgen")}  # where there is an openvino_genai
    async with running(PipePeer("OpenVINO", (sys.executable, script, "exported"), here), LIMIT_S) as measure:
        report = await measure(load(3, 2))
        assert (await measure(load(1))).requests.finished == 1, "it can be asked again"
    assert report.all_finished
    assert (report.requests.finished, report.tokens.output) == (6, 30)
    assert report.tokens.input > 6 * 20
    assert [(one.socket, one.number) for one in report.per_request] == [(s, n) for s in range(3) for n in range(2)]
    assert report.client.gap_ms is not None
    assert report.client.gap_ms.count == 6 * 4


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "print('{}'); import sys; sys.stdin.readline(); sys.exit('Out of memory.')",
            "ended before its time: Out of m",
        ),
        ("print('{}'); input(); print('What?', flush=True); input()", "OpenVINO does not answer as it should"),
        ("print('{}', flush=True); input(); input()", "OpenVINO did not answer within 1 s"),
    ],
)
async def test_a_script_that_does_not_answer_is_a_sentence(script: str, said: str) -> None:
    with pytest.raises(Unreachable, match=said):
        async with running(piped(script), LIMIT_S) as measure:
            await measure(msgspec.structs.replace(load(1), timeout_s=1.0))


# -- all of them


def test_engines_take_turns_and_the_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    args = parsed("--json", str(file))
    missing = [Missing("llama.cpp", "there is no /x/llamacpp/bin/llama-server")]
    assert run(args, tmp_path, [engine("rota"), engine("vLLM")], missing) == 0
    bench = msgspec.json.decode(file.read_bytes(), type=Bench)
    turns = [(one.round, one.engine, one.streams) for one in bench.measured]
    assert turns == [(r, name, n) for r in (0, 1) for name in ("rota", "vLLM") for n in (1, 2)]
    assert bench.missing == missing
    assert bench.failed == {}
    loads = [one.report.load for one in bench.measured]
    assert [one.requests_per_socket for one in loads[:2]] == [4, 2]
    assert loads[0].seed == loads[2].seed, "every engine gets the same prompts"
    assert len({one.seed for one in loads}) == 4, "and no load those of another"
    printed = capsys.readouterr()
    table = [line for line in printed.out.splitlines() if "vLLM" in line and "│" in line]
    assert len(table) == 2
    assert all(line.count(" x)") == 4 for line in table)
    assert "llama.cpp is not installed: there is no /x/llamacpp/bin/llama-server" in printed.out
    assert "round 2 of 2: starting vLLM" in printed.err


@pytest.mark.parametrize(
    ("ill", "said"),
    [
        ("dies", "vLLM was not measured to the end. vLLM ended before its time: No such model."),
        ("breaks", "vLLM, 2 streams: 0 of 4 requests finished (connection_closed)."),
    ],
)
def test_an_engine_that_goes_wrong_costs_the_others_nothing(
    ill: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parsed("--rounds", "1"), tmp_path, [engine("vLLM", ill), engine("rota")], []) == 1
    printed = capsys.readouterr().out
    assert said in printed
    assert "│ rota" in printed


def test_an_interrupt_ends_the_peer_and_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A shell that runs the tests in the background has them ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run(parsed("--rounds", "1"), tmp_path, [engine("rota"), engine("vLLM", "interrupts")], []) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    printed = capsys.readouterr().out
    assert "│ rota" in printed
    assert "Stopped by hand." in printed


def test_nothing_measured_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parsed(), tmp_path, [engine("vLLM", "dies")], []) == 2
    assert "No such model." in capsys.readouterr().out


def test_from_the_command_line_rota_and_what_is_installed_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, vllm = tmp_path / "tiny", tmp_path / "peers/vllm/bin/vllm"
    weights.mkdir()
    vllm.parent.mkdir(parents=True)
    vllm.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.loadgen.fake_peer "$@"\n')
    vllm.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with scripted_server(answer) as server:
        ready = f'{{"event": "engine.ready", "url": "{server.url}", "model": "m"}}'
        pause = f"import signal, sys\nprint({ready!r}, file=sys.stderr, flush=True)\nsignal.pause()"
        monkeypatch.setattr(own_server, "COMMAND", (sys.executable, "-c", pause))
        flags = ("--peers", str(tmp_path / "peers"), "--model", str(weights), "--streams", "2", "--rounds", "1")
        assert main([*flags, "--only", "rota,vllm,llama"]) == 0
    printed = capsys.readouterr().out
    assert "│ rota" in printed
    assert "│ vLLM" in printed
    assert f"llama.cpp is not installed: there is no {tmp_path}/peers/llamacpp/bin/llama-server" in printed
    assert "transformers" not in printed, "--only"


def test_a_peer_needs_its_weights_in_its_own_form(tmp_path: Path) -> None:
    home, weights = tmp_path / "peers", tmp_path / "tiny"
    (home / "llamacpp/bin").mkdir(parents=True)
    (home / "llamacpp/bin/llama-server").touch()
    _, missing = find(home, weights)
    assert Missing("llama.cpp", f"there is no {home}/llamacpp/tiny.gguf") in missing
    (home / "llamacpp/tiny.gguf").touch()
    found, _ = find(home, weights)
    assert [one.name for one in found] == ["llama.cpp"]
    assert PORT in found[0].command


@pytest.mark.parametrize("flags", [("--only", "mine"), ("--streams", "0"), ("--streams", "1,x"), ("--rounds", "0")])
def test_a_value_that_cannot_be_is_a_usage_error(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed(*flags)
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_the_default_weights_are_the_latest_that_rota_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Misuse, match="make serve"):
        default_weights()
    for age, name in enumerate(("SmolLM2-135M-Instruct-9", "SmolLM2-135M-Instruct-1")):
        folder = tmp_path / "rota/models" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
        os.utime(folder, (age, age))
    assert default_weights().name == "SmolLM2-135M-Instruct-1"
