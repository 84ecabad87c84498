"""The same people over chat completions: what they say again, how they leave and how they read."""

import asyncio

import pytest

from protocol.people import Person
from tests.loadgen.chat_server import Answer, Body, answer, chat_server, usage
from tests.loadgen.playing import ONE, played, questions


async def test_a_follow_up_tells_the_conversation_again_with_the_answer_that_came() -> None:
    async with chat_server(answer) as server:
        report, exchanges = await played(server, Person("A", questions(0.0, 0.0)))
    assert report.requests.finished == 3
    first, second, third = (asked["messages"] for asked in server.requests)
    said = {"role": "assistant", "content": "Hello ✓."}
    assert [message["role"] for message in first] == ["user"]
    assert second[:2] == [*first, said]
    assert third[:4] == [*second, said]
    assert len(third) == 5
    assert "store" not in server.requests[0], "nobody keeps it there"
    assert server.connections == 1
    assert exchanges[1].due_s == exchanges[0].ended_s


async def test_who_does_not_remember_says_nothing_again() -> None:
    async with chat_server(answer) as server:
        await played(server, Person("A", questions(0.0), remembers=False))
    assert [len(asked["messages"]) for asked in server.requests] == [1, 1]


async def test_who_leaves_closes_the_connection_and_the_server_sees_it() -> None:
    closed = asyncio.Event()

    async def endless(to: Answer, asked: Body) -> None:
        to.begin()
        try:
            while True:
                to.text("Hello")
                await to.writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            closed.set()
            raise

    async with chat_server(endless) as server:
        report, [left] = await played(server, Person("A", ONE, leaves_after_chunks=5))
        await asyncio.wait_for(closed.wait(), 10)
    assert (left.outcome, len(left.texts_s)) == ("left", 5)
    assert (report.requests.left, report.requests.dropped) == (1, 0)


async def test_who_comes_back_or_reconnects_has_another_connection() -> None:
    async with chat_server(answer) as server:
        back = Person("A", ONE, leaves_after_chunks=1, comes_back_s=0.0)
        report, _ = await played(server, back, Person("B", questions(0.0), reconnects=True))
    assert (report.requests.left, report.requests.finished) == (1, 3)
    assert server.connections == 4


async def test_a_slow_reader_holds_the_server_up() -> None:
    sent = 0

    async def pour(to: Answer, asked: Body) -> None:
        nonlocal sent
        to.begin()
        for _ in range(400):  # 26 MB: more than all buffers between the two
            to.text("x" * 2**16)
            await to.writer.drain()
            sent += 1
        to.finish("length", usage(400))

    async with chat_server(pour) as server:
        _, [reading] = await played(server, Person("A", ONE, reads_chunks_per_s=50.0, leaves_after_chunks=20))
        slow = sent
    assert len(reading.texts_s) == 20
    assert all(gap >= 20.0 for gap in reading.gaps_ms)
    assert slow < 200, "it had to wait for who does not read"


async def test_the_first_of_an_answer_is_its_head() -> None:
    async def late_text(to: Answer, asked: Body) -> None:
        to.begin()
        await to.writer.drain()
        await asyncio.sleep(0.05)
        to.text("Hello")
        to.finish("length", usage(1))

    async with chat_server(late_text) as server:
        _, [exchange] = await played(server, Person("A", ONE))
    assert exchange.ttfb_ms is not None
    assert exchange.ttft_ms is not None
    assert exchange.ttft_ms - exchange.ttfb_ms == pytest.approx(50.0, abs=45.0)


async def test_idle_connections_are_open_for_as_long_as_the_run() -> None:
    async with chat_server(answer) as server:
        report, _ = await played(server, Person("A", ONE), idle=3)
    assert (report.sockets.opened, report.idle_sockets) == (4, 3)
