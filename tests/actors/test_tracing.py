"""What a traced mailbox keeps of a message: who sent it, how long it waited, how long it was handled."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors.actor import Mailbox
from actors.tracing import Record, TracedMailbox, Tracer, mailboxes
from protocol.messages import Cancel, Credit, SetPaused, Step, Text
from tests.actors.recorders import HandClock


def step(number: int) -> Step:
    return Step(number, ())


class House:
    """Two actors' mailboxes, a tracer, and a clock that only handlers and the test turn."""

    def __init__(self, most: int = 100) -> None:
        self.clock = HandClock(10.0)
        self.tracer = Tracer(self.clock, lambda: 1_000.0, most)
        self.first: TracedMailbox[Any] = TracedMailbox(self.clock, 8, "first", self.tracer)
        self.second: TracedMailbox[Any] = TracedMailbox(self.clock, 8, "second", self.tracer)

    @property
    def records(self) -> list[Record]:
        return list(self.tracer.records)

    async def handle(self, box: Mailbox[Any], handle: Callable[[Any], None], count: int = 1) -> None:
        """Until `count` more have been recorded."""
        until = len(self.records) + self.tracer.lost + count
        task = asyncio.create_task(box.each(handle))
        while len(self.records) + self.tracer.lost < until:  # noqa: ASYNC110  a turn costs nothing
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_message_is_recorded_with_its_way_when_it_has_been_handled() -> None:
    house = House()
    house.first.offer(step(1))
    house.clock.pass_(2.0)
    seen: list[list[Record]] = []

    def handle(_: object) -> None:
        seen.append(house.records)
        house.clock.pass_(0.5)

    await house.handle(house.first, handle)
    assert seen == [[]]
    assert house.records == [Record(step(1), "", "first", "data", 10.0, 12.0, 12.5)]
    assert house.tracer.unix_s == 990.0


async def test_what_a_handler_sends_comes_from_its_actor_and_what_is_sent_later_does_not() -> None:
    house = House()
    house.first.offer(step(1))

    def pass_on(_: object) -> None:
        house.second.offer(step(2))
        house.second.tell(Cancel("r", 0.0))
        house.second.tell(Text("r", "x", ()))

    await house.handle(house.first, pass_on)
    house.second.offer(step(3))
    await house.handle(house.second, lambda _: None, 4)
    ways = [(type(one.message), one.sender, one.to, one.lane) for one in house.records]
    assert ways == [
        (Step, "", "first", "data"),
        (Cancel, "first", "second", "control"),
        (Step, "first", "second", "data"),
        (Step, "", "second", "data"),
        (Text, "first", "second", "slots"),
    ]


async def test_a_message_that_its_handler_raised_on_is_recorded_and_the_next_is_not_said_to_be_its_senders() -> None:
    house = House()
    house.first.offer(step(1))

    def fail(_: object) -> None:
        house.clock.pass_(0.25)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await house.first.each(fail)
    assert house.records == [Record(step(1), "", "first", "data", 10.0, 10.0, 10.25)]
    assert house.tracer.running == ""


async def test_a_control_message_that_replaced_another_has_its_age_and_its_own_sender() -> None:
    house = House()
    house.second.tell(SetPaused("r", True, 0.0))
    house.clock.pass_(1.0)
    house.first.offer(step(1))
    await house.handle(house.first, lambda _: house.second.tell(SetPaused("r", False, 1.0)))
    await house.handle(house.second, lambda _: None)
    assert house.records[-1] == Record(SetPaused("r", False, 1.0), "first", "second", "control", 10.0, 11.0, 11.0)


async def test_joined_text_has_the_age_and_the_sender_of_the_first() -> None:
    house = House()
    house.first.offer(step(1))
    await house.handle(house.first, lambda _: house.second.tell(Text("r", "he", (1.0,))))
    house.clock.pass_(1.0)
    house.second.tell(Text("r", "llo", (2.0,)))
    await house.handle(house.second, lambda _: None)
    assert house.records[-1] == Record(Text("r", "hello", (1.0, 2.0)), "first", "second", "slots", 10.0, 11.0, 11.0)


async def test_of_a_message_taken_by_hand_nobody_says_when_it_was_handled() -> None:
    house = House()
    house.first.tell(Credit(1, 1))
    house.clock.pass_(1.0)
    assert await house.first.take() == Credit(1, 1)
    assert house.records == [Record(Credit(1, 1), "", "first", "control", 10.0, 11.0, None)]


async def test_a_refused_message_is_not_recorded_and_shifts_no_senders() -> None:
    house = House()
    house.second.capacity = 1
    taken: list[bool] = []

    def flood(_: object) -> None:
        taken.extend((house.second.offer(step(2)), house.second.offer(step(3))))

    house.first.offer(step(1))
    await house.handle(house.first, flood)
    assert taken == [True, False]
    await house.handle(house.second, lambda _: None)
    house.second.offer(step(4))
    await house.handle(house.second, lambda _: None)
    senders = [one.sender for one in house.records]
    assert senders == ["", "first", ""]


async def test_a_cleared_mailbox_has_forgotten_the_senders_too() -> None:
    house = House()
    house.first.offer(step(1))

    def pass_on(_: object) -> None:
        house.second.offer(step(2))
        house.second.tell(Cancel("r", 0.0))
        house.second.tell(Text("r", "x", ()))

    await house.handle(house.first, pass_on)
    house.second.clear()
    house.second.tell(Cancel("r", 0.0))
    house.second.offer(step(2))
    house.second.tell(Text("r", "x", ()))
    await house.handle(house.second, lambda _: None, 3)
    told = [(type(one.message), one.sender) for one in house.records[1:]]
    assert told == [(Cancel, ""), (Step, ""), (Text, "")]


async def test_what_finds_no_room_is_counted_and_handled_all_the_same() -> None:
    house = House(most=2)
    handled: list[object] = []
    for number in range(5):
        house.first.offer(step(number))
    await house.handle(house.first, handled.append, 5)
    assert handled == [step(number) for number in range(5)]
    assert [one.message for one in house.records] == [step(0), step(1)]
    assert house.tracer.lost == 3
    house.first.tell(Credit(1, 1))
    await house.first.take()
    assert house.tracer.lost == 4


async def test_a_tracer_that_has_stopped_keeps_nothing() -> None:
    house = House()
    house.first.offer(step(1))
    await house.handle(house.first, lambda _: None)
    house.tracer.stop()
    assert house.records == []
    house.first.offer(step(1))
    await house.handle(house.first, lambda _: None)
    assert house.records == []


def test_whoever_does_not_trace_gets_plain_mailboxes() -> None:
    clock = HandClock()
    assert type(mailboxes(clock, None)("scheduler", 3)) is Mailbox
    traced = mailboxes(clock, Tracer(clock, clock))("scheduler", 3)
    assert type(traced) is TracedMailbox
    assert traced.room == 3
