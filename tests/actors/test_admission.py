"""The waiting room: accepted, queued or refused; let in by credits, first come, first served; released exactly once."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.actor import Mailbox
from actors.admission import Admission, AdmissionInbox
from actors.directory import Directory
from actors.metrics import Metrics
from protocol import errors
from protocol.messages import (
    Accepted,
    Cancel,
    CloseStream,
    Credit,
    Drain,
    Ended,
    Enqueue,
    Expire,
    Forget,
    Moved,
    Refused,
    Released,
    Stats,
    Sweep,
    Watch,
)
from tests.actors.recorders import HandClock, Recorder, enqueue


class Room:
    """Admission among recorders. Connection 1 is listed."""

    def __init__(self, *, max_waiting: int = 4, max_wait_s: float = 60.0, credit: int = 0, lane: int = 100) -> None:
        self.clock = HandClock()
        self.scheduler = Recorder(lane)
        self.tokeniser, self.detokeniser, self.reaper, self.connection = (Recorder() for _ in range(4))
        directory = Directory()
        directory.add(self.connection.address, 1)
        self.metrics = Metrics()
        self.mailbox: Mailbox[AdmissionInbox] = Mailbox(self.clock, 16)
        self.actor = Admission(
            self.mailbox,
            max_waiting=max_waiting,
            max_wait_s=max_wait_s,
            scheduler=self.scheduler.address,
            tokeniser=self.tokeniser.address,
            detokeniser=self.detokeniser.address,
            reaper=self.reaper.address,
            directory=directory,
            metrics=self.metrics,
            clock=self.clock,
        )
        if credit:
            self.say(Credit(credit))

    def say(self, *messages: AdmissionInbox) -> None:
        for message in messages:
            self.actor.handle(message)

    @property
    def let_in(self) -> list[str]:
        return [message.request for message in self.scheduler.of(Enqueue)]

    @property
    def released(self) -> list[str]:
        return [message.request for message in self.connection.of(Released)]

    def waiting(self) -> int:
        return int(self.metrics.registry.get_sample_value("rota_requests", {"state": "queued"}) or 0)


# --- in ---


def test_with_a_credit_a_request_goes_straight_to_the_scheduler() -> None:
    room = Room(credit=1)
    room.say(enqueue("r", 5, max_output_tokens=7, deadline_at=200.0))
    assert room.connection.heard == [Accepted("r", 5, 7, at=100.0, position=0)]
    assert room.let_in == ["r"]
    assert room.reaper.heard == [Watch("r", 160.0, 200.0)], "it may still wait at the scheduler"
    assert room.waiting() == 0


def test_without_a_credit_it_waits_in_its_place() -> None:
    room = Room(max_wait_s=30.0)
    room.say(enqueue("a"), enqueue("b"))
    assert [(told.request, told.position) for told in room.connection.of(Accepted)] == [("a", 1), ("b", 2)]
    assert room.let_in == []
    assert room.reaper.heard == [Watch("a", 130.0, None), Watch("b", 130.0, None)]
    assert room.waiting() == 2


def test_credits_let_in_first_come_first_served_and_tell_the_others_their_new_place() -> None:
    room = Room()
    room.say(*(enqueue(name) for name in "abcd"), Credit(2))
    assert room.let_in == ["a", "b"]
    assert [(moved.request, moved.position) for moved in room.connection.of(Moved)] == [("c", 1), ("d", 2)]
    room.say(Credit(3))
    assert room.let_in == ["a", "b", "c"]
    assert [moved.request for moved in room.connection.of(Moved)][2:] == ["d"]


def test_the_scheduler_is_told_since_when_it_has_waited() -> None:
    room = Room()
    room.clock.pass_(1.0)
    room.say(enqueue("r", received_at=100.0))
    room.clock.pass_(30.0)
    room.say(Credit(1))
    assert room.scheduler.heard == [enqueue("r", received_at=100.0, accepted_at=101.0)]


def test_a_credit_is_a_running_total_and_never_shrinks() -> None:
    room = Room(credit=2)
    room.say(enqueue("a"), Credit(2), Credit(1), enqueue("b"), enqueue("c"))
    assert room.let_in == ["a", "b"]


def test_whoever_comes_later_does_not_pass_those_who_wait() -> None:
    room = Room()
    room.say(enqueue("a"), Credit(1), Credit(2), enqueue("b"), enqueue("c"))
    assert room.let_in == ["a", "b"]
    assert [told.position for told in room.connection.of(Accepted)] == [1, 0, 1]


def test_the_estimate_is_learned_from_the_pace_of_the_room() -> None:
    room = Room(max_waiting=8)
    room.say(enqueue("a"), enqueue("b"), enqueue("c"))
    assert room.connection.of(Accepted)[-1].estimated_wait_s is None, "nothing has been learned yet"
    for total in (1, 2):
        room.clock.pass_(2.0)
        room.say(Credit(total))
    room.say(enqueue("d"))
    assert room.connection.of(Accepted)[-1].estimated_wait_s == 4.0, "second in the room, two seconds each"


# --- refused ---


def test_a_full_room_refuses_with_a_reason_and_a_retry_time() -> None:
    room = Room(max_waiting=1)
    room.say(enqueue("a"), enqueue("b"))
    (refused,) = room.connection.of(Refused)
    assert (refused.request, refused.error.code) == ("b", "server_overloaded")
    assert refused.error.retry_after_ms == 1000.0
    assert refused.error.message.startswith("All 1 places to wait are taken.")
    assert room.released == ["b"]
    assert room.reaper.heard == [Watch("a", 160.0, None), Released("b", 100.0)]
    assert room.connection.of(Ended) == []


def test_without_places_to_wait_in_there_is_still_the_straight_way() -> None:
    room = Room(max_waiting=0, credit=1)
    room.say(enqueue("a"), enqueue("b"))
    assert room.let_in == ["a"]
    assert [refused.request for refused in room.connection.of(Refused)] == ["b"]


def test_while_draining_nothing_is_accepted_and_whoever_waits_stays() -> None:
    room = Room()
    room.say(enqueue("a"), Drain(110.0), enqueue("b"), Credit(1))
    assert room.connection.of(Refused) == [Refused("b", errors.shutting_down())]
    assert room.let_in == ["a"]


def test_a_deadline_already_passed_is_refused_with_the_figures() -> None:
    room = Room(credit=1)
    room.clock.pass_(2.0)
    room.say(enqueue("r", received_at=100.0, deadline_at=101.5))
    assert room.connection.of(Refused) == [Refused("r", errors.deadline_exceeded(2000.0, 1500.0))]
    assert room.released == ["r"]
    assert room.let_in == []


def test_what_a_refused_request_left_at_its_neighbours_is_forgotten() -> None:
    room = Room(max_waiting=0)
    room.say(enqueue("r"))
    assert room.tokeniser.heard == [Forget("r")]
    assert room.detokeniser.heard == [CloseStream("r")]


# --- cancels ---


def test_a_cancel_in_the_room_ends_and_releases_it_and_moves_the_others_up() -> None:
    room = Room()
    room.say(enqueue("a"), enqueue("b"))
    room.clock.pass_(3.0)
    room.say(Cancel("a", 102.5))
    assert room.connection.of(Ended) == [Ended("a", "cancelled", Stats(queued_s=3.0))]
    assert room.connection.of(Released) == [Released("a", 103.0, 102.5)]
    assert room.reaper.of(Released) == [Released("a", 103.0, 102.5)]
    assert [(moved.request, moved.position) for moved in room.connection.of(Moved)] == [("b", 1)]
    room.say(Credit(2), Cancel("a", 104.0))
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
    room = Room(max_wait_s=60.0)
    room.say(enqueue("a"), enqueue("b"))
    room.clock.pass_(60.0)
    room.say(Expire("a", 160.0, waiting=True))
    (ended,) = room.connection.of(Ended)
    assert ended == Ended("a", "failed", Stats(queued_s=60.0), errors.deadline_exceeded(60_000.0, None))
    assert room.released == ["a"]
    assert [moved.request for moved in room.connection.of(Moved)] == ["b"]


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


# --- whatever happens ---

Act = st.sampled_from(["come", "credit", "cancel", "early cancel", "patience", "deadline", "drain"])


@settings(max_examples=300, deadline=None)
@given(acts=st.lists(Act, max_size=50), max_waiting=st.integers(0, 4))
def test_every_request_is_handed_over_or_released_exactly_once(acts: list[str], max_waiting: int) -> None:
    room = Room(max_waiting=max_waiting)
    came: list[str] = []
    granted = 0
    for number, act in enumerate(acts):
        name = came[number % len(came)] if came else None
        match act:
            case "come" | "early cancel":
                came.append(f"r{number}")
                if act == "early cancel":
                    room.say(Cancel(came[-1], 100.0))
                room.say(enqueue(came[-1], deadline_at=1e6))
            case "credit":
                granted += 1
                room.say(Credit(granted))
            case "drain":
                room.say(Drain(1e6))
            case "cancel" if name:
                room.say(Cancel(name, 100.0))
            case "patience" | "deadline" if name:
                room.say(Expire(name, 100.0, waiting=act == "patience"))
            case _:
                pass
        assert room.waiting() <= max_waiting
        assert len(room.let_in) <= granted
    assert room.let_in == [name for name in came if name in set(room.let_in)], "first come, first served"
    left = room.waiting()
    room.say(Credit(granted + left))
    assert room.waiting() == 0
    assert Counter(room.let_in + room.released) == Counter(came)
    told = [message.request for message in room.connection.heard if isinstance(message, Ended | Refused)]
    assert Counter(told) == Counter(room.released), "and told so once"
