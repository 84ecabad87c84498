"""What those who wait are told: their place, how long it will take, and that it has changed."""

import pytest

from actors.scheduling.waiting_room import PLACES_KNOWN
from protocol.messages import Cancel, CostsLearned, Expire, Moved, Released, WorkerLost
from tests.actors.recorders import enqueue, model_ready
from tests.actors.test_admission import SECOND_A_TOKEN, Room


def waits_of(room: Room) -> list[float | None]:
    """The estimates that connection 1 was told at first."""
    return [wait_s for _, _, wait_s in room.accepted]


def test_the_estimate_is_the_work_of_those_before() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3), enqueue("b", 4), enqueue("c", 2))
    assert room.accepted == [("a", 1, 0.0), ("b", 2, 3.0), ("c", 3, 7.0)]


def test_whoever_need_not_wait_is_told_no_time() -> None:
    room = Room(credit=1, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3))
    assert room.accepted == [("a", 0, None)]


def test_the_first_waits_about_as_long_as_those_before_it_usually_take() -> None:
    room = Room(credit=3, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 2), enqueue("b", 2), enqueue("c", 2), enqueue("d", 9))
    assert room.accepted[-1] == ("d", 1, 2.0)


@pytest.mark.parametrize("every_s", [1.0, 12.0])
def test_when_a_few_have_waited_the_estimate_is_by_the_pace_of_the_room(every_s: float) -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.keep_pace(every_s=every_s, tokens=4)
    room.say(*(enqueue(name, 4, max_output_tokens=0) for name in "ab"), enqueue("c", 8, max_output_tokens=0))
    room.say(enqueue("d", 4, max_output_tokens=0))
    assert waits_of(room) == pytest.approx([every_s, 2 * every_s, 3 * every_s, 5 * every_s]), (
        "by its tokens, whatever it costs"
    )


def test_an_idle_hour_is_not_the_pace_of_the_room() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.keep_pace(every_s=2.0, tokens=4)
    room.clock.pass_(3600.0)
    room.say(enqueue("a", 4, max_output_tokens=0))
    room.clock.pass_(2.0)
    room.grant(6)
    room.say(enqueue("b", 4, max_output_tokens=0))
    assert waits_of(room) == pytest.approx([2.0, 2.0])


def test_what_is_learned_of_costs_changes_the_next_estimates() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3))
    room.say(CostsLearned((0.0, 10.0, 0.0, 0.0, 0.0, 0.0), 1.0))
    room.say(enqueue("b", 4), enqueue("c", 4))
    assert room.accepted == [("a", 1, 0.0), ("b", 2, 3.0), ("c", 3, 43.0)]


def test_the_answer_counts_as_work_at_its_usual_length_or_its_limit() -> None:
    room = Room(max_running=2, costs=CostsLearned((0.5, 1.0, 0.0, 0.0, 0.25, 0.0), output_tokens=10.0))
    room.say(enqueue("usual", 1, max_output_tokens=1000), enqueue("short", 1, max_output_tokens=2), enqueue("r"))
    half = 0.25 + 0.5 / 2
    assert room.accepted == [("usual", 1, 0.0), ("short", 2, 1.0 + 10 * half), ("r", 3, 2.0 + 12 * half)]


# --- moved ---


def test_everyone_whose_place_has_changed_is_told_so_and_nobody_else() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3), enqueue("b", 4, connection=2), enqueue("c", 2), enqueue("d", 2))
    room.say(Cancel("c", 101.0))
    assert room.moved == [("d", 3, 7.0)]
    assert room.connections[2].of(Moved) == []
    room.grant(1)
    assert room.connections[2].of(Moved) == [Moved("b", 1, 3.0)]
    assert room.moved[1:] == [("d", 2, 7.0)]


@pytest.mark.parametrize("why", ["let in", "cancelled", "out of patience"])
def test_whoever_is_behind_moves_up_whatever_became_of_the_one_before(why: str) -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3), enqueue("b", 4))
    match why:
        case "let in":
            room.grant(1)
        case "cancelled":
            room.say(Cancel("a", 101.0))
        case _:
            room.say(Expire("a", 160.0, waiting=True))
    assert [(request, position) for request, position, _ in room.moved] == [("b", 1)]


def test_whoever_is_overtaken_hears_of_it_at_the_next_sweep() -> None:
    room = Room(places=9, costs=SECOND_A_TOKEN)
    room.say(*(enqueue(name, 4) for name in "abc"))
    room.say(enqueue("quick", 4, ttft_target_s=5.0))
    assert room.accepted[-1] == ("quick", 1, 0.0)
    assert room.moved == []
    room.sweep()
    assert room.moved == [("a", 2, 4.0), ("b", 3, 8.0), ("c", 4, 12.0)]
    room.sweep()
    assert len(room.moved) == 3, "once"


