"""The bounds of single keys: requests a minute, and how many at once, on all sockets of a key together."""

from typing import Any

from actors.actor import Mailbox
from actors.admission import Admission
from actors.scheduling.allowances import Allowances
from actors.scheduling.bounds import Bounds
from protocol.messages import Accepted, Cancel, Drain, GiveWay, Refused, Released, Unread
from tests.actors.recorders import enqueue
from tests.actors.test_admission import Room


def guarded(room: Room, *, allowances: Allowances | None = None, **running_of: int) -> Room:
    """The same room, with bounds for keys."""
    bounds: Any = {"allowances": allowances or Allowances(), "running_of": running_of}
    room.actor = Admission(
        Mailbox(room.clock, 16),
        bounds=Bounds(16, 300.0, 60.0),
        max_running=64,
        chunk_tokens=512,
        scheduler=room.scheduler.address,
        tokeniser=room.tokeniser.address,
        detokeniser=room.detokeniser.address,
        reaper=room.reaper.address,
        directory=room.directory,
        metrics=room.metrics,
        clock=room.clock,
        tell_every_s=0.0,
        has_worker=True,
        **bounds,
    )
    return room


# --- a minute ---


def test_within_any_minute_a_key_asks_only_so_often_whichever_its_sockets() -> None:
    room = guarded(Room(), allowances=Allowances({"anna": 2}))
    room.grant(100)
    room.say(enqueue("a", tenant="anna"))
    room.clock.pass_(30.0)
    room.say(enqueue("b", tenant="anna", connection=2), enqueue("c", tenant="anna", connection=3))
    error = room.refusals["c"]
    assert (error.code, error.status, error.retry_after_ms) == ("rate_limit_exceeded", 429, 30_000.0)
    assert error.message == "This key has asked 2 times within a minute, the most it may. Try again in 30.0 s."
    assert room.let_in == ["a", "b"]
    assert room.released == ["c"]


def test_it_may_ask_again_when_it_was_told_to() -> None:
    room = guarded(Room(), allowances=Allowances({"anna": 1}))
    room.grant(100)
    room.say(enqueue("a", tenant="anna"), enqueue("b", tenant="anna"))
    retry_s = (room.refusals["b"].retry_after_ms or 0.0) / 1e3
    room.clock.pass_(retry_s - 0.001)
    room.say(enqueue("c", tenant="anna"))
    room.clock.pass_(0.001)
    room.say(enqueue("d", tenant="anna"))
    assert room.let_in == ["a", "d"]


def test_other_keys_and_those_without_a_bound_go_on() -> None:
    room = guarded(Room(), allowances=Allowances({"anna": 1}))
    room.grant(100)
    room.say(enqueue("a", tenant="anna"), enqueue("b", tenant="anna"))
    room.say(enqueue("c", tenant="bert"), enqueue("d"), enqueue("e"))
    assert room.let_in == ["a", "c", "d", "e"]


def test_what_was_refused_or_withdrawn_before_it_came_does_not_count() -> None:
    room = guarded(Room(), allowances=Allowances({"anna": 1}))
    room.grant(100)
    room.say(Cancel("a", room.clock(), None), enqueue("a", tenant="anna"))
    room.say(enqueue("late", tenant="anna", deadline_at=room.clock()))
    room.say(enqueue("b", tenant="anna"))
    assert room.let_in == ["b"]


def test_what_was_asked_still_counts_when_admission_starts_anew() -> None:
    allowances = Allowances({"anna": 1})
    room = guarded(Room(), allowances=allowances)
    room.grant(100)
    room.say(enqueue("a", tenant="anna"))
    room = guarded(room, allowances=allowances)
    room.grant(100)
    room.say(enqueue("b", tenant="anna"))
    assert list(room.refusals) == ["b"]


def test_what_is_kept_of_a_key_is_no_more_than_its_bound() -> None:
    allowances = Allowances({"anna": 3})
    for now in range(1000):
        if not allowances.wait_s("anna", float(now)):
            allowances.count("anna", float(now))
    assert len(allowances._asked["anna"]) <= 3
    allowances.count("bert", 0.0)
    assert "bert" not in allowances._asked


def test_those_that_were_asked_and_are_not_counted_yet_are_taken_to_be() -> None:
    allowances = Allowances({"anna": 3})
    for now in (0.0, 10.0):
        allowances.count("anna", now)
    assert allowances.wait_s("anna", 20.0) == 0.0
    assert [allowances.wait_s("anna", 20.0, ahead) for ahead in (1, 2, 3)] == [40.0, 50.0, 60.0]
    assert allowances.wait_s("bert", 20.0, 100) == 0.0


# --- at once ---


