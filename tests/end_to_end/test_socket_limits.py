"""The limits of one socket, on a server that was given small ones: each with its error."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.end_to_end.client import connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.server import Server

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
IDLE_S, AGE_S = 3.0, 8.0


@pytest.fixture(scope="session")
def strict(shared: Start, legible_folder: Path) -> Server:
    return shared(
        *("--model", str(legible_folder), "--dtype", "float32", "--max-lanes", "3", "--max-running-per-socket", "2"),
        *("--max-messages-per-s", "4", "--max-message", "8KiB"),
        *("--socket-idle-s", str(IDLE_S), "--socket-age-s", str(AGE_S), "--reader-patience-s", "2"),
    )


async def test_a_lane_too_many_is_refused_until_one_is_free(strict: Server) -> None:
    async with connected(strict) as client:
        lanes = [client.lane(name) for name in "abcd"]
        for lane in lanes:
            await lane.create("Hello", max_output_tokens=500, ignore_eos=True)
        error = (await lanes[-1].answer()).error
        assert error["code"] == "websocket_stream_limit_reached"
        assert " 3 lanes" in error["message"]
        for lane in lanes[:-1]:
            await lane.cancel()
            assert (await lane.answer()).reason in ("cancelled", "length")
        assert (await lanes[-1].ask("Hello", max_output_tokens=1, ignore_eos=True)).reason == "length"


async def test_of_three_lanes_two_run_and_the_third_waits_for_them(strict: Server) -> None:
    async with connected(strict) as client:
        first, second, third = (client.lane(name) for name in "abc")
        await first.create("Hello", max_output_tokens=4_000, ignore_eos=True)
        await second.create("Hello", max_output_tokens=4_000, ignore_eos=True)
        await first.until("response.output_text.delta")
        await second.until("response.output_text.delta")
        await third.create("Hello", max_output_tokens=1, ignore_eos=True)
        await second.until("response.output_text.delta", 20)
        assert third.queue.empty(), "it was begun beside two others"
        await first.cancel()
        assert (await third.answer()).reason == "length"
        await second.cancel()


async def test_messages_too_many_are_refused_and_whoever_goes_on_is_let_go(strict: Server) -> None:
    async with connected(strict) as client:
        for _ in range(60):
            await client.send({"type": "response.create", "model": "nobody", "input": "x"})
        assert await client.closed() == 1008
        assert client.connection.close_reason == "too many messages"
    codes = [event["error"]["code"] for event in client.heard]
    assert codes[:20] == ["model_not_found"] * 20
    assert set(codes[20:]) <= {"model_not_found", "rate_limit_exceeded"}
    assert codes.count("rate_limit_exceeded") >= 20
    waits = [event["error"]["retry_after_ms"] for event in client.heard[20:] if "retry_after_ms" in event["error"]]
    assert waits
    assert all(0 < wait <= 250 for wait in waits)


async def test_a_message_too_large_closes_its_socket(strict: Server) -> None:
    async with connected(strict) as client:
        assert (await client.ask("x" * 100, max_output_tokens=1, ignore_eos=True)).reason == "length"
        await client.create("x" * 8_192)
        assert await client.closed() == 1009


async def test_a_socket_on_which_nothing_is_asked_is_closed(strict: Server) -> None:
    async with connected(strict) as client:
        assert await client.closed() == 1000
        assert "idle" in (client.connection.close_reason or "")
        assert client.heard == []


async def test_a_socket_that_is_old_is_closed_whatever_it_does_and_says_why(strict: Server) -> None:
    async with connected(strict) as client:
        ends = []
        with contextlib.suppress(EOFError, ConnectionClosed):
            while True:
                ends.append(await client.ask("Go on.", max_output_tokens=1_500, ignore_eos=True))
        assert await client.closed() == 1001
        assert client.connection.close_reason == "a connection lasts 8 seconds"
        assert [answer.reason for answer in ends[:-1]] == ["length"] * (len(ends) - 1)
        if ends[-1].reason != "length":
            assert ends[-1].response["rota"]["error_code"] == "websocket_connection_limit_reached"


async def test_a_response_that_can_be_resumed_outlives_the_age_of_its_socket(strict: Server) -> None:
    cut: list[dict[str, Any]] = []
    while not cut or cut[-1]["type"] in TERMINAL:  # It may have been between two answers.
        async with connected(strict) as client:
            with contextlib.suppress(EOFError, ConnectionClosed):
                while True:
                    await client.ask("Go on.", max_output_tokens=1_500, ignore_eos=True, resumable=True)
            begun = [place for place, event in enumerate(client.heard) if event["type"] == "response.created"]
            cut = client.heard[begun[-1] :]
            code, reason = await client.closed(), client.connection.close_reason
    assert (code, reason) == (4006, "a connection lasts 8 seconds")
    async with connected(strict) as client:
        last = {"response_id": cut[0]["response"]["id"], "starting_after": cut[-1]["sequence_number"]}
        await client.send({"type": "response.resume", **last})
        await client.until("response.incomplete")
        events = cut + client.heard
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["usage"]["output_tokens"] == 1_500
