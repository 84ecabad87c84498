import asyncio
import json
import sys
import threading
from pathlib import Path

import pytest
from websockets.sync.server import ServerConnection

from loadgen import own_server
from loadgen.asked import asked
from loadgen.command_line import DEFAULT_SERVER, DEFAULT_URL, server_url
from loadgen.figures import Load
from loadgen.load import measure, run
from loadgen.progress import Board
from tests.loadgen.load_command import figures, parsed, rota_load
from tests.loadgen.scripted_server import (
    Body,
    answer,
    begin,
    end,
    refusal,
    say,
    scripted_server,
    wait_for_the_client,
)


@pytest.fixture
def figures_file(tmp_path: Path) -> Path:
    return tmp_path / "figures.json"


# -- what is sent


def test_the_defaults_are_those_of_the_help() -> None:
    args = parsed()
    assert (args.url, args.scenario, args.rate, args.rates, args.idle) == (DEFAULT_SERVER, None, None, None, 0)
    assert (server_url(args.url, args.api), args.api) == (DEFAULT_URL, "responses")
    assert (args.ignore_eos, args.temperature, args.prompt, args.prompts) == (True, 0.0, None, None)
    assert (args.warmup, args.timeout_s, args.key, args.model, args.json, args.quiet) == (
        1,
        300.0,
        None,
        None,
        None,
        False,
    )
    [(load, scene)] = asked(args, 7)
    assert (load.sockets, load.requests_per_socket, load.max_output_tokens, load.prompt_tokens) == (16, 1, 64, 140)
    assert (load.seed, scene.name, scene.arrivals) == (7, None, "together")


@pytest.mark.parametrize(
    "flags",
    [
        ("--sockets", "0"),
        ("--sockets", "many"),
        ("--requests", "0"),
        ("--max-output-tokens", "0"),
        ("--temperature", "2.1"),
        ("--temperature", "nan"),
        ("--prompt-tokens", "0"),
        ("--warmup", "-1"),
        ("--timeout-s", "0"),
        ("--timeout-s", "inf"),
        ("--timeout-s", "soon"),
        ("--prompt", "x", "--prompt-tokens", "9"),
    ],
)
def test_a_value_out_of_bounds_is_a_usage_error(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed(*flags)
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_each_socket_sends_its_requests_and_no_two_prompts_are_alike() -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, "--requests", "3", sockets=4, warmup=2) == 0
    assert len(server.upgrades) == 5, "the warm-up has a socket of its own"
    assert len(server.requests) == 14
    assert len({request["input"] for request in server.requests}) == 14
    for request in server.requests:
        assert request["model"] == "m"
        assert (request["max_output_tokens"], request["temperature"], request["ignore_eos"]) == (64, 0.0, True)


def test_flags_reach_the_wire() -> None:
    flags = ("--max-output-tokens", "7", "--no-ignore-eos", "--temperature", "0.5", "--model", "n", "--prompt", "Hi.")
    with scripted_server(answer) as server:
        server.models = (500, "")
        assert rota_load(server, *flags, "--key", "secret") == 0
    assert server.requests == [
        {"type": "response.create", "model": "n", "input": "Hi.", "max_output_tokens": 7, "temperature": 0.5}
    ]
    assert server.upgrades[0]["Authorization"] == "Bearer secret"


def test_prompts_are_as_long_as_asked() -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, "--prompt-tokens", "1000") == 0
    assert 700 < len(server.requests[0]["input"].split()) < 800


def test_a_seed_repeats_a_runs_prompts_and_no_seed_does_not() -> None:
    with scripted_server(answer) as server:
        for flags in (("--seed", "7"), ("--seed", "7"), (), ()):
            assert rota_load(server, *flags) == 0
    first, second, third, fourth = (request["input"] for request in server.requests)
    assert first == second
    assert len({second, third, fourth}) == 3


def test_all_sockets_are_open_before_the_first_request_is_sent() -> None:
    upgrades_at_first_request: list[int] = []
    everyone_is_here = threading.Barrier(8)

    def answer_all_at_once(connection: ServerConnection, request: Body) -> None:
        upgrades_at_first_request.append(len(server.upgrades))
        everyone_is_here.wait(5)  # breaks unless eight requests are under way together
        answer(connection, request)

    with scripted_server(answer_all_at_once) as server:
        assert rota_load(server, sockets=8) == 0
    assert upgrades_at_first_request == [8] * 8


