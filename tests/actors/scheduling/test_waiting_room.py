"""The waiting room: who is next, and what is too much, by figures worked out by hand."""

import math

import pytest

from actors.scheduling.bounds import LARGEST_PART, Bounds
from actors.scheduling.demand import Demand, weighed
from actors.scheduling.waiting_room import RESERVED, WaitingRoom
from protocol.messages import Credit
from tests.actors.recorders import enqueue
from tests.actors.scheduling.rooms import Room

# --- whose turn it is ---


def test_a_socket_with_a_hundred_requests_does_not_keep_another_sockets_one_waiting() -> None:
    room = Room(max_running=64)
    for _ in range(100):
        room.come(socket=1)
    assert room.turns(20) == [1] * 20
    room.come(socket=2)
    assert 2 in room.turns(2)


def test_sockets_share_by_work_and_not_by_number() -> None:
    room = Room(max_running=256)
    for _ in range(100):
        room.come(10, socket=1)
        room.come(30, socket=2)
    turns = room.turns(80)
    assert turns.count(1) == pytest.approx(60, abs=2)


def test_keys_share_before_the_sockets_of_a_key_do() -> None:
    room = Room(max_running=256)
    for _ in range(40):
        room.come(key="a", socket=1)
        for socket in (2, 3, 4):
            room.come(key="b", socket=socket)
    turns = room.turns(60)
    assert [turns.count(socket) for socket in (1, 2, 3, 4)] == [30, 10, 10, 10]


def test_a_new_socket_of_a_key_starts_where_the_keys_other_sockets_are() -> None:
    room = Room(max_running=1000)
    for _ in range(300):
        room.come(key="a", socket=1)
        for socket in range(2, 12):
            room.come(key="b", socket=socket)
    assert room.turns(200).count(1) == 100
    for _ in range(50):
        room.come(key="a", socket=99)
    turns = room.turns(40)
    assert turns.count(99) == pytest.approx(10, abs=1)
    assert turns.count(1) == pytest.approx(10, abs=1)


def test_of_one_client_whose_first_token_is_due_soonest_goes_first() -> None:
    room = Room()
    guests = [room.come(due_in=due_in) for due_in in (30.0, 10.0, 20.0, math.inf)]
    assert [room.turn() for _ in range(4)] == [guests[1], guests[2], guests[0], guests[3]]


def test_among_equal_clients_whose_first_token_is_due_soonest_goes_first() -> None:
    room = Room()
    for socket, due_in in ((1, 30.0), (2, 10.0), (3, 20.0)):
        room.come(socket=socket, due_in=due_in)
    assert room.turns(3) == [2, 3, 1]


def test_what_a_request_took_in_truth_is_what_its_client_is_charged() -> None:
    room = Room(max_running=64)
    for _ in range(20):
        room.come(10, socket=1, output=1000)
        room.come(10, socket=2, output=1000)
    first, second = room.turn(), room.turn()
    assert first is not None
    assert second is not None
    assert (first.charge, second.charge) == (weighed(10, 50), weighed(10, 50))
    room.done(first, output=1)
    room.done(second, output=50)
    assert room.turns(2) == [1, 2], "98 of the 100 charged for its answer are given back"
    assert room.turns(1) == [1]


def test_an_answer_longer_than_usual_is_charged_at_its_end() -> None:
    room = Room(max_running=64)
    for _ in range(20):
        room.come(10, socket=1, output=1000)
        room.come(10, socket=2, output=1000)
    first = room.turn()
    assert first is not None
    room.done(first, output=500)
    assert room.turns(9) == [2] * 9, "1,010 for one, and 110 each for the others"


def test_a_client_leaves_places_on_the_device_to_others() -> None:
    room = Room(max_running=2 * RESERVED)
    for _ in range(100):
        room.come(socket=1)
    inside = [room.turn() for _ in range(2 * RESERVED - 2)]
    assert room.next(room.now) is None
    room.come(socket=2)
    assert room.turns(1) == [2]
    assert room.next(room.now) is None
    assert inside[0] is not None
    room.done(inside[0])
    assert room.turns(5) == [1]


@pytest.mark.parametrize("max_running", range(2, RESERVED))
def test_a_device_with_few_places_keeps_one(max_running: int) -> None:
    room = Room(max_running=max_running)
    for _ in range(100):
        room.come(socket=1)
    assert len(room.turns(100)) == max_running - 1
    room.come(socket=2)
    assert room.turns(1) == [2]


