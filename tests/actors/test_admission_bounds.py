"""Whom the waiting room refuses, and why: bounds of number, of work and of wait, and deadlines that cannot be met."""

import pytest
from msgspec import structs

from protocol import errors
from protocol.messages import Accepted, CloseStream, CostsLearned, Ended, Forget, Moved, Refused, Released, Stats, Watch
from tests.actors.recorders import enqueue
from tests.actors.test_admission import SECOND_A_TOKEN, Room


def check_overloaded(room: Room, request: str, sentence: str, retry_s: float) -> None:
    error = room.refusals[request]
    assert error.code == "server_overloaded"
    assert error.message == f"{sentence}. Try again in {retry_s:,.1f} s."
    assert error.retry_after_ms == retry_s * 1e3


# --- number ---


def test_a_full_room_refuses_with_a_reason_and_a_retry_time() -> None:
    room = Room(places=1)
    room.say(enqueue("a"), enqueue("b"))
    check_overloaded(room, "b", "The one place to wait is taken", 1.0)
    assert room.released == ["b"]
    assert room.reaper.heard == [Watch("a", 160.0, None), Released("b", 100.0)]
    assert room.connection.of(Ended) == []
    assert room.waiting() == 1


def test_it_says_to_try_again_when_as_much_work_is_likely_to_be_done() -> None:
    room = Room(places=1, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3), enqueue("b", 8))
    check_overloaded(room, "b", "The one place to wait is taken", 8.0)


def test_a_room_that_takes_longer_than_predicted_says_so() -> None:
    room = Room(places=1, costs=SECOND_A_TOKEN)
    room.keep_pace(every_s=10.0, tokens=5)
    room.say(enqueue("a", 5, max_output_tokens=0), enqueue("b", 5, max_output_tokens=0))
    check_overloaded(room, "b", "The one place to wait is taken", 10.0)


def test_one_socket_never_has_all_the_places() -> None:
    room = Room(places=1000)
    room.say(*(enqueue(f"{number}") for number in range(1000)))
    refused = sorted(map(int, room.refusals))
    assert refused == list(range(refused[0], 1000))
    mine = refused[0]
    check_overloaded(
        room, f"{mine}", f"{mine} of 1,000 places to wait are taken by this client, the most it may have", 1.0
    )
    assert 850 < mine < 900, "eight times what it leaves"
    room.say(*(enqueue(f"other {number}", connection=2) for number in range(50)))
    assert not [request for request in room.refusals if request.startswith("other")]


def test_a_part_shrinks_as_others_come() -> None:
    room = Room(places=100)
    room.say(*(enqueue(f"a{number}") for number in range(45)))
    room.say(*(enqueue(f"b{number}", connection=2) for number in range(45)))
    assert room.refusals == {}
    room.say(*(enqueue(f"c{number}", connection=3) for number in range(6)))
    room.say(enqueue("a more"), enqueue("c more", connection=3))
    assert list(room.refusals) == ["a more"], "whoever has little may still come"


def test_what_a_refused_request_left_at_its_neighbours_is_forgotten() -> None:
    room = Room(places=0)
    room.say(enqueue("r"))
    assert room.tokeniser.heard == [Forget("r")]
    assert room.detokeniser.heard == [CloseStream("r")]
    assert room.connection.heard == [Refused("r", room.refusals["r"]), Released("r", 100.0)]


def test_a_refused_request_has_no_place_and_takes_none() -> None:
    room = Room(places=2, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3), enqueue("b", 4), enqueue("c", 5))
    assert list(room.refusals) == ["c"]
    assert room.figure("rota_waiting_work_seconds") == 7.0
    room.grant(3)
    assert room.let_in == ["a", "b"]


# --- work ---


def test_more_work_than_may_wait_is_refused_with_the_figures() -> None:
    room = Room(work_s=10.0, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 6), enqueue("b", 5, connection=2))
    check_overloaded(room, "b", "About 6 s of work are waiting, and this is 5 s more", 5.0)
    room.say(enqueue("c", 4, connection=2))
    assert list(room.refusals) == ["b"], "what fits may still come"


def test_however_much_work_it_is_one_may_wait_in_an_empty_room() -> None:
    room = Room(work_s=10.0, costs=SECOND_A_TOKEN)
    room.say(enqueue("huge", 1000))
    assert room.accepted == [("huge", 1, 0.0)]


def test_one_socket_never_has_all_the_work() -> None:
    room = Room(places=1000, work_s=100.0, wait_s=1e6, costs=SECOND_A_TOKEN)
    room.say(*(enqueue(f"{number}", 2) for number in range(50)))
    mine = int(next(iter(room.refusals)))
    check_overloaded(
        room, f"{mine}", f"About {2 * mine} s of work of this client are waiting, the most it may have", 2.0
    )
    assert 80 < 2 * mine < 95
    room.say(enqueue("other", 4, connection=2))
    assert "other" not in room.refusals


def test_while_nothing_is_known_of_costs_no_work_is_too_much() -> None:
    room = Room(work_s=0.001)
    room.say(enqueue("a", 100), enqueue("b", 1000), enqueue("c", 100))
    assert room.refusals == {}


