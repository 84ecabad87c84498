"""Whose turn it is to be let in: fair between clients, soonest due within one, and the late ones aside."""

from collections import Counter
from random import Random

import pytest

from actors.scheduling.pace import PACE_SEEN
from protocol.messages import Accepted, Enqueue, Moved, Released
from tests.actors.recorders import enqueue
from tests.actors.test_admission import SECOND_A_TOKEN, Room


def let_in_one_by_one(room: Room, number: int, *, done: bool = True) -> list[str]:
    """Whom so many more credits let in. `done`: each is over before the next."""
    before = len(room.let_in)
    for granted in range(before + 1, before + number + 1):
        room.grant(granted)
        if done and len(room.let_in) == granted:
            enqueued = room.scheduler.of(Enqueue)[-1]
            computed = len(enqueued.tokens) // 4
            room.say(Released(enqueued.request, room.clock(), computed_tokens=computed, output_tokens=1))
    return room.let_in[before:]


# --- between clients ---


def test_one_request_of_another_socket_does_not_wait_for_a_hundred() -> None:
    room = Room(places=300)
    room.say(*(enqueue(f"{number}") for number in range(100)), enqueue("single", connection=2))
    (accepted,) = [told for told in room.connections[2].heard if told.request == "single"]
    assert accepted.position <= 2
    assert "single" in let_in_one_by_one(room, 2)


def test_one_request_of_another_key_does_not_wait_for_a_hundred_sockets_of_one() -> None:
    room = Room(places=300)
    room.say(*(enqueue(f"{number}", connection=number, tenant="many") for number in range(10, 110)))
    for number in range(10, 110):
        room.directory.add(room.connection.address, number)
    room.say(enqueue("single", connection=2, tenant="one"))
    assert "single" in let_in_one_by_one(room, 2)


def test_sockets_that_ask_the_same_take_turns() -> None:
    room = Room(places=30)
    room.say(*(enqueue(f"a{number}") for number in range(6)))
    room.say(*(enqueue(f"b{number}", connection=2) for number in range(6)))
    room.say(*(enqueue(f"c{number}", connection=3) for number in range(6)))
    order = let_in_one_by_one(room, 9)
    for turn in range(0, 9, 3):
        assert {request[0] for request in order[turn : turn + 3]} == set("abc")


def test_fair_is_by_work_not_by_number() -> None:
    room = Room(places=60, costs=SECOND_A_TOKEN, work_s=1e6, wait_s=1e6)
    room.say(*(enqueue(f"long {number}", 38) for number in range(20)))
    room.say(*(enqueue(f"short {number}", 8, connection=2) for number in range(20)))
    turns = Counter(request.split()[0] for request in let_in_one_by_one(room, 15))
    assert turns == {"long": 3, "short": 12}, "four times the work, a fourth of the turns"


def test_who_asks_for_long_answers_is_charged_what_came_of_it() -> None:
    room = Room(places=60)
    room.say(*(enqueue(f"a{number}", 4, max_output_tokens=100) for number in range(10)))
    room.say(*(enqueue(f"b{number}", 4, max_output_tokens=100, connection=2) for number in range(10)))
    for granted in range(1, 13):
        room.grant(granted)
        request = room.let_in[-1]
        written = 90 if request.startswith("a") else 8
        room.say(Released(request, room.clock(), computed_tokens=4, output_tokens=written))
    turns = Counter(request[0] for request in room.let_in)
    assert turns["b"] >= 9, "the answers were guessed alike"


def test_nobody_saves_up_turns_by_being_away() -> None:
    room = Room(places=60)
    room.say(*(enqueue(f"a{number}") for number in range(30)))
    let_in_one_by_one(room, 20)
    room.say(*(enqueue(f"b{number}", connection=2) for number in range(10)))
    turns = Counter(request[0] for request in let_in_one_by_one(room, 8))
    assert turns == {"a": 4, "b": 4}


# --- one client and the device ---


def test_one_client_never_has_all_places_on_the_device() -> None:
    room = Room(places=300, max_running=64)
    room.say(*(enqueue(f"a{number}") for number in range(100)))
    room.grant(64)
    assert len(room.let_in) == 60
    room.say(enqueue("b", connection=2))
    assert room.let_in[60:] == ["b"], "there is a place at once, though forty others wait"
    assert room.connections[2].heard[0].position == 0


def test_a_client_that_is_full_gets_another_place_when_one_of_its_own_is_released() -> None:
    room = Room(places=300, max_running=32)
    room.say(*(enqueue(f"a{number}") for number in range(40)))
    room.grant(40)
    assert len(room.let_in) == 30
    room.say(Released("a3", 101.0, computed_tokens=4))
    assert room.let_in[30:] == ["a30"]
    assert room.moved[-1][1] == 9


def test_a_release_of_another_client_makes_no_place_for_it() -> None:
    room = Room(places=300, max_running=32)
    room.say(*(enqueue(f"a{number}") for number in range(40)), enqueue("b", connection=2))
    room.grant(40)
    room.say(Released("b", 101.0, computed_tokens=4))
    assert Counter(request[0] for request in room.let_in) == {"a": 30, "b": 1}


def test_the_places_of_one_client_are_counted_by_socket() -> None:
    room = Room(places=300, max_running=32)
    room.say(*(enqueue(f"a{number}") for number in range(40)))
    room.say(*(enqueue(f"b{number}", connection=2) for number in range(40)))
    room.grant(50)
    assert Counter(request[0] for request in room.let_in) == {"a": 25, "b": 25}


# --- within one client ---


