"""A reader who leaves, however and whenever, gives the memory back at once, and nobody else notices."""

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest

from tests.end_to_end.client import TERMINAL, Client, Event, connected
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Metrics, Server, until

ENDLESS: dict[str, object] = {"max_output_tokens": 7000, "ignore_eos": True}
STORY = "Tell me a story without an end."


def lasting(moment: str) -> tuple[str, dict[str, object]]:
    """What to ask to be in that state for a while, on a server that runs one request at a time."""
    if moment != "prefilling":
        return STORY, ENDLESS
    # 7,700 tokens of the byte tokeniser: 480 chunks of 16. No two begin alike, so no cache makes them short.
    return f"{next(NUMBERS)}. " + "Say it again. " * 550, {"max_output_tokens": 100}


NUMBERS = count(1)


WAYS = ["one step in flight", "two steps in flight"]


@pytest.fixture(params=["plain_server", "overlapped_server"], ids=WAYS)
def server(request: pytest.FixtureRequest) -> Server:
    """What is claimed here holds whether a step is planned while another runs or not."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["plain_narrow", "overlapped_narrow"], ids=WAYS)
def narrow(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


REACHED = {
    "queued": ("response.queued", 1),
    "prefilling": ("response.in_progress", 1),
    "decoding": ("response.output_text.delta", 3),
}
"""How a client sees that it is."""


def is_gone(moment: str, seen: Metrics) -> bool:
    """Whoever left in this moment has left no trace. In front of the one that was queued, another still runs."""
    if moment == "queued":
        return seen.requests == {"queued": 0, "prefilling": 0, "decoding": 1, "preempted": 0}
    return seen.blocks["used"] == 0 and not any(seen.requests.values())


@asynccontextmanager
async def in_front(moment: str, narrow: Server) -> AsyncIterator[None]:
    """Somebody whose turn it is, for as long as the one under test is to be queued."""
    if moment != "queued":
        yield
        return
    async with connected(narrow) as first:
        await first.create(STORY, **ENDLESS)
        await first.until("response.output_text.delta")
        yield
        await first.until("response.output_text.delta")
    await narrow.empty()


class Doomed:
    """A client in a process of its own, to be killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hears(self, kind: str, times: int = 1) -> None:
        assert self._process.stdout is not None
        while times:
            line = (await self._process.stdout.readline()).decode().strip()
            assert line, "the client ended by itself"
            times -= line == kind

    async def kill(self) -> None:
        self._process.kill()


@asynccontextmanager
async def doomed(server: Server, frames: Sequence[Event], deaf: bool = False) -> AsyncIterator[Doomed]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.end_to_end.doomed_client", server.url), stdin=pipe, stdout=pipe
    )
    try:
        lines = [*map(json.dumps, frames), "deaf" if deaf else ""]
        assert process.stdin is not None
        process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        await process.stdin.drain()
        client = Doomed(process)
        await client.hears("sent")
        yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def create_frame(server: Server, text: str, **fields: object) -> Event:
    return {"type": "response.create", "model": server.model, "input": text, "temperature": 0, **fields}


@pytest.mark.parametrize("moment", REACHED)
async def test_response_cancel_gives_every_block_back_and_nothing_is_said_after_it(narrow: Server, moment: str) -> None:
    text, fields = lasting(moment)
    before = await narrow.empty()
    async with connected(narrow) as client:
        async with in_front(moment, narrow):
            await client.create(text, **fields)
            await client.until(*REACHED[moment])
            await narrow.lets_go_in_time(before, client.cancel, lambda seen: is_gone(moment, seen))
            answer = await client.answer()
        assert (answer.reason, answer.response["status"]) == ("cancelled", "cancelled")
        assert "incomplete_details" not in answer.response
        # Whatever was still to be said of it would come before the answer to this.
        assert (await client.ask("Still there?", max_output_tokens=3)).reason == "length"
        of_it = [event for event in client.heard if event.get("response", {}).get("id") == answer.id]
        assert of_it[-1] == answer.terminal
        assert (await narrow.finished(answer.id))["finish_reason"] == "cancelled"


@pytest.mark.parametrize("moment", REACHED)
async def test_closing_the_socket_gives_every_block_back(narrow: Server, moment: str) -> None:
    text, fields = lasting(moment)
    before = await narrow.empty()
    async with in_front(moment, narrow), connected(narrow) as client:
        await client.create(text, **fields)
        await client.until(*REACHED[moment])
        await narrow.lets_go_in_time(before, client.connection.close, lambda seen: is_gone(moment, seen))


@pytest.mark.parametrize("moment", REACHED)
async def test_killing_the_client_gives_every_block_back(narrow: Server, moment: str) -> None:
    text, fields = lasting(moment)
    before = await narrow.empty()
    frames = [create_frame(narrow, text, **fields)]
    async with in_front(moment, narrow), doomed(narrow, frames) as client:
        await client.hears(*REACHED[moment])
        await narrow.lets_go_in_time(before, client.kill, lambda seen: is_gone(moment, seen))


