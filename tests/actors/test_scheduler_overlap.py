"""The scheduler with a step planned behind one that runs: stop texts, lost workers, and steps that find no memory."""

import pytest
from structlog.testing import capture_logs

from protocol.errors import WireError
from protocol.messages import (
    Cancel,
    CloseStream,
    Ended,
    FinishStream,
    Started,
    Step,
    StepFailed,
    Tokens,
    TokensTaken,
    WorkerLost,
)
from tests.actors.recorders import enqueue, model_ready
from tests.actors.test_scheduler import CALIBRATION, Desk


def names(step: Step) -> list[str]:
    return [chunk.request for chunk in step.chunks]


# --- how many are in flight, and who is in them ---


def test_the_worker_says_how_many_steps_it_wants() -> None:
    desk = Desk(ready=False)
    desk.executor.capacity = 2
    desk.say(enqueue("r", 4, max_output_tokens=50), model_ready(steps_in_flight=2))
    assert len(desk.planned()) == 2
    desk.say(WorkerLost("gone", 100.0), model_ready(steps_in_flight=1), enqueue("q", 4, max_output_tokens=50))
    assert len(desk.planned()) == 1


def test_behind_another_a_step_is_planned_only_when_all_tokens_were_taken() -> None:
    desk = Desk(steps_ahead=2)
    desk.say(enqueue("r", 4, max_output_tokens=50))
    first, second = desk.planned()
    desk.finish(first)
    assert desk.planned() == [], "a stop text may be in them"
    desk.say(TokensTaken(1))
    (third,) = desk.planned()
    assert (third.behind, third.chunks[0].follows) == (second.step, 0)


def test_with_nothing_in_flight_the_device_does_not_wait_for_the_detokeniser() -> None:
    desk = Desk(steps_ahead=2)
    desk.say(enqueue("r", 4, max_output_tokens=50))
    for step in desk.planned():
        desk.finish(step)
    assert [step.behind for step in desk.planned()] == [0], "one, and the next one is planned when tokens were taken"


def test_a_stop_text_wastes_one_row() -> None:
    desk = Desk(steps_ahead=2)
    desk.say(enqueue("r", 4, max_output_tokens=50), enqueue("q", 4, max_output_tokens=50))
    steps = desk.planned()
    assert [names(step) for step in steps] == [["r"], ["r"]], "they were planned before the other came"
    desk.finish(steps[0])
    desk.say(FinishStream("r", 100.0))
    assert desk.ends == [("r", "stop_text")]
    assert desk.released == []
    desk.say(TokensTaken(1))
    assert [names(step) for step in desk.planned()] == [["q"]]
    desk.finish(steps[1])
    assert desk.released == ["r"]
    assert [[row.request for row in tokens.rows] for tokens in desk.detokeniser.of(Tokens)] == [["r"]]


def test_a_cancel_with_two_steps_in_flight_is_released_after_both_and_no_text_follows() -> None:
    desk = Desk(steps_ahead=2)
    desk.say(enqueue("r", 4, max_output_tokens=50))
    first, second = desk.planned()
    desk.say(Cancel("r", 100.0))
    desk.finish(first)
    assert desk.released == []
    desk.finish(second)
    assert desk.released == ["r"]
    assert desk.detokeniser.of(Tokens) == []
    assert desk.used() == 0


def test_a_worker_lost_with_two_steps_in_flight_takes_what_had_started_and_no_more() -> None:
    desk = Desk(steps_ahead=2, max_running=2)
    desk.say(enqueue("r", 4, max_output_tokens=50), enqueue("q", 4, max_output_tokens=50))
    steps = desk.planned()
    desk.finish(steps.pop(0))
    desk.take_tokens()
    steps += desk.planned()
    assert [names(step) for step in steps] == [["r"], ["r", "q"]]
    desk.say(Cancel("r", 100.0), enqueue("late", 4, max_output_tokens=2))
    desk.say(WorkerLost("gone", 101.0))
    assert sorted(desk.released) == ["q", "r"]
    desk.finish(steps[0])
    desk.say(model_ready(steps_in_flight=2))
    desk.run()
    assert desk.ends == [("r", "cancelled"), ("q", "failed"), ("late", "length")]
    assert desk.used() == 0


def test_whoever_would_be_late_behind_what_runs_is_told_before_it_starts() -> None:
    """A step of 64 tokens takes 64 ms here. There would be time for four more, if they could begin now."""
    desk = Desk(steps_ahead=2, calibration=CALIBRATION)
    desk.say(enqueue("long", 64, max_output_tokens=1))
    assert len(desk.planned()) == 1
    desk.say(enqueue("r", 4, max_output_tokens=1, deadline_at=100.06))
    assert desk.ends == [("r", "failed")]
    assert desk.planned() == []


# --- no memory on the device ---


def fail(desk: Desk, step: Step) -> None:
    desk.say(StepFailed(step.step, "CUDA out of memory"))


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_a_step_without_memory_is_planned_again_in_halves_and_nobody_notices(steps_ahead: int) -> None:
    desk = Desk(steps_ahead=steps_ahead)
    desk.say(enqueue("r", 40, max_output_tokens=3))
    with capture_logs() as logs:
        for step in desk.planned():
            fail(desk, step)
    assert logs == [
        {
            "event": "step.out_of_memory",
            "log_level": "warning",
            "tokens": 40,
            "rows": 1,
            "now_at_most_tokens": 20,
            "now_at_most_rows": 4,
            "why": "CUDA out of memory",
        }
    ]
    assert desk.figure("rota_steps_out_of_memory_total") == 1.0
    steps = desk.planned()
    assert [len(chunk.tokens) // 4 for step in steps for chunk in step.chunks] == [20] * steps_ahead
    for step in steps:
        desk.finish(step)
        desk.take_tokens()
    desk.run()
    assert desk.ends == [("r", "length")]
    assert len(desk.connection.of(Started)) == 1


def test_nothing_is_planned_while_a_step_is_in_flight_that_will_fail_too() -> None:
    desk = Desk(steps_ahead=2)
    desk.say(enqueue("r", 40, max_output_tokens=3))
    first, second = desk.planned()
    fail(desk, first)
    desk.say(enqueue("q", 4))
    assert desk.planned() == []
    fail(desk, second)
    assert [step.behind for step in desk.planned()] == [0, 3]


def test_a_single_token_without_memory_fails_its_request_and_the_others_go_on() -> None:
    desk = Desk(max_running=1)
    desk.say(enqueue("r", 1, max_output_tokens=5), enqueue("q", 4, max_output_tokens=2))
    fail(desk, desk.step())
    (ended,) = desk.connection.of(Ended)
    assert (ended.request, ended.reason) == ("r", "failed")
    assert isinstance(ended.error, WireError)
    assert ended.error.code == "worker_failed"
    assert desk.detokeniser.of(CloseStream) == [CloseStream("r")]
    assert desk.released == ["r"]
    desk.run()
    assert desk.ends[-1] == ("q", "length")
    assert desk.used() == 0


def test_a_cancel_during_a_step_that_fails_is_released_then() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=5))
    step = desk.step()
    desk.say(Cancel("r", 100.0))
    assert desk.released == []
    fail(desk, step)
    assert desk.released == ["r"]
    assert desk.used() == 0


def test_a_failure_of_a_lost_workers_step_changes_nothing() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=5))
    step = desk.step()
    desk.say(WorkerLost("gone", 101.0))
    fail(desk, step)
    assert desk.figure("rota_steps_out_of_memory_total") == 0.0
