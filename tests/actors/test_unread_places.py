"""What the clients of a key leave unread or abandon takes no place from another key, nor for long from their own.

The whole engine in virtual time. The grace and every patience are longer than a scene may take, so nothing here is
settled by waiting for them.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from actors.config import Config
from actors.connection import ConnectionLimits
from actors.reaper import Patience
from tests.actors.engine_house import CONFIG, House
from tests.simulation.sockets import FakeSocket, Response

LONGEST_S = 60.0
LONG_S = 10 * LONGEST_S
RUNNING = 2
SHUT = structs.replace(CONFIG, max_running=RUNNING, max_wait_s=LONG_S, resume_grace_s=LONG_S)


@pytest.fixture
def shut(live: Callable[..., House]) -> Callable[..., None]:
    """Runs a scene with an engine that is ready, in which nobody's patience ends."""

    def run(scene: Callable[[House], Coroutine[Any, Any, None]], config: Config = SHUT) -> None:
        async def whole(house: House) -> None:
            await house.ready()
            began = house.loop.time()
            await scene(house)
            assert house.loop.time() - began < LONGEST_S, "it was waited for what was not to end"

        live(whole, patience=Patience(reader_stalled_s=LONG_S), config=config, limits=ConnectionLimits(pause_chars=8))

    return run


def figure(house: House, name: str) -> float:
    value = house.engine.metrics.registry.get_sample_value(name)
    assert value is not None, name
    return value


async def abandoned(house: House, key: str = "") -> Response:
    """Of an answer of which something was read, and then the network was gone."""
    socket = house.open(key)
    house.ask(socket, resumable=True)
    await house.running_on(socket)
    socket.leave(1006)
    await asyncio.sleep(0.1)
    (response,) = socket.books.responses.values()
    return response


async def unread(house: House, key: str = "") -> FakeSocket:
    """Of an answer whose reader does not go on reading. More are asked than come in."""
    socket = house.open(key)
    house.ask(socket)
    socket.read(False)
    await asyncio.sleep(1.0)
    return socket


async def resumed(house: House, response: Response, key: str = "") -> FakeSocket:
    socket = house.open(key, {response.id: response})
    response.books = socket.books
    socket.feed(
        json.dumps({"type": "response.resume", "response_id": response.id, "starting_after": response.events - 1})
    )
    return socket


async def is_answered(house: House, key: str = "") -> None:
    socket = house.open(key)
    house.ask(socket)
    await house.whole_answer(socket)


@pytest.mark.parametrize("leave", [abandoned, unread])
def test_whatever_one_key_leaves_another_is_let_in_at_once(
    shut: Callable[..., None], leave: Callable[[House, str], Coroutine[Any, Any, object]]
) -> None:
    async def scene(house: House) -> None:
        for _ in range(4 * RUNNING):
            await leave(house, "anna")
        assert figure(house, "rota_requests_paused") == 2 * RUNNING
        other = house.open("bert")
        began = house.loop.time()
        house.ask(other)
        await house.running_on(other)
        assert house.loop.time() - began < 0.2, "as on an idle device"
        await house.whole_answer(other)

    shut(scene)


def test_with_one_key_only_those_whose_network_blinked_keep_nobody_out(shut: Callable[..., None]) -> None:
    async def scene(house: House) -> None:
        left = [await abandoned(house) for _ in range(4 * RUNNING)]
        assert figure(house, "rota_requests_paused") == 2 * RUNNING
        await is_answered(house)
        lost = await house.answer(await resumed(house, left[0]))
        assert lost is left[0]
        assert (left[0].status, left[0].error_code) == ("failed", "server_overloaded"), "and he is told"
        kept = await house.answer(await resumed(house, left[-1]))
        assert kept is left[-1]
        assert left[-1].status == "completed", "who was away longest gave way"

    shut(scene)


def test_as_long_as_there_are_places_nobody_gives_way(shut: Callable[..., None]) -> None:
    async def scene(house: House) -> None:
        left = [await abandoned(house) for _ in range(2 * RUNNING - 1)]
        await is_answered(house)
        for response in left:
            assert await house.answer(await resumed(house, response)) is response
            assert response.status == "completed"

    shut(scene)


def test_of_a_key_with_a_bound_of_its_own_those_that_nobody_reads_do_not_count(
    shut: Callable[..., None], tmp_path: Path
) -> None:
    async def scene(house: House) -> None:
        first = await abandoned(house, "anna")
        await is_answered(house, "anna")
        second = await abandoned(house, "anna")
        await is_answered(house, "anna")
        assert await house.answer(await resumed(house, second, "anna")) is second
        assert second.status == "completed"
        assert await house.answer(await resumed(house, first, "anna")) is first
        assert first.error_code == "server_overloaded", "twice as many may be here as may run, and it was the third"

    keys = tmp_path / "keys.toml"
    keys.write_text(f'[anna]\nhash = "sha256:{"0" * 64}"\nrunning = 1\n')
    shut(scene, structs.replace(SHUT, keys_file=str(keys)))


def test_a_reader_who_has_come_back_and_is_slow_gives_way_to_nobody(shut: Callable[..., None]) -> None:
    async def scene(house: House) -> None:
        left = [await abandoned(house) for _ in range(2 * RUNNING)]
        slow = [await resumed(house, response) for response in left]
        for socket in slow:
            socket.read(False)
        await asyncio.sleep(1.0)
        late = house.open()
        house.ask(late)
        await asyncio.sleep(1.0)
        assert not late.books.answers[None], "he waits for one of them"
        for socket in slow:
            socket.read(True)
        for socket, response in zip(slow, left, strict=True):
            assert await house.answer(socket) is response
            assert response.status == "completed"
        await house.whole_answer(late)

    shut(scene)
