"""`rota load` with people, from the command line to its figures."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from websockets.sync.server import ServerConnection

from loadgen import own_server
from loadgen.exchange import Exchange
from loadgen.figures import Report, Runs
from loadgen.load import run
from tests.loadgen.chat_server import answer as chat_answer
from tests.loadgen.chat_server import chat_server
from tests.loadgen.load_command import figures, parsed, rota_load
from tests.loadgen.scripted_server import Body, answer, begin, end, refusal, say, scripted_server
from tests.loadgen.stand_in import READY, stand_in

MINE = """
[[arrivals]]
name = "A"
prompt_tokens = 20
output_tokens = 3

[[people]]
name = "talk"
count = 3
questions = 2
prompt_tokens = 20
output_tokens = 3
ttft_target_s = 0.000001
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    return str(file)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "figures.json"


def test_a_scenario_is_played_and_its_groups_are_told_apart(
    scenario: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, "--scenario", scenario, "--json", str(written), sockets=None) == 0
    report = figures(written)
    assert (report.scenario, report.arrivals, report.offered_per_s) == ("mine", "as written; talk together", None)
    assert (report.requests.planned, report.requests.finished) == (7, 7)
    assert [(group.group, group.requests, group.met, group.missed) for group in report.groups] == [
        ("", 1, 1, 0),
        ("talk", 6, 0, 6),
    ]
    assert report.goodput is not None
    assert (report.goodput.met, report.goodput.missed) == (1, 6)
    assert {one.person for one in report.per_request} == {"A", "talk 1", "talk 2", "talk 3"}
    assert "mine" in capsys.readouterr().out


def test_targets_are_sent_and_counted(written: Path) -> None:
    flags = ("--people", "2", "--targets", "ttft=20s,itl=5s", "--json", str(written))
    with scripted_server(answer) as server:
        assert rota_load(server, *flags, sockets=None) == 0
    assert server.requests[0]["targets"] == {"ttft_ms": 20000.0, "itl_ms": 5000.0}
    goodput = figures(written).goodput
    assert goodput is not None
    assert (goodput.met, goodput.missed, goodput.share) == (2, 0, 1.0)


def test_what_is_due_at_the_beginning_is_played_and_not_counted(written: Path) -> None:
    flags = ("--arrive", "fixed", "--rate", "50", "--people", "6", "--warmup-s", "0.05", "--json", str(written))
    with scripted_server(answer) as server:
        assert rota_load(server, *flags, sockets=None) == 0
    report = figures(written)
    assert len(server.requests) == 6
    assert (report.excluded_warm_up, report.requests.planned) == (3, 3)
    assert [one.person for one in report.per_request] == ["load 4", "load 5", "load 6"]


