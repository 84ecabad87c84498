"""A scenario played to a scripted server, and what `rota replay` makes of it."""

import argparse
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import msgspec
import pytest
from websockets.sync.server import ServerConnection

from loadgen import own_server as own
from loadgen.client import Unreachable
from loadgen.comparison import Comparison
from loadgen.figures import Exchange
from loadgen.lanes import LaneSocket, Pool
from loadgen.own_server import own_server
from loadgen.progress import Nothing
from loadgen.replay import POLICIES, add_arguments, run, scenario_of, serve_arguments
from loadgen.stage import Played, play, requests_of
from loadgen.warm_up import Lengths, request, text, warm_up
from protocol.scenario import Arrival, Scenario
from tests.loadgen.scripted_server import Body, ScriptedServer, begin, end, refusal, say, scripted_server, usage

LENGTHS = Lengths(30.0, 1.0)
"""Of the server below: a token a piece, and thirty around them."""


class _Lane:
    """A socket on which everything names a lane."""

    def __init__(self, connection: ServerConnection, lane: str) -> None:
        self._connection = connection
        self._lane = lane

    def send(self, event: str) -> None:
        self._connection.send(json.dumps({**json.loads(event), "stream_id": self._lane}))


def lane(connection: ServerConnection, asked: Body) -> ServerConnection:
    return cast(ServerConnection, _Lane(connection, asked["stream_id"]))


def input_tokens(asked: Body) -> int:
    return len(re.findall(r"[A-Za-z]+|[0-9]|[^\w\s]", asked["input"])) + 30


def finish(connection: ServerConnection, asked: Body, output_tokens: int = 3) -> None:
    end(lane(connection, asked), usage=usage(output_tokens, input_tokens(asked)))


def answer(connection: ServerConnection, asked: Body) -> None:
    begin(lane(connection, asked), "Hello", " there", ".")
    finish(connection, asked)


def scenario(*arrivals: Arrival) -> Scenario:
    return Scenario("test", arrivals, ttft_target_s=60.0, itl_target_s=60.0)


async def played(server: ScriptedServer, given: Scenario, timeout_s: float = 20.0, most: int = 960) -> Played:
    pool = Pool(server.url, None, most)
    try:
        return await play(given, requests_of(given, LENGTHS, "m", 7), "slack", pool, timeout_s, Nothing())
    finally:
        await pool.close()


def asked_for(server: ScriptedServer, index: int) -> Body:
    [found] = [asked for asked in server.requests if asked["stream_id"] == f"r{index}"]
    return found


# -- what is sent


async def test_a_request_asks_for_what_its_arrival_says() -> None:
    given = Scenario(
        "test",
        (
            Arrival("A", 500, 7, service_tier="priority", ttft_target_s=1.5, itl_target_s=0.25),
            Arrival("B", 100, 8, itl_target_s=float("inf")),
        ),
    )
    with scripted_server(answer) as server:
        outcome = await played(server, given)
    first, second = asked_for(server, 0), asked_for(server, 1)
    prose = first.pop("input")
    assert len(prose.split()) > 300
    assert first == {
        "type": "response.create",
        "model": "m",
        "stream_id": "r0",
        "max_output_tokens": 7,
        "temperature": 0.0,
        "ignore_eos": True,
        "store": False,
        "service_tier": "priority",
        "targets": {"ttft_ms": 1500.0, "itl_ms": 250.0},
    }
    assert second["targets"] == {"ttft_ms": 5000.0}, "no target is none on the wire"
    assert "service_tier" not in second
    assert [life.prompt_tokens for life in outcome.timeline.lives] == [500, 100], "as the server counted them"


async def test_the_first_requests_tell_how_long_a_prompt_must_be() -> None:
    def chatty(connection: ServerConnection, asked: Body) -> None:
        begin(lane(connection, asked), "Hello")
        end(lane(connection, asked), usage=usage(1, 41 + 2 * (input_tokens(asked) - 30)))

    with scripted_server(chatty) as server:
        socket = await LaneSocket.open(server.url, None)
        lengths = await warm_up(socket, "m", 7, 12_000)
        await socket.close()
    assert lengths == Lengths(41.0, 2.0)
    assert lengths.pieces(12_041) == 6_000
    assert lengths.pieces(10) == 8, "a prompt is never empty"


