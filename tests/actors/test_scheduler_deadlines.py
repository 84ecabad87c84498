"""Clocks that run out at the scheduler: deadlines, patience to wait, and deadlines that cannot be met any more."""

import pytest

from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    Cancel,
    CloseStream,
    Ended,
    Expire,
    Forget,
    Released,
    SetPaused,
    Started,
    Step,
    Sweep,
    Tokens,
)
from tests.actors.recorders import enqueue, model_ready
from tests.actors.test_scheduler import CALIBRATION, Desk


def check_it_never_ran(desk: Desk, error: WireError) -> None:
    """`r` failed with this error before a step ran it: everyone is told once, and nothing of it is left."""
    (ended,) = (ended for ended in desk.connection.of(Ended) if ended.request == "r")
    assert (ended.reason, ended.error) == ("failed", error)
    assert desk.detokeniser.of(CloseStream) == [CloseStream("r")]
    assert desk.tokeniser.heard == [Forget("r")]
    for box in (desk.connection, desk.admission, desk.reaper):
        (released,) = (released for released in box.of(Released) if released.request == "r")
        assert (released.computed_tokens, released.output_tokens) == (0, 0)
    desk.say(Expire("r", 200.0, waiting=True), Expire("r", 200.0, waiting=False), Cancel("r", 200.0))
    assert desk.released.count("r") == 1
    assert "r" not in [started.request for started in desk.connection.of(Started)]
    assert not [row for tokens in desk.detokeniser.of(Tokens) for row in tokens.rows if row.request == "r"]


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_deadline_while_running_ends_the_answer_behind_its_tokens(in_flight: bool) -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=9, deadline_at=105.0))
    desk.finish(desk.step())
    step = desk.step()
    if not in_flight:
        desk.say(SetPaused("r", True, 100.0))
        desk.finish(step)
    desk.take_tokens()
    desk.say(Expire("r", 105.0, waiting=False))
    assert desk.ends == [("r", "deadline")]
    assert [(tokens.rows, tokens.ended) for tokens in desk.detokeniser.of(Tokens)] == [((), (("r", "deadline"),))]
    if in_flight:
        assert desk.released == []
        desk.finish(step)
    assert desk.released == ["r"]
    assert not [row for tokens in desk.take_tokens() for row in tokens.rows]
    assert desk.detokeniser.of(CloseStream) == []


def test_a_deadline_that_overtook_its_request_ends_it_on_arrival() -> None:
    desk = Desk()
    desk.clock.pass_(6.0)
    desk.say(Expire("r", 105.5, waiting=False), enqueue("r", 4, deadline_at=105.0))
    assert desk.planned() == []
    check_it_never_ran(desk, errors.deadline_exceeded(6000.0, 5000.0))


@pytest.mark.parametrize("why", ["there is no worker", "there is no memory", "it is paused"])
@pytest.mark.parametrize(("waiting", "deadline_ms"), [(True, None), (False, 5000.0)])
def test_patience_and_deadline_each_end_one_that_no_step_has_run(
    waiting: bool, deadline_ms: float | None, why: str
) -> None:
    desk = Desk(blocks=4, ready=why != "there is no worker")
    if why == "there is no memory":
        desk.say(enqueue("other", 12, max_output_tokens=4))
    if why == "it is paused":
        desk.say(enqueue("other", 4, max_output_tokens=4))
    desk.clock.pass_(3.0)
    request = enqueue("r", 12, received_at=100.0, accepted_at=101.0, deadline_at=105.0)
    desk.say(request, SetPaused("r", why == "it is paused", 103.0))
    desk.clock.pass_(2.0)
    desk.say(Expire("r", 105.0, waiting))
    check_it_never_ran(desk, errors.deadline_exceeded(4000.0, deadline_ms))
    assert [ended.request for ended in desk.connection.of(Ended)] == ["r"], "and nobody else"


@pytest.mark.parametrize("life", ["in a step", "between steps", "paused", "preempted"])
def test_the_patience_to_wait_does_not_concern_one_that_has_started(life: str) -> None:
    desk = Desk(blocks=4)
    desk.say(enqueue("r", 4, max_output_tokens=4))
    if life != "in a step":
        step = desk.step()
        desk.say(SetPaused("r", life != "between steps", 100.0))
        desk.finish(step)
    if life == "preempted":
        desk.say(enqueue("other", range(50, 66), max_output_tokens=0))
        desk.finish(desk.step())
        assert "rota_preemptions_total 1.0" in desk.metrics.exposition().decode()
    told = len(desk.connection.heard)
    desk.say(Expire("r", 160.0, waiting=True))
    assert desk.connection.heard[told:] == []
    assert desk.detokeniser.of(CloseStream) == []
    desk.say(SetPaused("r", False, 161.0))
    while desk.executor.of(Step):
        desk.finish(desk.step())
    assert desk.ends[-1] == ("r", "length")


# --- the patience of one that has not come yet ---


