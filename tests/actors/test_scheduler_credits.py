"""Whom the scheduler lets come: as many as may run, with about so much prefill before them as is worth having."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.scheduling.policy import BACKLOG_S
from protocol.messages import Cancel, Credit, Measured, SetPaused, Step, Work, WorkerLost
from tests.actors.recorders import enqueue, model_ready
from tests.actors.test_scheduler import CALIBRATION, Desk

# --- in number ---


def test_credits_are_a_running_total_of_those_who_may_come() -> None:
    desk = Desk(max_running=2)
    assert desk.granted == 2
    desk.say(enqueue("a", 4, max_output_tokens=1), enqueue("b", 4, max_output_tokens=9))
    assert desk.granted == 2
    desk.finish(desk.step())
    desk.finish(desk.step())
    assert desk.granted == 3


@pytest.mark.parametrize("life", ["never started", "preempted"])
def test_no_credit_is_given_while_something_waits_for_memory(life: str) -> None:
    desk = Desk(blocks=4, max_running=3, calibration=CALIBRATION)
    if life == "never started":
        desk.say(enqueue("a", 8, max_output_tokens=8), enqueue("b", 12, max_output_tokens=2))
        desk.finish(desk.step())
    else:
        desk.say(enqueue("a", 7, max_output_tokens=8), enqueue("b", 6, max_output_tokens=8))
        while not desk.figure("rota_preemptions_total"):
            desk.run(1)
    before = desk.credit
    for name in "cd":
        desk.say(enqueue(name, 4, max_output_tokens=1), Cancel(name, 100.0))
    assert desk.credit == before, "places are free, but b waits for memory"
    while "a" not in dict(desk.ends):
        desk.run(1)
    assert desk.granted > before.granted
    desk.run()
    assert desk.granted == 4 + 3, "four came and went"
    assert desk.credit.tokens > before.tokens


def test_no_credit_is_given_while_one_that_gave_way_for_its_reader_could_go_on() -> None:
    desk = Desk(blocks=4, max_running=3)
    desk.say(enqueue("r", 4, max_output_tokens=4))
    step = desk.step()
    desk.say(SetPaused("r", True, 100.0))
    desk.finish(step)
    desk.say(enqueue("other", range(50, 66), max_output_tokens=0))
    assert desk.figure("rota_preemptions_total") == 1.0
    granted = desk.granted
    desk.say(enqueue("c", 4), Cancel("c", 100.0))
    assert desk.granted == granted + 1, "nobody is kept out by a reader that has stopped"
    desk.say(SetPaused("r", False, 101.0))
    for name in "de":
        desk.say(enqueue(name, 4), Cancel(name, 101.0))
    assert desk.granted == granted + 1, "r waits for memory"
    desk.run()
    assert desk.granted == 5 + 3


def test_no_credit_is_given_while_there_is_no_worker() -> None:
    desk = Desk(max_running=1)
    desk.say(enqueue("a", 4), WorkerLost("it ended", 101.0))
    assert desk.granted == 1
    desk.say(model_ready())
    assert desk.granted == 2


def test_whoever_is_paused_leaves_his_place_to_another() -> None:
    desk = Desk(max_running=2)
    desk.say(enqueue("a", 4, max_output_tokens=9), enqueue("b", 4, max_output_tokens=9))
    desk.finish(desk.step())
    assert desk.granted == 2
    desk.say(SetPaused("a", True, 100.0))
    assert desk.granted == 3
    desk.say(SetPaused("b", True, 100.0))
    assert desk.granted == 4
    desk.say(enqueue("c", 4, max_output_tokens=9), enqueue("d", 4, max_output_tokens=9))
    desk.say(SetPaused("c", True, 100.0), SetPaused("d", True, 100.0))
    assert desk.granted == 6
    desk.say(Cancel("a", 101.0))
    assert desk.granted == 6, "he had left it already"


def test_when_all_who_paused_go_on_a_step_still_runs_no_more_than_may_run() -> None:
    desk = Desk(max_running=2)
    for names in ("ab", "cd"):
        desk.say(*(enqueue(name, 4, max_output_tokens=9) for name in names))
        desk.finish(desk.step())
        last = desk.step()
        desk.say(*(SetPaused(name, True, 100.0) for name in names))
        desk.finish(last)
        desk.take_tokens()
    assert desk.planned() == []
    desk.say(*(SetPaused(name, False, 101.0) for name in "abcd"))
    steps: list[set[str]] = []
    while planned := desk.planned():
        (step,) = planned
        steps.append({chunk.request for chunk in step.chunks})
        desk.finish(step)
        desk.take_tokens()
    assert max(len(names) for names in steps) == 2
    assert {request for request, _ in desk.ends} == set("abcd"), "and all come to their end"


# --- in tokens ---


def test_no_more_prefill_is_admitted_ahead_than_is_worth_having() -> None:
    desk = Desk(blocks=2000, calibration=CALIBRATION)
    assert desk.learned.chunk_s(0, desk.credit.tokens) <= BACKLOG_S
    assert desk.learned.chunk_s(0, desk.credit.tokens + 1) > BACKLOG_S


def test_as_prefill_is_done_more_may_come() -> None:
    desk = Desk(blocks=2000, calibration=CALIBRATION, chunk=100)
    most = desk.credit.tokens
    desk.say(enqueue("a", 300, max_output_tokens=9))
    assert desk.credit.tokens == most, "three hundred are here and before us"
    for done in (100, 200):
        desk.finish(desk.step())
        assert desk.credit.tokens == pytest.approx(most + done, abs=2)
    desk.run(4)
    assert desk.credit.tokens == pytest.approx(most + 300, abs=2), "an answer is no prefill"


def test_after_a_prompt_that_goes_over_none_may_come_until_enough_of_it_is_read() -> None:
    desk = Desk(blocks=2000, calibration=CALIBRATION, chunk=100)
    most = desk.credit.tokens
    desk.say(enqueue("long", most + 150, max_output_tokens=9))
    for may_come in (-150, -50, 50, 150):
        assert desk.credit.tokens - (most + 150) == pytest.approx(may_come, abs=2)
        desk.finish(desk.step())


def test_what_the_cache_holds_of_a_prompt_is_not_before_anyone() -> None:
    desk = Desk(blocks=2000, calibration=CALIBRATION)
    desk.say(enqueue("a", 300, max_output_tokens=1))
    desk.run()
    idle = desk.credit.tokens
    desk.say(enqueue("b", 300, max_output_tokens=1))
    assert desk.credit.tokens == pytest.approx(idle + 300 - 4, abs=2), "all but its last four"


@pytest.mark.parametrize("end", ["cancelled", "paused"])
def test_prefill_that_nobody_waits_for_now_is_not_before_anyone(end: str) -> None:
    desk = Desk(blocks=2000, calibration=CALIBRATION, chunk=100)
    most = desk.credit.tokens
    desk.say(enqueue("a", 300), enqueue("b", 100))
    assert desk.credit.tokens == most
    desk.say(Cancel("a", 100.0) if end == "cancelled" else SetPaused("a", True, 100.0))
    assert desk.credit.tokens == most + 300
    desk.say(SetPaused("a", False, 101.0))
    assert desk.credit.tokens == most + 300, "what was granted stays"
    desk.run(1)
    assert desk.credit.tokens <= most + 400


def test_however_slow_a_device_one_may_come_when_nothing_is_here() -> None:
    slow = tuple(Measured(Work(prefill_tokens=tokens), 10.0 * tokens) for tokens in (1, 10))
    desk = Desk(blocks=2000, calibration=slow)
    assert desk.credit == Credit(4, 1)
    desk.say(enqueue("a", 20, max_output_tokens=1))
    assert desk.credit.tokens == 1, "no other may"
    desk.finish(desk.step(), took_s=200.0)
    assert desk.credit.tokens == 21


def test_while_nothing_is_known_of_costs_tokens_are_no_bound() -> None:
    desk = Desk()
    assert desk.credit.tokens > 1_000_000


def test_a_credit_is_said_when_it_has_grown_and_only_then() -> None:
    desk = Desk(blocks=2000, calibration=CALIBRATION)
    desk.say(enqueue("a", 300, max_output_tokens=9), enqueue("b", 100, max_output_tokens=3))
    desk.run()
    credits = desk.admission.of(Credit)
    for before, after in pairwise(credits):
        assert after != before
        assert after.granted >= before.granted
        assert after.tokens >= before.tokens


# --- whatever happens ---

Move = st.sampled_from(["come", "step", "cancel", "pause", "lose"])


@settings(max_examples=200, deadline=None)
@given(moves=st.lists(Move, max_size=80), max_running=st.integers(1, 5), blocks=st.integers(4, 12))
def test_never_more_than_max_running_are_here_or_may_come_or_twice_as_many_when_some_pause(
    moves: list[str], max_running: int, blocks: int
) -> None:
    desk = Desk(max_running=max_running, blocks=blocks)
    flying: list[Step] = []
    names: list[str] = []
    ever_paused = False
    for number, move in enumerate(moves):
        match move:
            case "come" if len(names) < desk.granted:
                names.append(f"r{number}")
                desk.say(enqueue(names[-1], 1 + number % 8, max_output_tokens=number % 8))
            case "step" if flying:
                desk.finish(flying.pop())
                desk.take_tokens()
            case "cancel" if names:
                desk.say(Cancel(names[number % len(names)], 1.0))
            case "pause" if names:
                ever_paused = True
                desk.say(SetPaused(names[number % len(names)], number % 2 == 0, 1.0))
            case "lose":
                flying.clear()
                desk.say(WorkerLost("it ended", 1.0), model_ready(blocks))
            case _:
                pass
        flying += (planned := desk.planned())
        assert all(len(step.chunks) <= max_running for step in planned)
        here = len(names) - len(set(dict(desk.ends)))
        may_come = desk.granted - len(names)
        assert may_come <= max_running, "the lane holds them"
        assert here + may_come <= (2 if ever_paused else 1) * max_running
