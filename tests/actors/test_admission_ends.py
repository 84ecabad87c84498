"""The ways out of the waiting room: cancels, clocks and readers that have gone."""

import pytest

from protocol import errors
from protocol.messages import (
    Accepted,
    Cancel,
    CloseStream,
    Ended,
    Expire,
    Forget,
    Released,
    Stats,
    Sweep,
)
from tests.actors.recorders import enqueue
from tests.actors.test_admission import SECOND_A_TOKEN, Room

# --- cancels ---


def test_a_cancel_in_the_room_ends_and_releases_it_and_moves_the_others_up() -> None:
    room = Room()
    room.say(enqueue("a"), enqueue("b"))
    room.clock.pass_(3.0)
    room.say(Cancel("a", 102.5))
    assert room.connection.of(Ended) == [Ended("a", "cancelled", Stats(queued_s=3.0))]
    assert room.connection.of(Released) == [Released("a", 103.0, 102.5)]
    assert room.reaper.of(Released) == [Released("a", 103.0, 102.5)]
    assert [(request, position) for request, position, _ in room.moved] == [("b", 1)]
    assert room.figure("rota_cancel_to_release_seconds_sum") == 0.5
    room.grant(2)
    room.say(Cancel("a", 104.0))
    assert room.let_in == ["b"]
    assert room.released == ["a"]


def test_a_cancel_behind_a_request_that_was_let_in_is_passed_on() -> None:
    room = Room(credit=1)
    room.say(enqueue("r"), Cancel("r", 101.0, keep="half"))
    assert room.scheduler.of(Cancel) == [Cancel("r", 101.0, keep="half")]
    assert room.released == []


def test_a_cancel_that_overtook_its_request_ends_it_on_arrival() -> None:
    room = Room(credit=1)
    room.say(Cancel("r", 99.0), enqueue("r"), enqueue("q"))
    assert [(ended.request, ended.reason) for ended in room.connection.of(Ended)] == [("r", "cancelled")]
    assert room.released == ["r"]
    assert room.let_in == ["q"]
    assert "r" not in [told.request for told in room.connection.of(Accepted)]


async def test_a_cancel_overtakes_its_request_in_the_mailbox_and_still_ends_it() -> None:
    room = Room(credit=1)
    assert room.actor.address.offer(enqueue("r"))
    room.actor.address.tell(Cancel("r", 99.0))
    for _ in range(2):
        room.say(await room.mailbox.take())
    assert room.let_in == []
    assert room.released == ["r"]


def test_a_cancel_after_the_release_reaches_nobody_and_its_tombstone_is_swept() -> None:
    room = Room(credit=2)
    room.say(enqueue("r"), Released("r", 101.0), Cancel("r", 101.5))
    assert room.scheduler.of(Cancel) == []
    room.say(Sweep(room.clock.pass_(61.0)), enqueue("r"))
    assert room.let_in == ["r", "r"]


# --- clocks ---


def test_the_patience_of_the_room_ends_one_that_waits() -> None:
    room = Room(wait_s=60.0)
    room.say(enqueue("a"), enqueue("b"))
    room.clock.pass_(60.0)
    room.say(Expire("a", 160.0, waiting=True))
    (ended,) = room.connection.of(Ended)
    assert ended == Ended("a", "failed", Stats(queued_s=60.0), errors.deadline_exceeded(60_000.0, None))
    assert room.released == ["a"]
    assert [request for request, _, _ in room.moved] == ["b"]


def test_a_deadline_ends_one_that_waits_and_names_the_clients_own_limit() -> None:
    room = Room()
    room.say(enqueue("a", received_at=99.0, deadline_at=104.0))
    room.clock.pass_(4.0)
    room.say(Expire("a", 104.0, waiting=False))
    (ended,) = room.connection.of(Ended)
    assert ended.error == errors.deadline_exceeded(4000.0, 5000.0)
    assert room.released == ["a"]


@pytest.mark.parametrize("waiting", [True, False])
def test_patience_and_deadline_of_one_that_was_let_in_are_passed_on(waiting: bool) -> None:
    room = Room(credit=1)
    room.say(enqueue("r", deadline_at=104.0), Expire("r", 104.0, waiting))
    assert room.scheduler.of(Expire) == [Expire("r", 104.0, waiting)]
    assert room.connection.of(Ended) == []
    assert room.released == []


def test_an_expiry_after_the_release_reaches_nobody() -> None:
    room = Room(credit=1)
    room.say(enqueue("r", deadline_at=104.0), Released("r", 101.0), Expire("r", 104.0, waiting=False))
    room.say(Expire("r", 160.0, waiting=True), Expire("never came", 104.0, waiting=True))
    assert room.scheduler.of(Expire) == []


async def test_patience_does_not_replace_a_deadline_in_the_mailbox() -> None:
    room = Room(credit=1)
    room.say(enqueue("r", deadline_at=104.0))
    room.actor.address.tell(Expire("r", 104.0, waiting=False))
    room.actor.address.tell(Expire("r", 104.0, waiting=True))
    for _ in range(2):
        room.say(await room.mailbox.take())
    assert room.scheduler.of(Expire) == [Expire("r", 104.0, waiting=False), Expire("r", 104.0, waiting=True)]


# --- readers that have gone ---


def test_a_request_whose_reader_has_gone_is_not_let_in() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("gone", connection=2), enqueue("a"), enqueue("b"))
    room.clock.pass_(5.0)
    room.directory.remove(2)
    room.grant(1)
    assert room.let_in == ["a"], "the credit is another's"
    assert room.released == ["gone"]
    assert room.reaper.of(Released) == [Released("gone", 105.0, 105.0)]
    assert room.tokeniser.heard == [Forget("gone")]
    assert room.detokeniser.heard == [CloseStream("gone")]
    assert [type(told) for told in room.connections[2].heard] == [Accepted], "nobody is left to tell"
    assert [(request, position) for request, position, _ in room.moved] == [("b", 1)]


def test_the_cancel_of_a_reader_that_had_gone_comes_to_nothing() -> None:
    room = Room()
    room.say(enqueue("gone", connection=2))
    room.directory.remove(2)
    room.grant(1)
    room.say(Cancel("gone", 101.0), Expire("gone", 160.0, waiting=True))
    assert room.released == ["gone"]
    assert room.scheduler.heard == []
    assert room.waiting() == 0


def test_a_whole_crowd_that_has_gone_makes_way_for_the_next_at_one_credit() -> None:
    room = Room(places=100)
    room.say(*(enqueue(f"gone {number}", connection=2) for number in range(30)))
    room.say(enqueue("here"))
    room.directory.remove(2)
    room.grant(1)
    assert room.let_in == ["here"]
    assert len(room.released) == len(set(room.released)) <= 30
