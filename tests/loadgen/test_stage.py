"""A scenario played to a scripted server, and the lives that come of it."""

import threading

import pytest
from websockets.sync.server import ServerConnection

from loadgen.exchange import Exchange
from loadgen.lanes import LaneSocket, Pool
from loadgen.progress import Nothing
from loadgen.stage import Played, play, requests_of
from loadgen.warm_up import request
from protocol.people import Person, Question, people
from protocol.scenario import Arrival, Scenario
from tests.loadgen.lane_server import LENGTHS, answer, finish, lane
from tests.loadgen.scripted_server import Body, ScriptedServer, begin, end, refusal, say, scripted_server, usage


def scenario(*arrivals: Arrival) -> Scenario:
    return Scenario("test", arrivals, ttft_target_s=60.0, itl_target_s=60.0)


async def played(server: ScriptedServer, given: Scenario, timeout_s: float = 20.0, most: int = 960) -> Played:
    pool = Pool(server.url, None, most)
    try:
        everybody = people(given)
        return await play(everybody, requests_of(everybody, LENGTHS, "m", 7), "slack", pool, timeout_s, Nothing())
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
        if asked["stream_id"] == "r2":
            b_is_here.set()
        assert b_is_here.wait(10), "it was to come at the first token, and not at the end"
        finish(connection, asked)

    given = scenario(Arrival("A", 50, 3), Arrival("B", 60, 3, at_s=0.02, after=("A", "C")), Arrival("C", 70, 3))
    with scripted_server(hold_the_first) as server:
        outcome = await played(server, given)
    a, c, b = outcome.timeline.lives
    assert b.arrived_s == pytest.approx(max(a.token_times[0], c.token_times[0]) + 0.02)
    assert [asked["stream_id"] for asked in server.requests][2] == "r2"


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
    assert [life.outcome for life in lives] == ["server_overloaded", "length", "not_sent", "not_sent"]
    assert [life.finished for life in lives] == [False, True, False, False]
    assert lives[2].arrived_s >= lives[1].ended_s  # type: ignore[operator]
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


async def test_every_question_of_a_conversation_is_a_life_of_its_own() -> None:
    talk = Person("A", (Question(50, 3), Question(60, 3)), ttft_target_s=9.0)
    with scripted_server(answer) as server:
        pool = Pool(server.url, None)
        outcome = await play([talk], requests_of([talk], LENGTHS, "m", 7), "slack", pool, 20.0, Nothing())
        await pool.close()
    first, second = outcome.timeline.lives
    assert (first.name, second.name) == ("A", "A, question 2")
    assert (first.finished, second.finished) == (True, True)
    assert second.arrived_s == first.ended_s
    assert [asked.get("previous_response_id") for asked in server.requests] == [None, "resp_1"]
    assert outcome.late_worst_s >= 0.0