def test_a_device_with_one_place_keeps_none() -> None:
    room = Room(max_running=1)
    for _ in range(2):
        room.come(socket=1)
    assert len(room.turns(2)) == 1


# --- credits ---


def test_as_many_go_in_as_there_are_credits_for_and_the_last_one_may_go_over_in_tokens() -> None:
    room = WaitingRoom(Bounds(100, 100.0, 60.0), Demand(100, 8), 8)
    assert not room.may_let_in
    room.grant(Credit(3, 25))
    for name in "abcd":
        room.add(enqueue(name, 10), 100.0)
    went = 0
    while room.may_let_in:
        guest = room.next(100.0)
        assert guest is not None
        room.let_in(guest, 100.0)
        went += 1
    assert went == 3, "30 tokens of 25"
    room.grant(Credit(4, 30))
    assert not room.may_let_in
    room.grant(Credit(4, 31))
    assert room.may_let_in
    room.grant(Credit(1, 5))
    assert room.may_let_in, "an older credit takes nothing back"


# --- those who are late ---


def test_the_late_stand_aside_and_get_a_tenth_of_the_work() -> None:
    room = Room(max_running=1000)
    late = [room.come(30, socket=1, due_in=0.0) for _ in range(10)]
    for _ in range(400):
        room.come(10, socket=2)
    order = [room.turn() for _ in range(310)]
    places = [place for place, guest in enumerate(order) if guest in late]
    assert all(guest.late for guest in late)
    assert len(places) == 10
    assert places == [31 * number + 30 for number in range(10)], "30 for every 300 of the others"


def test_the_late_get_all_when_nobody_else_waits() -> None:
    room = Room(max_running=100)
    for _ in range(10):
        room.come(30, due_in=0.0)
    assert len(room.turns(10)) == 10


def test_nothing_is_owed_to_the_late_of_what_went_in_before_there_were_any() -> None:
    room = Room(max_running=1000)
    for _ in range(400):
        room.come(10, socket=2)
    room.turns(100)
    late = room.come(30, socket=1, due_in=0.0)
    assert [room.turn() for _ in range(31)].index(late) == 30


def test_one_is_late_when_its_prompt_takes_longer_than_there_is_time() -> None:
    room = Room()
    in_time = room.come(100, socket=1, due_in=0.101)
    late = room.come(100, socket=2, due_in=0.099)
    assert room.next(room.now) is in_time
    assert (in_time.late, late.late) == (False, True)
    room.now += 0.01
    assert room.next(room.now) in (in_time, late)
    assert in_time.late


def test_while_nothing_is_known_those_who_are_late_go_no_sooner_than_the_others() -> None:
    room = Room(max_running=1000, learned=None)
    late = room.come(30, socket=1, due_in=-1.0)
    for _ in range(400):
        room.come(10, socket=2)
    assert [room.turn() for _ in range(31)].index(late) == 30


# --- bounds ---


def test_the_room_holds_a_number_of_requests() -> None:
    room = Room(places=2)
    assert [room.overfull(room.come(socket=socket)) for socket in (1, 2)] == [None, None]
    assert room.overfull(room.come(socket=3)) == "All 2 places to wait are taken"


def test_the_room_holds_an_amount_of_work() -> None:
    room = Room(work_s=5.0)
    assert room.overfull(room.come(3000, socket=1)) is None
    assert room.overfull(room.come(2000, socket=2)) is None
    assert room.work_s == pytest.approx(5.0)
    assert room.overfull(room.come(1000, socket=3)) == "About 5 s of work are waiting, and this is 1 s more"


def test_one_request_may_wait_alone_however_much_work_it_is() -> None:
    room = Room(work_s=1.0)
    assert room.overfull(room.come(9000)) is None


def test_a_client_cannot_fill_the_room() -> None:
    """While it holds eight times what is left, it gets no more: of 90 places, 81."""
    room = Room(places=90)
    count = 0
    while (full := room.overfull(room.come(socket=1))) is None:
        count += 1
    room.remove(f"r{room.came}")
    assert count == 90 * LARGEST_PART / (LARGEST_PART + 1) + 1
    assert full == "81 of 90 places to wait are taken by this client, the most it may have"
    assert room.overfull(room.come(socket=2)) is None


def test_a_client_cannot_fill_the_room_with_work() -> None:
    room = Room(work_s=90.0)
    count = 0
    while (full := room.overfull(room.come(1000, socket=1))) is None:
        count += 1
    room.remove(f"r{room.came}")
    assert count == 80
    assert full == "About 80 s of work of this client are waiting, the most it may have"
    assert room.overfull(room.come(1000, socket=2)) is None
