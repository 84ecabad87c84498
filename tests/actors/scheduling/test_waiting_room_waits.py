"""How long it takes to be let in: as predicted, and then at the pace that is seen; by figures worked out by hand."""

import pytest

from actors.scheduling.pace import PACE_SEEN
from actors.scheduling.waiting_room import PLACES_KNOWN
from tests.actors.scheduling.rooms import COSTS, Room


def waits(room: Room) -> list[float]:
    """Of all, in order, in seconds."""
    assert [place.position for place in room.places(room.now)] == list(range(1, len(room) + 1))
    return [round(place.wait_s, 6) for place in room.places(room.now)]


def test_until_a_pace_has_been_seen_a_wait_is_what_the_work_before_it_is_predicted_to_take() -> None:
    room = Room()
    assert room.can_tell
    for prompt in (1000, 2000, 500):
        room.come(prompt)
    assert waits(room) == [0.0, 1.0, 3.0]
    room.turn()
    assert waits(room) == [1.0, 3.0], "one is being read"


def test_a_pace_that_has_been_seen_is_believed() -> None:
    """One of ten tokens goes in every two seconds, whatever it was predicted to take."""
    room = Room(max_running=64)
    for _ in range(PACE_SEEN + 6):
        guest = room.come(10)
        guest.told = (1, 0.0)
    for _ in range(PACE_SEEN + 1):
        room.now += 2.0
        room.turn()
    assert waits(room) == [2.0, 4.0, 6.0, 8.0, 10.0]
    guest = room.come(40)
    assert room.place(guest, room.now).wait_s == pytest.approx(12.0), "as long as those before it take"
    assert room.spell_s(guest) == pytest.approx(8.0)


def test_the_pace_is_that_of_the_latest() -> None:
    """2 s for each of ten tokens, and then 4: each counts for 0.9 of the next."""
    room = Room(max_running=64)
    for _ in range(20):
        room.come(10).told = (1, 0.0)
    room.turn()
    elapsed = charged = 0.0
    for interval in [2.0] * 6 + [4.0] * 3:
        room.now += interval
        room.turn()
        elapsed, charged = 0.9 * elapsed + interval, 0.9 * charged + 10
    assert next(room.places(room.now)).wait_s == pytest.approx(10 * elapsed / charged)


def test_time_in_which_nobody_waited_is_no_pace() -> None:
    room = Room(max_running=64)
    for _ in range(PACE_SEEN + 1):
        room.now += 1000.0
        room.come(10).told = (1, 0.0)
        room.now += 3.0
        room.turn()
    room.come(10)
    assert next(room.places(room.now)).wait_s == pytest.approx(3.0)


def test_those_who_went_straight_in_teach_no_pace() -> None:
    room = Room(max_running=64, learned=None)
    for _ in range(20):
        room.now += 5.0
        room.come(10).told = (0, 0.0)
        room.turn()
    assert not room.can_tell


def test_costs_that_are_learned_while_some_wait_are_applied_to_them() -> None:
    room = Room(learned=None)
    guests = [room.come(1000, socket=socket) for socket in (1, 2)]
    assert (room.work_s, room.can_tell) == (0.0, False)
    room.learn(COSTS)
    assert room.can_tell
    assert [guest.work_s for guest in guests] == [pytest.approx(1.0)] * 2
    assert room.work_s == pytest.approx(2.0)
    room.remove("r1")
    room.remove("r2")
    assert room.work_s == 0.0


def test_a_first_token_takes_its_wait_and_its_prompt() -> None:
    room = Room()
    assert room.first_token_s(room.come(1500), 2.0) == pytest.approx(3.5)


def test_those_have_moved_whose_place_or_estimate_has_changed() -> None:
    room = Room()
    for _ in range(3):
        room.come(1000)
    assert [place.position for place in room.moved(room.now)] == [1, 2, 3], "nobody has been told anything"
    for place in room.places(room.now):
        place.guest.told = (place.position, place.wait_s)
    assert room.moved(room.now) == []
    room.turn()
    assert [(place.guest.enqueue.request, place.position) for place in room.moved(room.now)] == [("r2", 1), ("r3", 2)]


def test_an_estimate_has_moved_when_it_is_off_by_half_a_second_and_by_a_fifth() -> None:
    room = Room()
    room.come(10_000)
    guest = room.come(10)
    place = room.place(guest, room.now)
    assert place.position == 2
    assert place.wait_s == pytest.approx(10.0)
    moved = []
    for told_s in (10.1, 8.4, 8.3, 12.4, 12.6):
        guest.told = (2, told_s)
        moved.append(any(each.guest is guest for each in room.moved(room.now)))
    assert moved == [False, False, True, False, True]
    guest.told = (3, 10.0)
    assert room.place(guest, room.now) in room.moved(room.now)


def test_whoever_is_further_back_than_anybody_has_counted_is_told_to_be_last() -> None:
    room = Room(places=10_000)
    guests = [room.come(10) for _ in range(PLACES_KNOWN + 50)]
    assert len(list(room.places(room.now))) == PLACES_KNOWN
    last = room.place(guests[-1], room.now)
    assert last.position == PLACES_KNOWN + 50
    assert last.wait_s == pytest.approx((PLACES_KNOWN + 49) * 0.01)