async def test_a_client_that_floods_its_socket_reads_nothing_and_dies_is_noticed_as_fast(server: Server) -> None:
    before = await server.empty()
    frames = [create_frame(server, STORY, stream_id=f"lane-{number % 40}", **ENDLESS) for number in range(600)]
    async with doomed(server, frames, deaf=True) as client:
        await server.shows(lambda seen: seen.requests["decoding"] >= 20)
        await server.lets_go_in_time(before, client.kill)


async def test_lanes_and_sockets_beside_a_cancel_do_not_notice(server: Server, legible: Reference) -> None:
    expected = legible.answer("Mind your own business.", 150, ignore_eos=True).text
    async with connected(server) as client, connected(server) as elsewhere:
        neighbours = (client.lane("beside"), elsewhere)
        for neighbour in neighbours:
            await neighbour.create("Mind your own business.", max_output_tokens=150, ignore_eos=True)
        for number in range(5):
            async with connected(server) as leaving:
                await leaving.create(STORY, **ENDLESS)
                await client.create(STORY, **ENDLESS)
                await leaving.until("response.output_text.delta")
                await client.until("response.output_text.delta", number + 1)
                await client.cancel()
                assert (await client.answer()).reason == "cancelled"
        for neighbour in neighbours:
            assert (await neighbour.answer()).text == expected


async def test_after_500_random_cancels_no_block_is_missing(server: Server, legible: Reference) -> None:
    await server.empty()
    before = await server.metrics()
    chance = random.Random(500)

    async def cancel_often(times: int, chance: random.Random) -> None:
        """On one socket after another: it lasts until it is its turn to be closed."""
        while times:
            async with connected(server) as client:
                while times and await cancel_once(client, times, chance):
                    times -= 1
                times -= bool(times)

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(cancel_often(50, random.Random(chance.random())))
    after = await server.empty()
    ended = {
        reason: int(
            after.value("rota_requests_finished_total", reason=reason)
            - before.value("rota_requests_finished_total", reason=reason)
        )
        for reason in ("cancelled", "length", "failed")
    }
    print(ended, f"mean release {after.mean('rota_cancel_to_release_seconds', before) * 1e3:.1f} ms")
    assert ended["failed"] == 0
    assert ended["cancelled"] >= 400
    async with connected(server) as client:
        assert (await client.ask("Hello?", max_output_tokens=20)).text == legible.answer("Hello?", 20).text


async def cancel_once(client: Client, number: int, chance: random.Random) -> bool:
    """Ask, hear a few events, and leave in one way or another. Whether the socket is still there."""
    lane = client.lane(f"lane-{number}")
    text = "".join(chance.choices("abcdefgh ", k=chance.randint(1, 400)))
    await lane.create(text, max_output_tokens=300, ignore_eos=True)
    created = await lane.event() if chance.random() < 0.8 else None
    for _ in range(chance.choice((0, 0, 1, 2, 5)) if created else 0):
        if (await lane.event())["type"] in TERMINAL:
            await lane.answer()
            return True
    match chance.choice(("by id", "by lane", "by lane", "close", "vanish")):
        case "close":
            await client.connection.close()
            return False
        case "vanish":
            client.vanish()
            return False
        case "by id" if created:
            await client.cancel_response(created["response"]["id"])
        case _:
            await lane.cancel()
    answer = await lane.answer()
    assert answer.reason in ("cancelled", "length")
    return True


async def test_cancelling_what_is_over_or_never_was_is_met_with_silence(client: Client) -> None:
    answer = await client.ask("Be quick.", max_output_tokens=2)
    await client.cancel_response(answer.id)
    await client.cancel_response("resp_of_nobody")
    await client.lane("empty").cancel()
    assert (await client.ask("Still there?", max_output_tokens=2)).reason == "length"


async def test_a_stopped_answer_can_be_continued_from(client: Client) -> None:
    await client.create(STORY, **ENDLESS)
    await client.until("response.output_text.delta", 5)
    await client.cancel()
    stopped = await client.answer()
    following = await client.ask("Go on.", previous_response_id=stopped.id, max_output_tokens=2)
    # One token a byte: question, answer as far as it was heard, question, and what the template puts around them.
    said = f"{STORY}{stopped.text}Go on."
    assert following.usage["input_tokens"] > len(said.encode())
    assert (
        await client.ask(previous_response_id=following.id, input=None, max_output_tokens=1, ignore_eos=True)
    ).reason == "length"


async def test_nothing_is_left_of_a_socket_that_never_asked(server: Server) -> None:
    open_before = (await server.metrics()).value("rota_connections")
    async with connected(server):
        await server.shows(lambda seen: seen.value("rota_connections") == open_before + 1)

    async def closed() -> bool:
        return (await server.metrics()).value("rota_connections") == open_before

    assert await until(closed)
