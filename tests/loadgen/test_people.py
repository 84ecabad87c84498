"""People played on a scripted server over WebSockets: when they ask, leave, come back and read."""

import asyncio
import threading
import time

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from loadgen.figures import Exchange
from protocol.people import Person, Question
from tests.loadgen.playing import ONE, played, questions
from tests.loadgen.scripted_server import Body, answer, begin, delta, end, refusal, response, say, scripted_server


def outcomes(exchanges: list[Exchange]) -> list[str]:
    return [exchange.outcome for exchange in exchanges]


# -- when they come


async def test_a_late_server_makes_nobody_come_later() -> None:
    everyone_is_here = threading.Barrier(5)

    def answer_all_at_once(connection: ServerConnection, asked: Body) -> None:
        everyone_is_here.wait(10)  # breaks unless five requests are under way together
        answer(connection, asked)

    with scripted_server(answer_all_at_once) as server:
        report, exchanges = await played(server, *(Person(f"{n}", ONE, at_s=n * 0.01) for n in range(5)))
    assert report.requests.finished == 5
    first_s = exchanges[0].due_s
    assert first_s is not None
    assert [exchange.due_s - first_s for exchange in exchanges if exchange.due_s is not None] == pytest.approx(
        [0.0, 0.01, 0.02, 0.03, 0.04]
    )
    last_s = exchanges[4].due_s
    assert all(exchange.texts_s[0] >= (last_s or 0.0) for exchange in exchanges)
    assert all(exchange.sent_s is not None and exchange.sent_s >= (exchange.due_s or 0.0) for exchange in exchanges)


async def test_a_socket_that_is_slow_to_open_is_in_the_wait_of_its_request() -> None:
    opened_s: list[float] = []

    def slow_to_open(upgrade: int) -> None:
        if upgrade == 1:
            time.sleep(0.3)
            opened_s.append(time.perf_counter())

    # The first is opened before the run begins; the second comes back on another, which nobody could open earlier.
    person = Person("A", ONE, leaves_after_chunks=1, comes_back_s=0.0)
    with scripted_server(answer) as server:
        server.decline = slow_to_open
        _, [left, again] = await played(server, person)
    assert left.late_ms is not None
    assert again.due_s == left.ended_s
    assert again.sent_s is not None
    assert again.sent_s >= opened_s[0], "it could not be sent before"
    assert again.late_ms is not None
    assert again.ttft_ms is not None
    assert again.ttft_ms > again.late_ms > 250


async def test_who_comes_after_others_comes_when_the_last_of_them_has_its_first_text() -> None:
    b_is_here = threading.Event()

    def hold_the_first(connection: ServerConnection, asked: Body) -> None:
        begin(connection, "Hello")
        if asked["max_output_tokens"] == 9:
            b_is_here.set()
        assert b_is_here.wait(10), "it was to come at the first text, and not at the end"
        end(connection)

    people = Person("A", ONE), Person("C", ONE), Person("B", (Question(20, 9),), at_s=0.02, after=("A", "C"))
    with scripted_server(hold_the_first) as server:
        _, [a, c, b] = await played(server, *people)
    assert b.due_s == max(a.texts_s[0], c.texts_s[0]) + 0.02


# -- what they ask


async def test_a_follow_up_is_due_when_the_answer_has_ended_and_its_think_time_is_over() -> None:
    def numbered(connection: ServerConnection, asked: Body) -> None:
        begin(connection, "Hello")
        done = response("completed", id=f"resp_{len(server.requests)}")
        say(connection, {"type": "response.completed", "sequence_number": 9, "response": done})

    with scripted_server(numbered) as server:
        _, exchanges = await played(server, Person("A", questions(0.05, 0.0)))
    assert [asked.get("previous_response_id") for asked in server.requests] == [None, "resp_1", "resp_2"]
    assert [asked["store"] for asked in server.requests] == [True, True, False], "nothing continues from the last"
    assert len({asked["input"] for asked in server.requests}) == 3
    first, second, third = exchanges
    assert second.due_s == pytest.approx((first.ended_s or 0.0) + 0.05)
    assert third.due_s == second.ended_s
    assert len(server.upgrades) == 1
    assert [exchange.connect_ms is None for exchange in exchanges] == [False, True, True]