def test_when_the_room_slows_down_those_who_wait_hear_of_it() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.keep_pace(every_s=4.0, tokens=4)
    room.say(*(enqueue(name, 4, max_output_tokens=0) for name in "ab"))
    assert waits_of(room) == pytest.approx([4.0, 8.0])
    room.clock.pass_(60.0)
    room.grant(6)
    ((request, position, wait_s),) = room.moved
    assert (request, position) == ("b", 1)
    assert wait_s is not None
    assert wait_s > 8.0, "though one fewer is before it"


@pytest.mark.parametrize(("other", "news"), [(9, []), (5, [("b", 2, 5.0)])])
def test_only_an_estimate_that_is_well_off_is_news_to_one_that_keeps_its_place(
    other: int, news: list[tuple[str, int, float]]
) -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 10), enqueue("b", 4))
    room.say(enqueue("other", other, connection=2, ttft_target_s=50.0))
    room.say(Cancel("a", 100.0))
    assert room.accepted[-1] == ("b", 2, 10.0)
    assert room.moved == news


def test_news_come_at_most_every_so_often_and_in_the_end_the_newest() -> None:
    room = Room(places=9, tell_every_s=0.25, costs=SECOND_A_TOKEN)
    room.say(*(enqueue(name, 2) for name in "abcdef"))
    room.say(Cancel("a", 100.0))
    assert [request for request, _, _ in room.moved] == ["b", "c", "d", "e", "f"], "the first at once"
    room.clock.pass_(0.1)
    room.say(Cancel("b", 100.0), Cancel("c", 100.0))
    room.sweep(0.1)
    assert len(room.moved) == 5
    room.sweep(0.1)
    assert room.moved[5:] == [("d", 1, 0.0), ("e", 2, 2.0), ("f", 3, 4.0)]
    room.sweep(0.25)
    assert len(room.moved) == 8, "nothing has changed since"


def test_a_change_that_came_too_soon_is_told_with_whatever_message_comes_in_time() -> None:
    room = Room(tell_every_s=0.25, costs=SECOND_A_TOKEN)
    room.say(*(enqueue(name, 2) for name in "abc"))
    room.say(Cancel("a", 100.0), Cancel("b", 100.0))
    assert room.moved[-1][:2] == ("c", 2)
    room.clock.pass_(0.25)
    room.say(SECOND_A_TOKEN)
    assert room.moved[-1] == ("c", 1, 0.0)


def test_in_a_very_long_queue_whoever_is_far_behind_hears_nothing_new_before_its_place_is_known() -> None:
    room = Room(places=4 * PLACES_KNOWN, wait_s=1e9, work_s=1e9, costs=SECOND_A_TOKEN)
    many = PLACES_KNOWN + 20
    room.say(*(enqueue(f"{number}", 1) for number in range(many)))
    assert [position for _, position, _ in room.accepted] == list(range(1, many + 1))
    assert room.accepted[PLACES_KNOWN - 1][2] == PLACES_KNOWN - 1
    room.sweep()
    assert all(int(request) < PLACES_KNOWN for request, _, _ in room.moved)
    room.say(*(Cancel(f"{number}", 100.0) for number in range(19)))
    room.sweep(1.0)
    assert (f"{many - 2}", PLACES_KNOWN) in [(request, position) for request, position, _ in room.moved]


# --- without a worker ---


def test_while_there_is_no_worker_everybody_waits_and_nobody_can_say_how_long() -> None:
    room = Room(has_worker=False, credit=5, costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3), enqueue("b", 4))
    assert room.let_in == []
    assert room.accepted == [("a", 1, None), ("b", 2, None)]
    room.say(model_ready())
    assert room.let_in == ["a", "b"]


def test_when_the_worker_is_lost_whoever_waits_hears_so_at_once_and_again_when_another_is_there() -> None:
    room = Room(credit=1, costs=SECOND_A_TOKEN, tell_every_s=60.0)
    room.say(enqueue("runs", 3), enqueue("a", 3), enqueue("b", 3))
    room.say(WorkerLost("it ended", 101.0))
    assert room.moved == [("a", 1, None), ("b", 2, None)]
    room.say(Released("runs", 101.0))
    room.grant(2)
    assert room.let_in == ["runs"], "a credit is of no use without a worker"
    room.say(model_ready())
    assert room.let_in == ["runs", "a"]
    assert room.moved[2:] == [("b", 1, 3.0)]


def test_the_time_without_a_worker_says_nothing_of_the_pace_of_the_room() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.keep_pace(every_s=1.0, tokens=4)
    room.say(enqueue("a", 4, max_output_tokens=0), WorkerLost("it ended", 101.0))
    room.clock.pass_(1000.0)
    room.say(model_ready())
    room.grant(6)
    room.say(*(enqueue(name, 4, max_output_tokens=0) for name in "bc"))
    assert room.accepted[-1][:2] == ("c", 2)
    assert waits_of(room)[-1] == pytest.approx(2.0)
