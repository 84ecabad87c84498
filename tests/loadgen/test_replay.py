"""`rota replay`, from the command line to its figures."""

import argparse
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from websockets.sync.server import ServerConnection

from loadgen import own_server as own
from loadgen.comparison import Comparison
from loadgen.replay import POLICIES, add_arguments, run, scenario_of, serve_arguments
from protocol.people import Person, Question, people
from tests.loadgen.lane_server import answer, lane
from tests.loadgen.scripted_server import Body, refusal, say, scripted_server
from tests.loadgen.stand_in import READY, stand_in


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(flags)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(
        'about = "Two."\n[[arrivals]]\nname = "A"\nprompt_tokens = 50\noutput_tokens = 3\n'
        '[[arrivals]]\nname = "B"\nprompt_tokens = 200\noutput_tokens = 3\nafter = ["A"]\n'
    )
    return path


def test_it_prints_the_tables_and_writes_picture_page_and_figures(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = [tmp_path / name for name in ("turns.svg", "turns.html", "figures.json")]
    with scripted_server(answer) as server:
        flags = ["--svg", str(written[0]), "--html", str(written[1]), "--json", str(written[2]), "--quiet"]
        assert run(parsed(str(file), "--server", server.url, *flags)) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "mine on m: 2 requests, 250 tokens in, 6 out; targets: first token 5 s, gap 250 ms" in printed.out
    assert "Targets: first token 5 s, gap 250 ms." in written[1].read_text()
    assert "2 of 2 (100%)" in printed.out
    assert "A: longest pause" in printed.out
    ElementTree.parse(written[0])
    assert written[1].read_text().startswith("<!doctype html>")
    figures = msgspec.json.decode(written[2].read_bytes(), type=Comparison)
    assert figures.scenario == "mine"
    assert [one.prompt_tokens for one in figures.policies[0].per_request] == [50, 200]


def test_one_request_can_be_timed_alone_before(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as server:
        assert run(parsed(str(file), "--server", server.url, "--alone", "B", "--seed", "7", "--quiet")) == 0
        warm_ups = [asked for asked in server.requests if asked["stream_id"].startswith("warm-up")]
        only, first, second = server.requests[len(warm_ups) :]
    assert re.search(r"server: B alone has its first token after .*, beside the others after ", capsys.readouterr().out)
    assert only["max_output_tokens"] == 1
    assert only["input"].split()[1] != second["input"].split()[1], "not found in a prefix cache"
    assert first["max_output_tokens"] == second["max_output_tokens"] == 3


def test_when_all_are_refused_the_exit_code_and_the_reason_say_so(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(connection: ServerConnection, asked: Body) -> None:
        if asked["stream_id"].startswith("warm-up"):
            answer(connection, asked)
        else:
            say(lane(connection, asked), refusal("server_overloaded", "Too many [wait]."))

    with scripted_server(full) as server:
        assert run(parsed(str(file), "--server", server.url, "--quiet")) == 1
    out = capsys.readouterr().out
    assert "2 did not finish (1 server_overloaded, 1 not_sent)." in out
    assert "Too many [wait]." in out


def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(
    file: Path, free_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, said in (
        (["laptop"], "did you mean laptops"),
        ([str(file), "--server", f"127.0.0.1:{free_port}"], "Nothing answers at"),
        ([str(file), "--server", "example.org"], "is not this machine"),
        ([str(file), "--server", "127.0.0.1", "--policies", "slack"], "leave out --server"),
        ([str(file), "--count", "3"], "--count is for a .csv trace"),
        ([str(file), "--html", str(tmp_path / "no" / "x.html")], "there is no folder"),
        ([str(file), "--html", str(tmp_path)], "Is a directory"),
        ([str(file), "--html", "x.out", "--svg", "x.out"], "--svg and --html name the same file"),
        ([str(file), "--alone", "Z"], "no request 'Z', but A, B."),
    ):
        assert run(parsed(*flags, "--quiet")) == 2
        printed = capsys.readouterr()
        assert said in printed.err
        assert printed.err.count("\n") == 1
        assert printed.out == ""


def test_targets_on_the_command_line_replace_all_of_the_scenarios() -> None:
    given = scenario_of(parsed("laptops", "--targets", "ttft=2s,itl=none"))
    assert {given.targets(arrival) for arrival in given.arrivals} == {(2.0, float("inf"))}
    given = scenario_of(parsed("laptops", "--targets", "itl=150ms"))
    assert [given.targets(arrival) for arrival in given.arrivals] == [(5.0, 0.15), (5.0, 0.15), (60.0, 0.15)]


def test_a_trace_is_cut_and_hurried_by_its_flags(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:15:{second:02}.0000000,{100 + second},10\n" for second in range(10))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    flags = ["--first", "2", "--count", "3", "--rate", "2", "--tokens", "0.5", "--targets", "ttft=1s"]
    given = scenario_of(parsed(str(trace), *flags))
    assert [(arrival.at_s, arrival.prompt_tokens) for arrival in given.arrivals] == [(0.0, 51), (0.5, 52), (1.0, 52)]
    assert given.ttft_target_s == 1.0


@pytest.mark.parametrize(
    "flags",
    [
        ("--policies", "fastest"),
        ("--targets", "ttft=soon"),
        ("--targets", "itl=0s"),
        ("--targets", "goodput=1s"),
        ("--rate", "0"),
        ("--count", "0"),
        ("--serve-args", "'"),
    ],
)
def test_a_value_that_cannot_be_is_a_usage_error(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed("laptops", *flags)
    assert stopped.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_the_servers_get_the_policy_and_a_context_in_which_all_fit() -> None:
    laptops = people(scenario_of(parsed("laptops")))
    assert serve_arguments(laptops, "slack", None, []) == ["--policy", "slack", "--max-context", "16384"]
    small = (Person("A", (Question(50, 3),)),)
    assert serve_arguments(small, "slack", "tiny", ["--dtype", "float32"])[2:] == [
        *("--max-context", "4096", "--model", "tiny", "--dtype", "float32"),
    ]
    talk = (Question(1000, 1000),) * 3
    assert serve_arguments((Person("A", talk),), "slack", None, [])[3] == "8192", "what was said before counts as well"
    assert serve_arguments((Person("A", talk, remembers=False),), "slack", None, [])[3] == "4096"


# -- servers of our own


def test_each_policy_runs_on_a_server_of_its_own_and_all_get_the_same_prompts(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(answer) as server:
        ready = READY.replace("ws://127.0.0.1:9/v1/responses", server.url)
        monkeypatch.setattr(own, "COMMAND", stand_in(f"say({ready!r})\nsignal.pause()"))
        assert run(parsed(str(file), "--quiet")) == 0
    prompts = [asked["input"] for asked in server.requests if asked["stream_id"] == "r1"]
    assert len(prompts) == 4
    assert len(set(prompts)) == 1
    table = capsys.readouterr().out
    assert all(policy in table for policy in POLICIES)


def test_a_later_server_that_does_not_start_costs_no_earlier_figures(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(answer) as server:
        ready = READY.replace("ws://127.0.0.1:9/v1/responses", server.url)
        script = f"'fixed_chunk' in sys.argv and sys.exit('rota: No.')\nsay({ready!r})\nsignal.pause()"
        monkeypatch.setattr(own, "COMMAND", stand_in(script))
        assert run(parsed(str(file), "--quiet")) == 1
    printed = capsys.readouterr()
    assert "2 of 2 (100%)" in printed.out
    assert printed.err == "Only the first runs are shown. rota serve: No.\n"


@contextmanager
def interrupts_are_heard() -> Iterator[None]:
    """A shell that runs the tests in the background has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "it is left as it was"
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_ends_the_server_and_keeps_the_runs_that_were_complete(
    times: int, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first_run_over: list[str] = []

    def interrupt_the_second(connection: ServerConnection, asked: Body) -> None:
        if asked["stream_id"] == "r1":
            first_run_over.append("r1")
        if asked["stream_id"] == "r0" and first_run_over:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            connection.recv()
        answer(connection, asked)

    with scripted_server(interrupt_the_second) as server, interrupts_are_heard():
        ready = READY.replace("ws://127.0.0.1:9/v1/responses", server.url)
        monkeypatch.setattr(own, "COMMAND", stand_in(f"say({ready!r})\nsignal.pause()"))
        assert run(parsed(str(file), "--quiet")) == 130
    printed = capsys.readouterr()
    assert "slack" in printed.out
    assert "fixed_chunk" not in printed.out
    assert "Stopped by hand" in printed.out
    assert printed.err == ""


def test_an_interrupt_in_the_first_run_leaves_one_sentence(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own, "COMMAND", stand_in("import os; os.kill(os.getppid(), signal.SIGINT)\nsignal.pause()"))
    with interrupts_are_heard():
        assert run(parsed(str(file), "--quiet")) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "Stopped by hand, without figures.\n"


@pytest.mark.parametrize(("load", "said"), [(9.8, True), (0.5, False)])
def test_a_machine_that_others_keep_busy_is_named_in_the_closing_words(
    load: float, said: bool, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    with scripted_server(answer) as server:
        assert run(parsed(str(file), "--server", server.url, "--quiet")) == 0
    assert ("busy with other things (load average 9.8 on 2 cores " in capsys.readouterr().out) == said