def test_whose_first_token_is_due_soonest_is_let_in_first() -> None:
    room = Room()
    room.say(enqueue("none"), enqueue("late", ttft_target_s=60.0), enqueue("soon", ttft_target_s=2.0))
    room.say(enqueue("then", ttft_target_s=5.0))
    assert [position for _, position, _ in room.accepted] == [1, 1, 1, 2]
    assert let_in_one_by_one(room, 4) == ["soon", "then", "late", "none"]


def test_a_time_is_due_from_when_it_was_received() -> None:
    room = Room()
    room.clock.pass_(4.0)
    room.say(
        enqueue("new", received_at=104.0, ttft_target_s=10.0), enqueue("old", received_at=100.0, ttft_target_s=10.0)
    )
    assert let_in_one_by_one(room, 2) == ["old", "new"]


def test_among_equals_who_came_first_is_let_in_first() -> None:
    room = Room(places=9)
    room.say(*(enqueue(name, ttft_target_s=5.0) for name in "abcdef"))
    assert let_in_one_by_one(room, 6) == list("abcdef")


def test_a_short_time_of_one_client_does_not_overtake_another_client() -> None:
    room = Room(places=20)
    room.say(*(enqueue(f"a{number}", ttft_target_s=1.0) for number in range(6)))
    room.say(*(enqueue(f"b{number}", connection=2) for number in range(6)))
    assert Counter(request[0] for request in let_in_one_by_one(room, 6)) == {"a": 3, "b": 3}


# --- late ones stand aside ---


def test_requests_that_are_late_already_stand_aside_for_those_that_can_be_in_time() -> None:
    room = Room(places=20, costs=SECOND_A_TOKEN)
    room.say(enqueue("late a", 4, ttft_target_s=5.0), enqueue("late b", 4, ttft_target_s=5.0))
    room.clock.pass_(10.0)
    room.say(*(enqueue(f"{number}", 4, received_at=110.0, ttft_target_s=50.0) for number in range(3)))
    assert let_in_one_by_one(room, 3) == ["0", "1", "2"]
    assert let_in_one_by_one(room, 2) == ["late a", "late b"], "all is theirs when nobody else waits"


def test_one_is_late_when_its_prompt_takes_longer_than_is_left() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("long", 8, ttft_target_s=10.0), enqueue("short", 2, ttft_target_s=11.0))
    room.clock.pass_(3.0)
    assert let_in_one_by_one(room, 2) == ["short", "long"], "eight seconds of work and seven left"


def test_a_tenth_of_the_work_is_theirs_so_nobody_waits_for_ever() -> None:
    room = Room(places=200, costs=SECOND_A_TOKEN, work_s=1e6, wait_s=1e6)
    room.say(*(enqueue(f"late {number}", 4, ttft_target_s=1.0) for number in range(20)))
    room.clock.pass_(10.0)
    room.say(*(enqueue(f"timely {number}", 4, ttft_target_s=1e6) for number in range(100)))
    turns = Counter(request.split()[0] for request in let_in_one_by_one(room, 44))
    assert 3 <= turns["late"] <= 4


def test_a_late_one_of_a_client_does_not_hold_up_its_others() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("late", 4, ttft_target_s=1.0))
    room.say(enqueue("timely", 4, ttft_target_s=100.0), enqueue("other", 4, connection=2, ttft_target_s=50.0))
    room.clock.pass_(10.0)
    assert set(let_in_one_by_one(room, 2)) == {"timely", "other"}


# --- and so they are told ---


def told(room: Room) -> dict[str, int]:
    """The place of each, as it was told last."""
    room.sweep()
    boxes = room.connections.values()
    places = {each.request: each.position for box in boxes for each in box.of(Accepted)}
    return places | {each.request: each.position for box in boxes for each in box.of(Moved)}


def test_those_are_told_to_stand_last_who_will_be_late_when_it_is_their_turn() -> None:
    """Seconds of work before them: 0, 20, 40, 60. Three of four have less time."""
    room = Room(places=9, costs=SECOND_A_TOKEN)
    room.say(enqueue("paced", 20, max_output_tokens=0))
    room.grant(1)
    room.say(Released("paced", 100.0, computed_tokens=20))
    room.scheduler.take_all()
    for box in room.connections.values():
        box.take_all()
    for name, target in (("targets", 10.0), ("priority", 15.0), ("default", 30.0), ("flex", 500.0)):
        room.say(enqueue(name, 20, max_output_tokens=0, ttft_target_s=target))
    assert told(room) == {"flex": 1, "targets": 2, "priority": 3, "default": 4}


@pytest.mark.parametrize("seed", range(20))
def test_the_order_that_is_told_is_that_in_which_they_are_let_in(seed: int) -> None:
    """Of three sockets, in time and late, when the room is as quick as it is predicted to be."""
    chance = Random(seed)
    room = Room(places=100, wait_s=1e9, work_s=1e9, costs=SECOND_A_TOKEN)
    room.keep_pace(every_s=4.0, tokens=4)
    for number in range(30):
        target = chance.choice([3.0, 30.0, 60.0, 100.0, 1e6])
        socket, at = chance.randint(1, 3), 100 + 1e-6 * number
        room.say(enqueue(f"{number}", 4, connection=socket, max_output_tokens=0, received_at=at, ttft_target_s=target))
    places = told(room)
    went = []
    for granted in range(30):
        room.clock.pass_(4.0)
        room.grant(granted + PACE_SEEN + 2)
        went.append(room.let_in[-1])
    assert went == sorted(places, key=places.__getitem__)