# -- what comes of it


def test_figures_go_to_the_table_and_to_json(figures_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, "--requests", "2", "--json", str(figures_file), sockets=3, warmup=1) == 0
    report = figures(figures_file)
    assert report.format == 2
    assert report.stopped_by == "finished"
    assert (report.load.url, report.load.model, report.load.warmup) == (server.url, "m", 1)
    assert (report.sockets.asked, report.sockets.opened, report.sockets.dropped) == (3, 3, 0)
    assert (report.requests.planned, report.requests.finished) == (6, 6)
    assert report.requests.by_finish_reason == {"length": 6}
    assert (report.tokens.input, report.tokens.output) == (54, 18), "the warm-up is not counted"
    assert report.wall_s is not None
    assert report.tokens.output_per_s == pytest.approx(18 / report.wall_s)
    assert report.client.ttft_ms is not None
    assert report.client.ttft_ms.count == 6
    assert report.client.gap_ms is not None
    assert report.client.gap_ms.count == 12
    assert report.server.ttft_ms is not None
    assert report.server.ttft_ms.worst == 55.0
    assert [(one.socket, one.number) for one in report.per_request] == [(s, n) for s in range(3) for n in range(2)]
    assert all(one.chunks == 3 and one.output_tokens == 3 for one in report.per_request)
    printed = capsys.readouterr()
    assert "first text (TTFT)" in printed.out
    assert "6 of 6 requests finished (6 length)." in printed.out
    assert printed.err == "", "--quiet"


def test_without_quiet_progress_is_told_on_stderr_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.progress.PLAIN_EVERY_S", 0.0)
    with scripted_server(answer) as server:
        assert run(parsed(server.url, "--sockets", "1")) == 0
    printed = capsys.readouterr()
    assert "sockets open" in printed.err
    assert "sockets open" not in printed.out


def test_the_key_is_in_no_output(figures_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, "--key", "hush-hush", "--json", str(figures_file)) == 0
    assert "hush-hush" not in figures_file.read_text() + "".join(capsys.readouterr())


