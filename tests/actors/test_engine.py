"""The whole engine in virtual time: what it does when one of its actors raises, and how it leaves.

Everything but time, the sockets and the worker process is the real thing, as in the simulation; here single scenes.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.actor import Mailbox
from actors.engine import EngineStopped
from actors.reaper import Patience
from actors.reception import LEAVE_S
from protocol import errors
from protocol.messages import (
    CloseConnection,
    Drain,
    ModelRefused,
    Refused,
    WorkerLost,
)
from tests.actors.engine_house import POISON, House
from tests.actors.recorders import enqueue
from tests.simulation.sockets import Response

# --- when one of the three raises ---


def test_when_there_is_a_worker_again_the_log_says_how_long_there_was_none(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        gone_at = house.loop.time()
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: not house.engine.health.ready)
        await house.ready()
        away.append(house.loop.time() - gone_at)

    away: list[float] = []
    with capture_logs() as logs:
        live(scene)
    [back] = [line for line in logs if line["event"] == "worker.back"]
    assert back["away_s"] == pytest.approx(away[0], abs=0.01)


@pytest.mark.parametrize("actor", ["admission", "scheduler", "executor"])
def test_when_one_of_the_three_raises_every_socket_is_told_and_all_is_served_again(
    actor: str, live: Callable[..., House]
) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        sockets = [house.open() for _ in range(3)]
        for socket in sockets[:2]:
            house.ask(socket)
        await house.running_on(*sockets[:2])
        mailbox: Mailbox[Any] = house.engine.mailboxes[actor]
        mailbox.tell(POISON)
        for socket in sockets[:2]:
            failed = await house.answer(socket)
            assert isinstance(failed, Response)
            assert (failed.status, failed.error_code) == ("failed", "worker_failed")
        assert not house.engine.health.ready
        await house.ready()
        for socket in sockets:
            house.ask(socket)
        for socket, number in zip(sockets, (1, 1, 0), strict=True):
            await house.whole_answer(socket, number)
        for number in (1, 2, 3):
            assert [type(message) for message in house.told[number]].count(WorkerLost) == 1
        assert all(socket.closed is None for socket in sockets)

    with capture_logs() as logs:
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1, 1]
    assert len(house.announced) == 1, "it is announced once"
    assert [entry["event"] for entry in logs if entry["log_level"] in ("error", "critical")] == [
        "actor.failed",
        "worker.restarting",
    ]
    assert "rota_worker_restarts_total 1.0" in house.engine.metrics.exposition().decode()


def test_one_that_raises_again_and_again_is_started_anew_each_time(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        for times in (2, 3, 4):
            house.engine.scheduler.tell(POISON)
            await house.until(lambda: len(house.workers) == times)  # noqa: B023
        await house.ready()
        socket = house.open()
        house.ask(socket)
        await house.whole_answer(socket)

    with capture_logs():
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1, 1, 1, 1]


def test_the_more_often_one_raises_the_longer_it_is_before_the_next_start(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        async def raise_again() -> float:
            await house.ready()
            began, count = house.loop.time(), len(house.workers)
            house.engine.scheduler.tell(POISON)
            await house.until(lambda: len(house.workers) > count)
            return round(house.loop.time() - began, 1)

        assert [await raise_again() for _ in range(4)] == [0.0, 0.5, 1.0, 2.0]
        await asyncio.sleep(60.0)
        assert await raise_again() == 0.0, "it was long ago"

    with capture_logs():
        live(scene)


def test_a_stop_does_not_wait_for_the_next_start_and_nobody_who_asks_before_it_is_lost(
    live: Callable[..., House],
) -> None:
    async def scene(house: House) -> None:
        for _ in range(5):
            await house.ready()
            count = len(house.workers)
            house.engine.scheduler.tell(POISON)
            await house.until(lambda: len(house.workers) > count)  # noqa: B023
        await house.ready()
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: not house.engine.health.ready)
        socket = house.open()
        house.ask(socket)
        await house.whole_answer(socket)
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: not house.engine.health.ready)
        house.ask(socket)
        await asyncio.sleep(1.0)
        house.engine.drain()
        house.engine.drain()
        began = house.loop.time()
        await house.running
        assert house.loop.time() - began < LEAVE_S + 1.0, "the next start would be in 16 s"
        assert not socket.books.open
        assert socket.closed == 1001
        # It still waits for an engine that is no more; a server ends it when it closes.
        serving = house.serving.pop()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    with capture_logs():
        live(scene)


def test_what_a_worker_said_before_one_of_its_three_raised_does_not_count_as_being_ready(
    live: Callable[..., House],
) -> None:
    """It says that it is ready while the vocabulary is still read, and is gone when that is done."""

    async def scene(house: House) -> None:
        await house.until(lambda: house.engine.scheduler.statistics()["control"].taken and house.workers[-1]._alive)
        await asyncio.sleep(0.5)
        house.workers[0].slow_to_die = True
        house.engine.scheduler.tell(POISON)
        await asyncio.sleep(5.0)
        assert not house.engine.health.ready
        assert house.announced == []
        house.workers[0].dead.set()
        await house.ready()
        assert (len(house.workers), len(house.announced)) == (2, 1)

    def late(house: House) -> None:
        def read_slowly(work: Callable[[], Any], done: Callable[[Any], None], whose: str = "") -> None:
            house.loop.call_later(2.0, done, work())

        house.engine._offload = read_slowly

    with capture_logs():
        live(scene, prepare=late)


def test_the_old_workers_death_is_waited_for_before_another_starts(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        house.workers[0].slow_to_die = True
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: not house.engine.health.ready)
        await asyncio.sleep(30.0)
        assert len(house.workers) == 1, "two would not find memory beside each other"
        house.workers[0].dead.set()
        await house.ready()

    with capture_logs():
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1, 1]


def test_a_stop_while_the_old_worker_is_dying_waits_for_its_death_as_well(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        house.workers[0].slow_to_die = True
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: not house.engine.health.ready)
        house.engine.drain()
        await asyncio.sleep(30.0)
        assert not house.running.done()
        house.workers[0].dead.set()

    with capture_logs():
        house = live(scene)
    assert [worker.lives for worker in house.workers] == [1], "and no other is started"


def test_a_first_worker_that_refuses_its_model_ends_it_with_its_sentence(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.until(lambda: house.workers)
        deliver = house.workers[0]._deliver
        assert deliver is not None
        deliver(ModelRefused("There is no such model."))
        with pytest.raises(EngineStopped, match=r"^There is no such model\.$"):
            await house.running
        house.running = asyncio.create_task(asyncio.sleep(0), name="engine")

    assert live(scene).announced == []


def test_a_tokeniser_that_cannot_be_read_ends_it_with_a_sentence(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        house.vocabulary = ValueError("its tokenizer.json is empty")
        with pytest.raises(
            EngineStopped, match=r"^The model's tokeniser cannot be used: its tokenizer.json is empty\.$"
        ):
            await house.running
        house.running = asyncio.create_task(asyncio.sleep(0), name="engine")

    assert live(scene).announced == []


def test_a_worker_that_refuses_after_one_of_the_three_has_raised_is_started_again(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        house.engine.scheduler.tell(POISON)
        await house.until(lambda: len(house.workers) == 2 and house.workers[1]._alive)
        deliver = house.workers[1]._deliver
        assert deliver is not None
        deliver(ModelRefused("There is too little memory just now."))
        house.workers[1].kill()
        await house.ready()
        assert house.workers[1].lives == 2

    with capture_logs():
        live(scene)


# --- draining ---


def test_a_connection_that_opens_while_it_drains_is_told_so(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        busy = house.open()
        house.ask(busy)
        await house.running_on(busy)
        house.engine.drain()
        until = house.loop.time() + 20.0
        late = house.open()
        house.ask(late)
        assert await house.answer(late) == "shutting_down"
        assert house.told[2][0] == Drain(until), "before anything it has to say itself"
        assert late.closed is None, "it is closed with the others"
        await house.whole_answer(busy)

    with capture_logs():
        house = live(scene)
    assert [told.code for told in house.told[2] if isinstance(told, CloseConnection)] == [1001]


def test_a_connection_that_opens_when_it_has_drained_is_closed_like_the_others(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        stuck = house.open()
        stuck.read(False)
        house.ask(stuck)
        await house.until(lambda: house.engine.tokeniser.statistics()["data"].taken)
        house.engine.drain()
        house.engine.drain()
        await house.until(lambda: any(isinstance(told, CloseConnection) for told in house.told.get(1, ())))
        assert not house.running.done(), "it waits for the one whose reader has stopped"
        late = house.open()
        before = house.loop.time()
        await house.until(lambda: late.closed)
        assert late.closed == 1001
        assert house.loop.time() - before < 0.5
        error = errors.stopped_in_the_middle()
        assert CloseConnection(2, 1001, "the server is shutting down", error) in house.told[2]

    with capture_logs():
        live(scene)


def test_an_admission_that_starts_anew_while_it_drains_accepts_nothing(live: Callable[..., House]) -> None:
    async def scene(house: House) -> None:
        await house.ready()
        socket = house.open()
        house.ask(socket)
        await house.running_on(socket)
        house.engine.drain()
        house.engine.admission.tell(POISON)
        await house.until(lambda: len(house.workers) == 2)
        assert house.engine.admission.offer(enqueue("late", connection=1, received_at=house.loop.time()))
        await house.until(lambda: any(isinstance(told, Refused) for told in house.told[1]))
        assert Refused("late", errors.shutting_down()) in house.told[1]

    with capture_logs():
        live(scene, patience=Patience(tick_s=5.0))