def test_a_run_of_which_nothing_counts_is_no_success(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--arrive", "fixed", "--rate", "50", "--people", "3", "--warmup-s", "60", "--json", str(written))
    with scripted_server(answer) as server:
        assert rota_load(server, *flags, "--html", str(written.with_suffix(".html")), sockets=None) == 1
    assert "No request is left to count: --warmup-s 60 is longer than the run." in capsys.readouterr().out
    assert (figures(written).excluded_warm_up, figures(written).requests.planned) == (3, 0)


def test_people_share_sockets_when_they_are_told_to(written: Path) -> None:
    def on_its_lane(connection: ServerConnection, asked: Body) -> None:
        connection.send(
            json.dumps(
                {
                    "type": "response.completed",
                    "stream_id": asked["stream_id"],
                    "response": {"id": "r", "status": "completed"},
                }
            )
        )

    with scripted_server(on_its_lane) as server:
        assert rota_load(server, "--people", "6", "--idle", "3", "--json", str(written), sockets=2) == 0
    report = figures(written)
    assert (report.sockets.asked, report.sockets.opened, report.idle_sockets) == (5, 5, 3)
    assert len(server.upgrades) == 5


def test_a_sweep_is_one_report_of_all_rates(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as server:
        flags = ("--rates", "50,100", "--people", "4", "--targets", "ttft=9s", "--json", str(written))
        assert rota_load(server, *flags, sockets=None) == 0
    runs = msgspec.json.decode(written.read_bytes(), type=Runs).runs
    assert [run.arrivals for run in runs] == ["poisson, 50/s", "poisson, 100/s"]
    assert [run.requests.finished for run in runs] == [4, 4]
    slow, fast = (run.offered_per_s for run in runs)
    assert slow is not None
    assert fast == pytest.approx(2 * slow, rel=0.01)
    assert len({asked["input"] for asked in server.requests}) == 8, "nothing is said twice"
    out = capsys.readouterr().out
    assert "offered" in out


def test_a_sweep_that_is_stopped_keeps_the_runs_it_had(written: Path) -> None:
    asked_fifth = threading.Event()

    def interrupt(connection: ServerConnection, asked: Body) -> None:
        if len(server.requests) == 5:
            asked_fifth.set()
            begin(connection, "Hello")
            os.kill(os.getpid(), signal.SIGINT)
            connection.recv()
        answer(connection, asked)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with scripted_server(interrupt) as server:
            flags = ("--rates", "500,600,700", "--people", "4", "--json", str(written))
            assert rota_load(server, *flags, sockets=None) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    runs = msgspec.json.decode(written.read_bytes(), type=Runs).runs
    assert asked_fifth.is_set()
    assert [run.stopped_by for run in runs] == ["finished", "interrupt"]


def test_refusals_are_counted_by_code(written: Path) -> None:
    def refuse_some(connection: ServerConnection, asked: Body) -> None:
        if asked["max_output_tokens"] == 5:
            say(connection, refusal("server_overloaded", "Too many wait."))
        else:
            end(connection)

    with scripted_server(refuse_some) as server:
        flags = ("--people", "3", "--max-output-tokens", "5", "--json", str(written))
        assert rota_load(server, *flags, sockets=None) == 1
    assert figures(written).requests.refused_by_code == {"server_overloaded": 3}


def test_people_who_left_on_purpose_are_no_failure(written: Path) -> None:
    with scripted_server(answer) as server:
        flags = ("--people", "4", "--leave", "0.5", "--leave-after-chunks", "1", "--json", str(written))
        assert rota_load(server, *flags, sockets=None) == 0
    report = figures(written)
    assert (report.requests.left, report.requests.finished) == (2, 2)


async def test_the_same_people_talk_to_a_server_of_chat_completions(written: Path) -> None:
    async with chat_server(chat_answer) as server:
        flags = ("--api", "chat", "--people", "3", "--questions", "2", "--leave", "0.34", "--json", str(written))
        assert await asyncio.to_thread(rota_load, server, *flags, sockets=None) == 0
    report = figures(written)
    assert (report.load.api, report.requests.planned, report.requests.finished) == ("chat", 6, 6)
    assert sorted(len(asked["messages"]) for asked in server.requests) == [1, 1, 1, 3, 3, 3]


def test_a_page_is_written_of_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Path, Sequence[tuple[Report, Sequence[Exchange]]], str]] = []
    page = ModuleType("loadgen.report_page")
    page.write_report = lambda *arguments: given.append(arguments)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "loadgen.report_page", page)
    with scripted_server(answer) as server:
        flags = ("--rates", "50,100", "--people", "2", "--html", str(tmp_path / "page.html"))
        assert rota_load(server, *flags, sockets=None) == 0
    [(file, runs, title)] = given
    assert (file, title) == (tmp_path / "page.html", "load · m")
    assert [(report.arrivals, len(exchanges)) for report, exchanges in runs] == [
        ("poisson, 50/s", 2),
        ("poisson, 100/s", 2),
    ]


def test_no_page_is_written_where_it_could_not_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_server(answer) as server:
        assert rota_load(server, "--html", str(tmp_path / "no" / "page.html")) == 2
        assert rota_load(server, "--html", "x.out", "--json", "x.out") == 2
        assert server.requests == []
    first, second = capsys.readouterr().err.splitlines()
    assert "there is no folder" in first
    assert "name the same file" in second


def test_a_server_that_is_started_for_people_has_room_for_their_longest_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_server(answer) as server:
        flags_file = tmp_path / "asked"
        ready = READY.replace("ws://127.0.0.1:9/v1/responses", server.url)
        script = f"import pathlib; pathlib.Path({str(flags_file)!r}).write_text(' '.join(sys.argv)); say({ready!r})"
        monkeypatch.setattr(own_server, "COMMAND", stand_in(f"{script}\nsignal.pause()"))
        flags = ("--questions", "3", "--prompt-tokens", "3000", "--max-output-tokens", "500", "--people", "1")
        assert run(parsed("--null-executor", "--warmup", "0", "--quiet", *flags)) == 0
    assert flags_file.read_text().endswith(" --kernels none --max-context 16384")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_files_are_allowed_for_all_who_come_at_once_and_as_far_as_they_go_for_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (32, 128))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    with scripted_server(answer) as server:
        assert rota_load(server, "--people", "100", sockets=None) == 2
        assert rota_load(server, "--idle", "100") == 2
        assert asked == []
        assert rota_load(server, "--people", "80", "--arrive", "fixed", "--rate", "50", sockets=None) == 0
        assert asked == [(128, 128)]
    first, second = capsys.readouterr().err.splitlines()
    assert first == "This machine allows a process 128 open files, and 164 are needed: ask for fewer people."
    assert second == "This machine allows a process 128 open files, and 165 are needed: lower --sockets or --idle."