async def test_who_does_not_remember_asks_anew_each_time() -> None:
    with scripted_server(answer) as server:
        await played(server, Person("A", questions(0.0), remembers=False))
    assert [asked.get("previous_response_id") for asked in server.requests] == [None, None]
    assert [asked["store"] for asked in server.requests] == [False, False]


async def test_a_conversation_that_broke_off_is_not_continued() -> None:
    def refuse(connection: ServerConnection, asked: Body) -> None:
        say(connection, refusal("server_overloaded", "Too many wait."))

    with scripted_server(refuse) as server:
        report, _ = await played(server, Person("A", questions(0.0, 0.0)))
    assert (report.requests.refused, report.requests.not_sent) == (1, 2)
    assert len(server.requests) == 1


async def test_who_reconnects_continues_the_conversation_on_another_socket() -> None:
    sockets: list[ServerConnection] = []

    def watched(connection: ServerConnection, asked: Body) -> None:
        sockets.append(connection)
        answer(connection, asked)

    with scripted_server(watched) as server:
        report, exchanges = await played(server, Person("A", questions(0.05), reconnects=True))
    assert report.requests.finished == 2
    assert server.requests[1]["previous_response_id"] == "resp_1"
    assert sockets[0] is not sockets[1]
    assert len(server.upgrades) == 2
    assert all(exchange.connect_ms is not None for exchange in exchanges), "each was the first on its socket"
    assert exchanges[1].due_s == pytest.approx((exchanges[0].ended_s or 0.0) + 0.05), "connecting is in the think time"


# -- how they leave


async def test_who_leaves_closes_the_socket_and_the_server_sees_a_page_that_is_closed() -> None:
    seen: list[int | None] = []

    def endless(connection: ServerConnection, asked: Body) -> None:
        begin(connection)
        try:
            while True:
                say(connection, delta("Hello"))
        except ConnectionClosed as closed:
            seen.append(closed.rcvd.code if closed.rcvd else None)
            raise

    with scripted_server(endless) as server:
        report, [left] = await played(server, Person("A", ONE, leaves_after_chunks=5))
    assert (left.outcome, left.left, len(left.texts_s)) == ("left", True, 5)
    assert (report.requests.left, report.requests.dropped, report.sockets.dropped) == (1, 0, 0)
    assert report.all_finished, "it was meant to"
    assert seen == [1001]


async def test_who_leaves_after_a_time_leaves_also_without_a_word_of_the_answer() -> None:
    def silent(connection: ServerConnection, asked: Body) -> None:
        connection.recv()  # until it closes

    with scripted_server(silent) as server:
        _, [left] = await played(server, Person("A", ONE, leaves_after_s=0.05, ttft_target_s=0.02))
    assert (left.outcome, left.texts_s) == ("left", [])
    assert (left.ended_s or 0.0) - (left.sent_s or 0.0) >= 0.05
    assert left.met is False, "its first text was overdue"


async def test_who_is_through_in_time_does_not_leave() -> None:
    with scripted_server(answer) as server:
        report, exchanges = await played(
            server, Person("A", questions(0.0), leaves_after_chunks=9), Person("B", ONE, leaves_after_s=20.0)
        )
    assert report.requests.finished == 3
    assert not any(exchange.left for exchange in exchanges)


async def test_what_one_who_left_for_good_would_have_asked_is_left_too() -> None:
    with scripted_server(answer) as server:
        report, exchanges = await played(server, Person("A", questions(0.0, 0.0), leaves_after_chunks=1))
    assert (report.requests.left, report.requests.never_asked, report.requests.not_sent) == (3, 2, 0)
    assert len(server.requests) == 1
    assert [exchange.sent_s is None for exchange in exchanges] == [False, True, True]