def test_patience_that_ends_before_the_request_has_come_ends_it_on_arrival() -> None:
    desk = Desk()
    desk.clock.pass_(6.0)
    desk.say(Expire("r", 106.0, waiting=True), enqueue("r", 4, accepted_at=101.0))
    assert desk.planned() == []
    check_it_never_ran(desk, errors.deadline_exceeded(5000.0, None))
    desk.say(enqueue("q", 4))
    assert [chunk.request for chunk in desk.step().chunks] == ["q"], "it concerns nobody else"


async def test_patience_overtakes_its_request_in_the_mailbox_and_still_ends_it() -> None:
    desk = Desk()
    assert desk.actor.address.offer(enqueue("r", 4, accepted_at=100.0))
    desk.actor.address.tell(Expire("r", 100.0, waiting=True))
    for _ in range(2):
        desk.say(await desk.mailbox.take())
    assert desk.planned() == []
    check_it_never_ran(desk, errors.deadline_exceeded(0.0, None))


def test_a_cancel_and_patience_that_both_overtook_a_request_end_it_once() -> None:
    desk = Desk()
    desk.say(Cancel("r", 99.0), Expire("r", 100.0, waiting=True), enqueue("r", 4))
    assert desk.ends == [("r", "cancelled")]
    assert desk.released == ["r"]


def test_patience_for_one_that_never_comes_is_swept_in_the_end() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=1))
    desk.finish(desk.step())
    desk.say(Expire("r", 100.0, waiting=True))
    desk.say(Sweep(desk.clock.pass_(61.0)), enqueue("r", 4))
    assert len(desk.planned()) == 1


# --- a deadline that cannot be met any more ---


def test_one_whose_prompt_takes_longer_than_its_deadline_is_not_begun() -> None:
    desk = Desk(blocks=200, calibration=CALIBRATION)
    desk.say(enqueue("r", 500, deadline_at=100.25))
    assert desk.planned() == []
    check_it_never_ran(desk, errors.deadline_unreachable(500.0, 250.0))
    assert desk.used() == 0


@pytest.mark.parametrize(("busy_s", "begun"), [(0.3, True), (0.7, False)])
def test_whether_there_is_time_is_asked_again_whenever_something_may_start(busy_s: float, begun: bool) -> None:
    desk = Desk(blocks=300, chunk=600, calibration=CALIBRATION)
    desk.say(enqueue("other", 4, max_output_tokens=9), enqueue("r", 500, deadline_at=101.0))
    desk.clock.pass_(busy_s)
    desk.finish(desk.step())
    assert ("r" in [chunk.request for chunk in desk.step().chunks]) == begun
    if not begun:
        check_it_never_ran(desk, errors.deadline_unreachable(1200.0, 1000.0))


def test_one_that_waits_for_memory_until_it_is_too_late_keeps_nobody_out() -> None:
    desk = Desk(blocks=4, max_running=3, calibration=CALIBRATION)
    desk.say(enqueue("other", 8, max_output_tokens=8), enqueue("r", 12, deadline_at=101.0))
    desk.finish(desk.step())
    granted = desk.granted
    desk.clock.pass_(2.0)
    desk.finish(desk.step())
    check_it_never_ran(desk, errors.deadline_unreachable(2012.0, 1000.0))
    assert desk.granted == granted + 1, "its place is another's"


def test_what_the_cache_holds_of_a_prompt_takes_no_time() -> None:
    desk = Desk(blocks=200, calibration=CALIBRATION)
    desk.say(enqueue("before", 500, max_output_tokens=1))
    desk.run()
    desk.say(enqueue("r", 500, max_output_tokens=1, deadline_at=100.25))
    desk.run()
    assert desk.ends == [("before", "length"), ("r", "length")]


def test_one_that_has_begun_is_left_to_its_deadline() -> None:
    desk = Desk(blocks=200, calibration=CALIBRATION)
    desk.say(enqueue("r", 500, deadline_at=101.0))
    desk.clock.pass_(0.9)
    desk.finish(desk.step())
    assert [chunk.request for chunk in desk.step().chunks] == ["r"], "though four hundred milliseconds are missing"
    assert desk.ends == []


def test_while_nothing_is_known_of_costs_everyone_is_begun_before_its_deadline() -> None:
    desk = Desk(blocks=200)
    desk.say(enqueue("r", 500, deadline_at=100.25))
    assert len(desk.planned()) == 1


def test_a_worker_that_comes_back_too_late_does_not_begin_what_waited_for_it() -> None:
    desk = Desk(ready=False)
    desk.say(enqueue("r", 50, deadline_at=101.0), enqueue("q", 50))
    desk.clock.pass_(0.99)
    desk.say(model_ready(blocks=100, calibration=CALIBRATION))
    assert {chunk.request for chunk in desk.step().chunks} == {"q"}
    check_it_never_ran(desk, errors.deadline_unreachable(1040.0, 1000.0))