def test_a_key_has_so_many_at_once_and_the_next_comes_in_when_one_ends() -> None:
    room = guarded(Room(), anna=2)
    room.grant(100)
    room.say(*(enqueue(name, tenant="anna", connection=1 + number) for number, name in enumerate("abc")))
    assert room.let_in == ["a", "b"]
    room.say(enqueue("d", tenant="bert"))
    assert room.let_in == ["a", "b", "d"], "who waits for his own key keeps nobody else out"
    room.say(Released("a", room.clock()))
    assert room.let_in == ["a", "b", "d", "c"]


def test_as_many_may_wait_and_more_are_told_when_to_come_back() -> None:
    room = guarded(Room(), anna=2)
    room.grant(100)
    room.say(*(enqueue(name, tenant="anna", connection=1 + number % 3) for number, name in enumerate("abcde")))
    error = room.refusals["e"]
    assert (error.code, error.retry_after_ms) == ("rate_limit_exceeded", 1000.0)
    assert error.message == ("2 requests of this key wait already, as many as it may have running. Try again in 1.0 s.")
    room.say(Cancel("c", room.clock(), None), enqueue("f", tenant="anna"))
    assert list(room.refusals) == ["e"]


def test_a_request_that_waits_for_its_key_is_told_its_place_and_may_be_cancelled() -> None:
    room = guarded(Room(), anna=1)
    room.grant(100)
    room.say(enqueue("a", tenant="anna"), enqueue("b", tenant="anna"))
    assert [(told.request, told.position) for told in room.connection.of(Accepted)] == [("a", 0), ("b", 1)]
    room.say(Cancel("b", room.clock(), None))
    room.say(Released("a", room.clock()))
    assert room.let_in == ["a"]
    assert room.released == ["b"]


def test_while_draining_a_bound_is_not_what_a_client_hears_of() -> None:
    room = guarded(Room(), allowances=Allowances({"anna": 1}))
    room.say(Drain(110.0), enqueue("a", tenant="anna"))
    assert [refused.error.code for refused in room.connection.of(Refused)] == ["shutting_down"]


# --- those that nobody reads ---


def held(room: Room, *requests: str, key: str = "anna") -> None:
    """These were let in, and then their sockets were lost."""
    for number, name in enumerate(requests):
        room.say(enqueue(name, tenant=key, connection=1 + number % 3))
        assert name in room.let_in
        room.say(Unread(name, True))


def test_one_that_nobody_reads_does_not_count_and_the_oldest_gives_way_when_there_are_too_many() -> None:
    room = guarded(Room(), anna=2)
    room.grant(100)
    held(room, "a", "b", "c", "d")
    assert room.scheduler.of(GiveWay) == []
    room.say(enqueue("e", tenant="anna"), enqueue("f", tenant="anna", connection=2))
    assert room.scheduler.of(GiveWay) == [GiveWay("a")], "and is asked once"
    room.say(Released("a", room.clock()))
    assert room.let_in[-1] == "e"
    assert room.scheduler.of(GiveWay) == [GiveWay("a"), GiveWay("b")], "another waits"
    room.say(Released("b", room.clock()))
    assert room.let_in[-1] == "f"
    room.say(enqueue("g", tenant="anna", connection=3))
    assert "g" not in room.let_in
    assert len(room.scheduler.of(GiveWay)) == 2, "two run, as many as may: nobody's going would help"


def test_one_that_is_read_again_does_not_give_way() -> None:
    room = guarded(Room(), anna=1)
    room.grant(100)
    held(room, "a", "b")
    room.say(Unread("a", False), enqueue("c", tenant="anna"))
    assert room.scheduler.of(GiveWay) == [], "it runs"
    room.say(Released("a", room.clock()))
    assert room.let_in == ["a", "b", "c"]


def test_nobody_gives_way_to_another_key_nor_while_there_is_no_room_for_anybody() -> None:
    room = guarded(Room(), anna=1)
    room.grant(2)
    held(room, "a", "b")
    room.say(enqueue("c", tenant="bert"), enqueue("d", tenant="anna"))
    assert room.scheduler.of(GiveWay) == []
    room.grant(3)
    assert room.let_in == ["a", "b", "c"]
    assert room.scheduler.of(GiveWay) == []
    room.grant(4)
    assert room.scheduler.of(GiveWay) == [GiveWay("a")]


def test_of_a_key_without_a_bound_twice_as_many_may_be_inside_as_may_run() -> None:
    room = Room(max_running=2, places=16)
    room.grant(100)
    for number in range(6):
        room.say(enqueue(f"{number}", connection=1 + number % 3))
    assert len(room.let_in) == 3, "one of each socket"
    room.say(*(enqueue(f"other {number}", tenant="bert", connection=1 + number) for number in range(3)))
    assert [name for name in room.let_in if name.startswith("other")] == ["other 0", "other 1", "other 2"]
