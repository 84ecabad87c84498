"""Whose socket is whose, and when it is opened."""

import asyncio
import threading
import time

import pytest
from websockets.sync.server import ServerConnection

from loadgen.client import NotOpened, OwnSocket, Unreachable
from loadgen.lanes import Pool
from loadgen.sockets import AHEAD_S, Sockets
from protocol.people import Person
from tests.loadgen.lane_server import lane
from tests.loadgen.playing import ONE, played, questions
from tests.loadgen.scripted_server import Body, answer, begin, end, scripted_server


class Opener:
    """Stands for a server: counts how many are being opened at once, and when each was begun."""

    def __init__(self) -> None:
        self.begun_s: list[float] = []
        self.now = 0
        self.most = 0

    async def __call__(
        self, url: str, key: str | None, number: int = 0, *, reads_per_s: float | None = None, silent: bool = False
    ) -> OwnSocket:
        self.begun_s.append(time.perf_counter())
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        raise NotOpened("no_connection", "Only looking.")


def sockets(opener: Opener, *people: Person, **more: float) -> Sockets:
    return Sockets(people, Pool("ws://127.0.0.1:9/", None), opener, connects_per_s=more.get("per_s", float("inf")))


async def test_at_most_64_are_opened_at_a_time() -> None:
    opener = Opener()
    with pytest.raises(Unreachable, match="Only looking"):
        await sockets(opener, *(Person(f"{n}", ONE) for n in range(300))).open_ahead()
    assert (len(opener.begun_s), opener.most) == (300, 64)


async def test_no_more_are_opened_in_a_second_than_asked() -> None:
    opener = Opener()
    with pytest.raises(Unreachable):
        await sockets(opener, *(Person(f"{n}", ONE) for n in range(20)), per_s=200.0).open_ahead()
    spread_s = opener.begun_s[-1] - opener.begun_s[0]
    assert spread_s >= 19 / 200


async def test_only_who_comes_soon_has_a_socket_before_the_start_unless_it_would_be_too_late_then() -> None:
    opener = Opener()
    people = [Person(f"{n}", ONE, at_s=at_s) for n, at_s in enumerate((0.0, AHEAD_S, *[AHEAD_S + 0.2] * 3))]
    with pytest.raises(Unreachable):
        await sockets(opener, *people).open_ahead()
    assert len(opener.begun_s) == 2
    opener = Opener()
    with pytest.raises(Unreachable):
        await sockets(opener, *people, per_s=5.0).open_ahead()
    assert len(opener.begun_s) == 4, "0.2 s apart, and all of them a second before they are needed"


async def test_everyone_has_a_socket_of_its_own_that_was_open_before_it_was_due() -> None:
    with scripted_server(answer) as server:
        report, exchanges = await played(server, *(Person(f"{n}", ONE, at_s=n * 0.005) for n in range(20)))
    assert (report.sockets.asked, report.sockets.opened, len(server.upgrades)) == (20, 20, 20)
    assert sorted(exchange.socket for exchange in exchanges) == list(range(20))
    assert report.client.connect_ms is not None
    assert report.client.connect_ms.count == 20


async def test_a_person_who_comes_later_than_the_start_finds_its_socket_open() -> None:
    upgrades: list[int] = []

    def watched(connection: ServerConnection, asked: Body) -> None:
        upgrades.append(len(server.upgrades))
        answer(connection, asked)

    with scripted_server(watched) as server:
        await played(server, Person("A", ONE), Person("B", ONE, at_s=AHEAD_S + 0.1))
    assert upgrades == [1, 2]