async def test_no_first_request_is_longer_than_the_longest_of_the_scenario() -> None:
    with scripted_server(answer) as server:
        socket = await LaneSocket.open(server.url, None)
        assert await warm_up(socket, "m", 7, 400) == LENGTHS
        assert await warm_up(socket, "m", 7, 50) == LENGTHS
        await socket.close()
    assert [input_tokens(asked) for asked in server.requests] == [120, 330, 330, 120, 121, 121]


async def test_a_server_that_answers_no_first_request_is_told_in_a_sentence() -> None:
    def refuse(connection: ServerConnection, asked: Body) -> None:
        say(lane(connection, asked), refusal("context_length_exceeded", "Too long."))

    with scripted_server(refuse) as server:
        socket = await LaneSocket.open(server.url, None)
        with pytest.raises(Unreachable, match=r"came to nothing: Too long\."):
            await warm_up(socket, "m", 7, 12_000)
        await socket.close()


@pytest.mark.parametrize("pieces", [8, 100, 1500, 12_000])
def test_a_text_has_as_many_pieces_as_asked(pieces: int) -> None:
    assert input_tokens({"input": text(7, 3, pieces)}) == pieces + 30
    assert text(7, 3, pieces)[:12] != text(7, 4, pieces)[:12]


# -- when


async def test_a_late_answer_delays_no_later_arrival() -> None:
    everyone_is_here = threading.Barrier(5)

    def answer_all_at_once(connection: ServerConnection, asked: Body) -> None:
        everyone_is_here.wait(10)  # breaks unless five requests are under way together
        answer(connection, asked)

    with scripted_server(answer_all_at_once) as server:
        outcome = await played(server, scenario(*(Arrival(f"{n}", 50, 3, at_s=n * 0.01) for n in range(5))))
    lives = outcome.timeline.lives
    assert [life.finished for life in lives] == [True] * 5
    assert [life.arrived_s for life in lives] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert all(life.token_times[0] >= lives[4].arrived_s for life in lives)


async def test_who_comes_after_others_comes_when_the_last_of_them_has_had_its_first_token() -> None:
    b_is_here = threading.Event()

    def hold_the_first(connection: ServerConnection, asked: Body) -> None:
        begin(lane(connection, asked), "Hello")
        if asked["stream_id"] == "r1":
            b_is_here.set()
        assert b_is_here.wait(10), "it was to come at the first token, and not at the end"
        finish(connection, asked)

    given = scenario(Arrival("A", 50, 3), Arrival("B", 60, 3, at_s=0.02, after=("A", "C")), Arrival("C", 70, 3))
    with scripted_server(hold_the_first) as server:
        outcome = await played(server, given)
    a, b, c = outcome.timeline.lives
    assert b.arrived_s == pytest.approx(max(a.token_times[0], c.token_times[0]) + 0.02)
    assert [asked["stream_id"] for asked in server.requests][2] == "r1"


async def test_who_comes_after_one_without_a_token_never_comes() -> None:
    def refuse_the_first(connection: ServerConnection, asked: Body) -> None:
        if asked["stream_id"] == "r0":
            say(lane(connection, asked), refusal("server_overloaded", "Too many wait."))
        else:
            answer(connection, asked)

    given = scenario(
        Arrival("A", 50, 3), Arrival("B", 50, 3, after=("A",)), Arrival("C", 50, 3, after=("B",)), Arrival("D", 50, 3)
    )
    with scripted_server(refuse_the_first) as server:
        outcome = await played(server, given)
    lives = outcome.timeline.lives
    assert [life.outcome for life in lives] == ["server_overloaded", "not_sent", "not_sent", "length"]
    assert [life.finished for life in lives] == [False, False, False, True]
    assert lives[1].arrived_s >= lives[3].ended_s  # type: ignore[operator]
    assert len(server.requests) == 2