async def test_who_comes_back_asks_the_same_again_on_another_socket_and_then_goes_on() -> None:
    person = Person("A", questions(0.0), leaves_after_chunks=2, comes_back_s=0.05)
    with scripted_server(answer) as server:
        report, [left, again, next_one] = await played(server, person)
    assert [asked["input"] for asked in server.requests[:2]] == [server.requests[0]["input"]] * 2
    assert server.requests[2]["previous_response_id"] == "resp_1"
    assert len(server.upgrades) == 2
    assert [left.question, again.question, next_one.question] == [0, 0, 1]
    assert again.due_s == pytest.approx((left.ended_s or 0.0) + 0.05)
    assert (report.requests.planned, report.requests.left, report.requests.finished) == (3, 1, 2)


# -- how they read


async def test_a_slow_reader_holds_the_server_up() -> None:
    sent = 0
    many = "x" * 2**16

    def pour(connection: ServerConnection, asked: Body) -> None:
        nonlocal sent
        begin(connection, "Hello")
        for _ in range(400):  # 26 MB: more than all buffers between the two
            say(connection, delta(many))
            sent += 1
        end(connection)

    with scripted_server(pour) as server:
        _, [reading] = await played(server, Person("A", ONE, reads_chunks_per_s=50.0, leaves_after_chunks=20))
        slow = sent
        sent = 0
        await played(server, Person("A", ONE))
    assert len(reading.texts_s) == 20
    assert slow < 200, "it had to wait for who does not read"
    assert sent == 400


async def test_a_slow_reader_takes_so_many_pieces_a_second_and_no_more() -> None:
    with scripted_server(answer) as server:
        report, [slow] = await played(server, Person("A", ONE, reads_chunks_per_s=20.0))
    assert slow.slow_reader
    assert len(slow.texts_s) == 3
    assert all(gap >= 50.0 for gap in slow.gaps_ms), "by the clock that it was read with, never faster"
    assert report.client.gap_ms is None
    assert report.client.ttft_ms is not None


# -- how it ends


async def test_when_time_is_up_what_was_due_says_that_nobody_looks_any_more() -> None:
    def hang(connection: ServerConnection, asked: Body) -> None:
        begin(connection)
        connection.recv()

    people = Person("A", ONE, ttft_target_s=0.1), Person("B", ONE, at_s=99.0, ttft_target_s=0.1)
    with scripted_server(hang) as server:
        report, [a, b] = await played(server, *people, timeout_s=0.3)
    assert report.stopped_by == "timeout"
    assert (a.outcome, b.outcome) == ("unfinished", "not_sent")
    assert (a.met, b.met) == (False, None), "a server that hangs is not let off; who had not come has lost nothing"


async def test_a_cancel_ends_the_run_with_what_was_measured_and_closes_all_sockets() -> None:
    asked_both = threading.Barrier(3)
    closed: list[int | None] = []

    def hang(connection: ServerConnection, asked: Body) -> None:
        begin(connection, "Hello")
        asked_both.wait(10)
        try:
            connection.recv()
        except ConnectionClosed as over:
            closed.append(over.rcvd.code if over.rcvd else None)
            raise

    with scripted_server(hang) as server:
        task = asyncio.create_task(played(server, Person("A", ONE), Person("B", ONE), idle=2))
        await asyncio.to_thread(asked_both.wait, 10)
        task.cancel()
        report, _ = await task
    assert report.stopped_by == "interrupt"
    assert (report.requests.unfinished, report.idle_sockets) == (2, 2)
    assert closed == [1000, 1000]


async def test_a_socket_that_is_dropped_ends_its_person_and_no_other() -> None:
    def drop_one(connection: ServerConnection, asked: Body) -> None:
        if asked["max_output_tokens"] == 9:
            connection.close(1011)
        else:
            answer(connection, asked)

    with scripted_server(drop_one) as server:
        report, _ = await played(server, Person("A", (Question(20, 9), *ONE)), Person("B", questions(0.0)))
    assert (report.requests.dropped, report.requests.not_sent, report.requests.finished) == (1, 1, 2)
    assert report.requests.dropped_by_code == {"closed_1011": 1}
