"""The whole engine in virtual time: its settings reach those they are for, and its figures are true."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from protocol.messages import (
    Accepted,
    Refused,
)
from tests.actors.engine_house import ONE_AT_A_TIME, House

# --- the settings reach those they are for ---


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"max_waiting": 1}, "The one place to wait is taken"),
        ({"max_waiting_work_s": 0.1}, "of work are waiting, and this is"),
        ({"max_wait_s": 0.05}, "and nobody is let to wait longer than 50 ms"),
    ],
)
def test_the_waiting_room_is_as_large_as_its_settings_say(
    setting: dict[str, Any], sentence: str, live: Callable[..., House]
) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        first = house.open()
        for number in (1, 2, 3):
            socket = first if number == 1 else house.open()
            house.ask(socket)
            await house.until(lambda: any(isinstance(told, Accepted | Refused) for told in house.told.get(number, ())))  # noqa: B023
        assert await house.answer(socket) == "server_overloaded"
        (refused,) = (told for told in house.told[3] if isinstance(told, Refused))
        assert sentence in refused.error.message
        await house.whole_answer(first)

    live(scene, config=structs.replace(ONE_AT_A_TIME, **setting))


def test_what_the_worker_measured_says_which_deadlines_cannot_be_met(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        socket, other = house.open(), house.open()
        house.ask(socket, deadline_ms=5)
        assert await house.answer(socket) == "deadline_exceeded"
        (refused,) = (told for each in house.told.values() for told in each if isinstance(told, Refused))
        assert refused.error.message.startswith("The first token would come after about ")
        assert house.engine.scheduler.statistics()["data"].taken == 0
        house.ask(other, deadline_ms=30_000)
        await house.whole_answer(other)

    live(scene)


# --- figures ---


def test_while_a_worker_is_started_again_all_wait_in_the_room_without_an_estimate_and_are_counted(
    live: Callable[..., House],
) -> None:
    async def scene(house: House) -> None:
        def queued() -> float | None:
            return house.engine.metrics.registry.get_sample_value("rota_requests", {"state": "queued"})

        await house.ready()
        early = house.open()
        house.ask(early)
        await house.whole_answer(early)
        house.workers[0].kill()
        await house.until(lambda: not house.engine.health.ready)
        sockets = [house.open() for _ in range(3)]
        for socket in sockets:
            house.ask(socket)
        await house.until(lambda: queued() == 3)
        told = [one for each in house.told.values() for one in each if isinstance(one, Accepted)][1:]
        assert len(told) == 3
        assert all(one.position > 0 and one.estimated_wait_s is None for one in told)
        assert house.engine.scheduler.statistics()["data"].taken == 1, "none of them has left the room"
        await house.ready()
        for socket in sockets:
            await house.whole_answer(socket)
        assert queued() == 0

    with capture_logs() as logs:
        live(scene, config=ONE_AT_A_TIME)
    finished = [entry for entry in logs if entry["event"] == "request.finished"]
    assert len(finished) == 4