async def test_when_time_is_up_what_runs_is_left_and_what_is_not_due_never_sent() -> None:
    def hang(connection: ServerConnection, asked: Body) -> None:
        begin(lane(connection, asked), "Hello")
        connection.recv()

    with scripted_server(hang) as server:
        outcome = await played(server, scenario(Arrival("A", 50, 3), Arrival("B", 50, 3, at_s=999.0)), timeout_s=0.3)
    assert outcome.timed_out
    a, b = outcome.timeline.lives
    assert (a.outcome, len(a.token_times), a.finished) == ("unfinished", 1, False)
    assert b.outcome == "not_sent"


# -- what is recorded


async def test_a_life_has_the_times_of_its_text_and_what_the_server_says() -> None:
    def preempted(connection: ServerConnection, asked: Body) -> None:
        begin(lane(connection, asked), "Hello", "", " there")
        rota = {"finish_reason": "length", "queue_ms": 2000.0, "preemptions": 2}
        end(lane(connection, asked), rota=rota, usage=usage(5, 77, cached_tokens=64))

    with scripted_server(preempted) as server:
        outcome = await played(server, scenario(Arrival("A", 50, 3, ttft_target_s=9.0)))
    [life] = outcome.timeline.lives
    assert (life.name, life.prompt_tokens, life.ttft_target_s, life.itl_target_s) == ("A", 77, 9.0, 60.0)
    assert len(life.token_times) == 2, "the empty delta is no text"
    assert life.arrived_s <= life.token_times[0] <= life.token_times[1] <= (life.ended_s or 0)
    assert life.started_s == pytest.approx(life.arrived_s + 2.0, abs=0.5)
    assert (life.finished, life.met, life.outcome, life.preemptions) == (True, True, "length", 2)
    assert (outcome.output_tokens, outcome.mostly_cached) == (5, 1)
    assert outcome.timeline.turns == ()


async def test_a_dropped_socket_ends_its_requests_and_the_client_gets_another() -> None:
    def drop_the_first(connection: ServerConnection, asked: Body) -> None:
        if asked["stream_id"] == "r0":
            begin(lane(connection, asked), "Hello")
            connection.close(1011)
        else:
            answer(connection, asked)

    given = scenario(Arrival("A", 50, 3, client="c"), Arrival("B", 50, 3, at_s=0.05, after=("A",), client="c"))
    with scripted_server(drop_the_first) as server:
        outcome = await played(server, given)
    assert [life.outcome for life in outcome.timeline.lives] == ["closed_1011", "length"]
    assert len(server.upgrades) == 2


async def test_an_unreadable_event_ends_what_runs_on_its_socket() -> None:
    def babble(connection: ServerConnection, asked: Body) -> None:
        connection.send("not json")

    with scripted_server(babble) as server:
        outcome = await played(server, scenario(Arrival("A", 50, 3)))
    assert outcome.timeline.lives[0].outcome == "unreadable_event"


async def test_a_socket_that_does_not_open_is_a_refusal_of_its_request_only() -> None:
    given = scenario(Arrival("A", 50, 3, client="a"), Arrival("B", 50, 3))
    with scripted_server(answer) as server:
        server.decline = lambda upgrade: (429, '{"error": {"code": "full", "message": "No."}}') if upgrade else None
        outcome = await played(server, given)
    assert [life.outcome for life in outcome.timeline.lives] == ["length", "full"]
    with scripted_server(answer) as server:
        outcome = await played(server, given, most=1)
    assert [life.outcome for life in outcome.timeline.lives] == ["length", "too_many_sockets"]


# -- sockets


async def test_the_requests_of_a_client_share_its_socket_on_lanes_of_their_own() -> None:
    waiting: list[tuple[ServerConnection, Body]] = []

    def answer_in_turn(connection: ServerConnection, asked: Body) -> None:
        waiting.append((connection, asked))
        if len(waiting) < 3:
            return
        for word in ("Hello", " there"):
            for each, whose in waiting:
                begin(lane(each, whose), word)
        for each, whose in reversed(waiting):
            finish(each, whose)

    with scripted_server(answer_in_turn) as server:
        outcome = await played(server, scenario(*(Arrival(name, 50, 3, client="same") for name in "ABC")))
    assert len(server.upgrades) == 1
    assert [len(life.token_times) for life in outcome.timeline.lives] == [2, 2, 2]
    assert [life.finished for life in outcome.timeline.lives] == [True] * 3