async def test_who_shares_a_socket_asks_on_lanes_of_it_side_by_side() -> None:
    waiting: list[tuple[ServerConnection, Body]] = []
    lock = threading.Lock()

    def answer_when_all_have_asked(connection: ServerConnection, asked: Body) -> None:
        with lock:
            waiting.append((connection, asked))
            if len(waiting) < 6:
                return
        for each, whose in waiting:
            begin(lane(each, whose), "Hello")
        for each, whose in reversed(waiting):
            end(lane(each, whose))

    people = [Person(f"{n}", ONE, client=f"socket {n % 2 + 1}") for n in range(6)]
    with scripted_server(answer_when_all_have_asked) as server:
        report, exchanges = await played(server, *people)
    assert report.requests.finished == 6
    assert (report.sockets.asked, report.sockets.opened, len(server.upgrades)) == (2, 2, 2)
    assert len({asked["stream_id"] for _, asked in waiting}) == 6
    assert len({exchange.socket for exchange in exchanges}) == 2
    assert report.client.connect_ms is not None
    assert report.client.connect_ms.count == 2, "of each socket once"


async def test_who_leaves_or_reads_slowly_shares_with_nobody() -> None:
    people = [
        Person("A", ONE, client="c"),
        Person("B", ONE, client="c", leaves_after_chunks=1),
        Person("C", ONE, client="c", reads_chunks_per_s=100.0),
        Person("D", questions(0.0), client="c", reconnects=True),
    ]

    def on_its_lane(connection: ServerConnection, asked: Body) -> None:
        answer(lane(connection, asked) if "stream_id" in asked else connection, asked)

    with scripted_server(on_its_lane) as server:
        report, _ = await played(server, *people)
    assert (report.requests.finished, report.requests.left) == (4, 1)
    assert len(server.upgrades) == 5
    assert sum("stream_id" in asked for asked in server.requests) == 1


async def test_idle_sockets_are_open_and_silent_for_as_long_as_the_run_and_answer_pings() -> None:
    answered: list[bool] = []

    def ping_the_others(connection: ServerConnection, asked: Body) -> None:
        server.until_open(6)
        answered.extend(other.ping().wait(10) for other in server.sockets if other is not connection)
        answer(connection, asked)

    with scripted_server(ping_the_others) as server:
        report, _ = await played(server, Person("A", questions(0.05)), idle=5)
    assert answered == [True] * 10
    assert (report.sockets.asked, report.sockets.opened, report.idle_sockets) == (6, 6, 5)
    assert len(server.upgrades) == 6
    assert len(server.requests) == 2


async def test_idle_sockets_that_the_server_closed_are_not_told_as_open() -> None:
    def close_the_others(connection: ServerConnection, asked: Body) -> None:
        server.until_open(3)
        for other in server.sockets:
            if other is not connection:
                other.close()
        answer(connection, asked)

    with scripted_server(close_the_others) as server:
        report, _ = await played(server, Person("A", (*ONE, *ONE), remembers=False), idle=2)
    assert report.idle_sockets == 0


async def test_a_socket_that_does_not_open_costs_its_person_and_no_other() -> None:
    with scripted_server(answer) as server:
        server.decline = lambda upgrade: (429, '{"error": {"code": "full", "message": "No."}}') if upgrade else None
        report, exchanges = await played(server, Person("A", ONE), Person("B", ONE, ttft_target_s=1.0))
    declined = next(exchange for exchange in exchanges if exchange.outcome == "not_sent")
    assert (declined.code, declined.message) == ("full", f"{server.url.removesuffix('/v1/responses')} answers: No.")
    assert report.sockets.not_opened_by_code == {"full": 1}
    assert (report.requests.finished, report.requests.not_sent) == (1, 1)
    assert not report.all_finished


async def test_a_cancel_while_sockets_open_leaves_none_behind() -> None:
    with scripted_server(answer) as server:
        opening = threading.Event()
        go_on = threading.Event()

        def hold(upgrade: int) -> None:
            if upgrade == 2:
                opening.set()
                go_on.wait(10)

        server.decline = hold
        task = asyncio.create_task(played(server, *(Person(f"{n}", ONE) for n in range(8))))
        await asyncio.to_thread(opening.wait, 10)
        task.cancel()
        go_on.set()
        report, _ = await task
    assert report.stopped_by == "interrupt"
    assert report.requests.not_sent == 8