# --- wait ---


def test_a_wait_longer_than_anybody_may_wait_is_refused_at_once() -> None:
    room = Room(wait_s=10.0, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 7), enqueue("b", 6, connection=2), enqueue("c", 1, connection=3))
    check_overloaded(room, "c", "The wait would be about 13.0 s, and nobody is let to wait longer than 10.0 s", 3.0)
    assert room.released == ["c"]


def test_the_wait_is_by_the_pace_the_room_has_seen() -> None:
    room = Room(wait_s=10.0, costs=SECOND_A_TOKEN)
    room.keep_pace(every_s=8.0, tokens=2)
    room.say(enqueue("a", 2, max_output_tokens=0), enqueue("b", 2, max_output_tokens=0))
    sentence = "The wait would be about 16.0 s, and nobody is let to wait longer than 10.0 s"
    check_overloaded(room, "b", sentence, 6.0)
    assert "a" not in room.refusals, "eight seconds until those before have gone in"


def test_whoever_would_be_next_but_for_a_long_wait_before_is_not_refused() -> None:
    room = Room(wait_s=10.0, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 30), enqueue("b", 6))
    assert list(room.refusals) == ["b"]
    room.grant(1)
    room.say(enqueue("c", 6))
    assert list(room.refusals) == ["b"]


# --- deadlines ---


def test_a_deadline_already_passed_is_refused_with_the_figures() -> None:
    room = Room(credit=1)
    room.clock.pass_(2.0)
    room.say(enqueue("r", received_at=100.0, deadline_at=101.5))
    assert room.connection.of(Refused) == [Refused("r", errors.deadline_exceeded(2000.0, 1500.0))]
    assert room.released == ["r"]
    assert room.let_in == []


@pytest.mark.parametrize(("deadline_s", "refused"), [(7.9, True), (8.1, False)])
def test_a_deadline_that_the_prompt_alone_would_miss_is_refused_before_it_waits(
    deadline_s: float, refused: bool
) -> None:
    room = Room(credit=1, costs=SECOND_A_TOKEN)
    room.clock.pass_(3.0)
    room.say(enqueue("r", 5, received_at=100.0, deadline_at=100.0 + deadline_s))
    assert room.let_in == ([] if refused else ["r"])
    error = errors.deadline_unreachable(8000.0, 1e3 * deadline_s)
    assert room.refusals == ({"r": error} if refused else {})
    assert room.released == (["r"] if refused else [])
    assert room.connection.of(Accepted if refused else Refused) == []


@pytest.mark.parametrize(("deadline_s", "refused"), [(9.9, True), (10.1, False)])
def test_the_wait_counts_against_a_deadline(deadline_s: float, refused: bool) -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 6), enqueue("r", 4, deadline_at=100.0 + deadline_s))
    assert room.refusals == ({"r": errors.deadline_unreachable(10_000.0, 1e3 * deadline_s)} if refused else {})
    assert room.waiting() == (1 if refused else 2)


def test_the_fixed_part_of_every_step_counts_against_a_deadline() -> None:
    room = Room(credit=1, costs=CostsLearned((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 1.0))
    room.say(enqueue("r", 1025, deadline_at=102.5))
    assert room.refusals == {"r": errors.deadline_unreachable(3000.0, 2500.0, alone=True)}, "three chunks of 512"


def test_while_nothing_is_known_of_costs_a_deadline_is_not_refused() -> None:
    room = Room()
    room.say(enqueue("a", 10_000), enqueue("r", 10_000, deadline_at=100.001))
    assert room.refusals == {}


def test_a_deadline_that_cannot_be_met_any_more_is_not_let_in() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("r", 4, deadline_at=110.0), enqueue("q", 4))
    room.clock.pass_(7.0)
    room.grant(1)
    assert room.let_in == ["q"], "the credit is not lost"
    error = errors.deadline_unreachable(11_000.0, 10_000.0)
    assert room.connection.of(Ended) == [Ended("r", "failed", Stats(queued_s=7.0), error)]
    assert room.connection.of(Refused) == [], "it had been accepted"
    assert room.released == ["r"]
    assert room.tokeniser.heard == [Forget("r")]
    assert room.detokeniser.heard == [CloseStream("r")]


def test_what_was_learned_meanwhile_decides_whether_a_deadline_can_be_met() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("r", 4, deadline_at=110.0))
    room.say(structs.replace(SECOND_A_TOKEN, coefficients=(0.0, 3.0, 0.0, 0.0, 0.0, 0.0)))
    room.grant(1)
    assert room.let_in == []
    (ended,) = room.connection.of(Ended)
    assert ended.error == errors.deadline_unreachable(12_000.0, 10_000.0, alone=True)


def test_when_the_first_goes_for_its_deadline_the_others_move_up() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("r", 4, deadline_at=105.0), enqueue("b", 4), enqueue("c", 4))
    room.clock.pass_(2.0)
    room.grant(1)
    assert room.let_in == ["b"]
    assert [(moved.request, moved.position) for moved in room.connection.of(Moved)] == [("c", 1)]