async def test_thousands_of_arrivals_reuse_idle_sockets() -> None:
    arrivals = [Arrival(f"{n}", 20, 3, after=(f"{n - 1}",) if n else ()) for n in range(300)]
    with scripted_server(answer) as server:
        outcome = await played(server, scenario(*arrivals))
    assert all(life.finished for life in outcome.timeline.lives)
    assert len(server.upgrades) < 60


async def test_with_no_more_sockets_to_open_requests_share_those_there_are() -> None:
    everyone: list[tuple[ServerConnection, Body]] = []
    lock = threading.Lock()

    def answer_the_last(connection: ServerConnection, asked: Body) -> None:
        with lock:
            everyone.append((connection, asked))
            if len(everyone) == 6:
                for each, whose in everyone:
                    answer(each, whose)

    with scripted_server(answer_the_last) as server:
        outcome = await played(server, scenario(*(Arrival(f"{n}", 20, 3) for n in range(6))), most=2)
    assert all(life.finished for life in outcome.timeline.lives)
    assert len(server.upgrades) == 2


async def test_text_for_a_lane_that_nobody_waits_on_is_passed_over() -> None:
    def confused(connection: ServerConnection, asked: Body) -> None:
        begin(lane(connection, {"stream_id": "other"}), "Hello")
        begin(connection, "Hello")
        answer(connection, asked)

    exchange = Exchange(0, 0)
    with scripted_server(confused) as server:
        socket = await LaneSocket.open(server.url, None)
        await socket.ask("mine", request("m", "mine", "Hi.", 3), exchange)
        await socket.close()
        late = Exchange(0, 1)
        await socket.ask("late", request("m", "late", "Hi.", 3), late)
    assert len(exchange.texts_s) == 3
    assert late.outcome == "dropped"


# -- the command


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
    laptops = scenario_of(parsed("laptops"))
    assert serve_arguments(laptops, "slack", None, []) == ["--policy", "slack", "--max-context", "16384"]
    small = scenario(Arrival("A", 50, 3))
    assert serve_arguments(small, "slack", "tiny", ["--dtype", "float32"])[2:] == [
        *("--max-context", "4096", "--model", "tiny", "--dtype", "float32"),
    ]


# -- servers of our own

READY = '{"event": "engine.ready", "url": "ws://127.0.0.1:9/v1/responses", "model": "m"}'


def stand_in(script: str) -> tuple[str, ...]:
    """In place of `rota serve`: Python that says something and lives until it is told to end."""
    prelude = "import signal, sys\ndef say(line): print(line, file=sys.stderr, flush=True)\n"
    return sys.executable, "-c", prelude + script


async def test_a_server_of_our_own_is_ready_when_it_says_so_and_is_told_to_leave() -> None:
    script = f"say('Loading.'); say('x' * 2**21); say({READY!r})\nsignal.pause()"
    async with own_server(["--policy", "slack"], stand_in(script)) as server:
        assert (server.url, server.model) == ("ws://127.0.0.1:9/v1/responses", "m")


async def test_it_is_made_to_leave_when_it_does_not_and_when_the_block_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("loadgen.child.LEAVE_S", 0.1)
    script = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say({READY!r})\nwhile True: signal.pause()"
    with pytest.raises(ZeroDivisionError):
        async with own_server([], stand_in(script)):
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("say('{\"event\": \"x\"}'); say('rota: No such model.'); sys.exit(2)", r"^rota serve: No such model\.$"),
        ("say('Traceback'); say('KeyError: 3'); sys.exit(1)", r"^rota serve ended with code 1: KeyError: 3$"),
        ("sys.exit(3)", r"^rota serve ended with code 3$"),
    ],
)
async def test_a_server_that_does_not_start_is_told_in_its_own_words(script: str, said: str) -> None:
    with pytest.raises(Unreachable, match=said):
        async with own_server([], stand_in(script)):
            pytest.fail("it was not ready")


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