def test_a_refusal_is_counted_with_its_code(figures_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(connection: ServerConnection, request: Body) -> None:
        say(connection, refusal("server_overloaded", "Too many [requests] wait."))

    with scripted_server(refuse) as server:
        assert rota_load(server, "--json", str(figures_file), sockets=2) == 1
    report = figures(figures_file)
    assert (report.requests.refused, report.requests.refused_by_code) == (2, {"server_overloaded": 2})
    assert report.requests.by_finish_reason == {}
    assert report.client.ttft_ms is None
    out = capsys.readouterr().out
    assert "2 refused (2 server_overloaded)." in out
    assert "Too many [requests] wait." in out, "what a server says is no markup"


def test_a_failure_is_counted_with_its_code(figures_file: Path) -> None:
    def fail(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        end(connection, "failed", rota={"finish_reason": "failed", "error_code": "worker_failed"})

    with scripted_server(fail) as server:
        assert rota_load(server, "--json", str(figures_file)) == 1
    assert figures(figures_file).requests.failed_by_code == {"worker_failed": 1}


def test_a_dropped_socket_is_counted_and_its_other_requests_are_not_sent(figures_file: Path) -> None:
    def drop_one(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        if request["input"].startswith("Letter 0-"):
            connection.close(1011)
        else:
            end(connection)

    with scripted_server(drop_one) as server:
        flags = ("--requests", "3", "--json", str(figures_file))
        assert rota_load(server, *flags, sockets=2) == 1
    report = figures(figures_file)
    assert (report.requests.finished, report.requests.dropped, report.requests.not_sent) == (3, 1, 2)
    assert report.requests.dropped_by_code == {"closed_1011": 1}
    assert (report.sockets.opened, report.sockets.dropped) == (2, 1)


def test_a_socket_that_does_not_open_is_counted_and_the_others_go_on(figures_file: Path) -> None:
    body = json.dumps({"error": {"code": "websocket_connection_limit_reached", "message": "No more."}})
    with scripted_server(answer) as server:
        server.decline = lambda upgrade: (429, body) if upgrade == 0 else None
        assert rota_load(server, "--json", str(figures_file), sockets=3) == 1
    report = figures(figures_file)
    assert (report.sockets.opened, report.sockets.not_opened) == (2, 1)
    assert report.sockets.not_opened_by_code == {"websocket_connection_limit_reached": 1}
    assert (report.requests.finished, report.requests.not_sent) == (2, 1)


def test_when_time_is_up_the_run_ends_and_says_so(figures_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def hang(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        wait_for_the_client(connection)

    with scripted_server(hang) as server:
        flags = ("--requests", "2", "--timeout-s", "0.3", "--json", str(figures_file))
        assert rota_load(server, *flags, sockets=2) == 1
    report = figures(figures_file)
    assert report.stopped_by == "timeout"
    assert (report.requests.unfinished, report.requests.not_sent) == (2, 2)
    assert report.client.ttft_ms is not None
    assert report.client.ttft_ms.count == 2
    assert (report.wall_s, report.tokens.output_per_s) == (None, None)
    assert "Stopped after 0.3 s" in capsys.readouterr().out


def test_a_warm_up_that_hangs_does_not_hang_the_run(figures_file: Path) -> None:
    with scripted_server(lambda connection, request: wait_for_the_client(connection)) as server:
        assert rota_load(server, "--timeout-s", "0.3", "--json", str(figures_file), warmup=1) == 1
    report = figures(figures_file)
    assert (report.stopped_by, report.sockets.opened, report.requests.not_sent) == ("timeout", 0, 1)


def test_a_warm_up_that_goes_wrong_does_not_count() -> None:
    def drop_the_first(connection: ServerConnection, request: Body) -> None:
        if len(server.requests) == 1:
            connection.close(1011)
        else:
            answer(connection, request)

    with scripted_server(drop_the_first) as server:
        assert rota_load(server, warmup=3) == 0
    assert len(server.requests) == 2


async def test_an_interrupt_ends_the_run_with_what_was_measured() -> None:
    def hang(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        wait_for_the_client(connection)

    class Watching:
        """Tells when text has come."""

        def __init__(self) -> None:
            self.seen = asyncio.Event()

        def __enter__(self) -> "Watching":
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def show(self, board: Board, now_s: float) -> None:
            if board.chunks:
                self.seen.set()

    with scripted_server(hang) as server:
        interrupted = Load(
            url=server.url,
            model="m",
            sockets=1,
            requests_per_socket=1,
            max_output_tokens=3,
            ignore_eos=True,
            temperature=0.0,
            prompt_tokens=None,
            warmup=0,
            seed=0,
            timeout_s=30.0,
        )
        shown = Watching()
        task = asyncio.create_task(measure(interrupted, None, shown, "Hi."))
        await shown.seen.wait()
        task.cancel()
        report = await task
    assert not task.cancelling(), "the cancel has been dealt with"
    assert report.stopped_by == "interrupt"
    assert (report.requests.unfinished, report.per_request[0].chunks) == (1, 1)


def test_an_interrupt_before_the_run_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("loadgen.load.first_model", interrupted)
    assert run(parsed()) == 2
    assert capsys.readouterr().err == "Stopped by hand, without figures.\n"


# -- the actors alone


def test_without_a_model_a_server_is_started_for_the_run_and_the_table_says_so(
    figures_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with scripted_server(answer) as server:
        flags_file = tmp_path / "asked"
        ready = json.dumps({"event": "engine.ready", "url": server.url, "model": "m"})
        script = (
            f"import pathlib, signal, sys; pathlib.Path({str(flags_file)!r}).write_text(' '.join(sys.argv))\n"
            f"print({ready!r}, file=sys.stderr, flush=True)\nsignal.pause()"
        )
        monkeypatch.setattr(own_server, "COMMAND", (sys.executable, "-c", script))
        flags = ("--null-executor", "--sockets", "2", "--warmup", "0", "--quiet", "--json", str(figures_file))
        assert run(parsed(*flags)) == 0
    assert flags_file.read_text().endswith(" --kernels none")
    assert [request["model"] for request in server.requests] == ["m", "m"]
    assert "2 sockets x 1 requests to actors alone, every token made up at once: " in capsys.readouterr().out
    load = figures(figures_file).load
    assert (load.null_executor, load.url, load.model) == (True, server.url, "m")


def test_the_actors_alone_are_on_no_other_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parsed("127.0.0.1:9", "--null-executor")
    assert exit_.value.code == 2
    assert "--null-executor: not allowed with argument URL" in capsys.readouterr().err


def test_the_actors_alone_do_not_speak_chat(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parsed("--null-executor", "--api", "chat")) == 2
    assert "--api responses only" in capsys.readouterr().err
