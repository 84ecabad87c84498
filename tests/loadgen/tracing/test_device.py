"""The device in a trace where a step is planned behind one that still runs: one runs at a time, whatever is planned."""

from itertools import pairwise

import pytest

from loadgen.tracing.device import Device, DeviceStep
from protocol.trace import TraceLine

ROW = (("r", 50, 1, True),)


class Told:
    """A device that is told of steps. Times are seconds."""

    def __init__(self) -> None:
        self.ran: list[DeviceStep] = []
        self.device = Device(self.ran.append)

    def step(self, number: int, at: float) -> None:
        self.device.feed(TraceLine("Step", at, "scheduler", "executor", step=number, chunks=ROW))

    def done(self, number: int, at: float, took_s: float) -> None:
        for sender, to in (("worker", "executor"), ("executor", "scheduler")):
            self.device.feed(TraceLine("StepDone", at, sender, to, step=number, took_s=took_s))

    def failed(self, number: int, at: float) -> None:
        for sender, to in (("worker", "executor"), ("executor", "scheduler")):
            self.device.feed(TraceLine("StepFailed", at, sender, to, step=number))

    @property
    def spans(self) -> list[tuple[int, float, float]]:
        return [(one.number, one.began, one.ended) for one in self.device.steps]


def overlapped() -> Told:
    """Each step is planned as the one before begins, and its result comes a little late, sometimes more."""
    told = Told()
    told.step(1, 10.0)
    for number in range(1, 8):
        told.step(number + 1, 10.0 + 0.1 * (number - 1) + 0.01)
        told.done(number, 10.0 + 0.1 * number + 0.002 * (number % 3), 0.1)
    return told


def test_steps_that_were_planned_early_do_not_overlap() -> None:
    spans = overlapped().spans
    assert all(before[2] <= after[1] for before, after in pairwise(spans))
    assert [began for _, began, _ in spans] == pytest.approx([10 + 0.1 * each for each in range(7)], abs=0.005)


def test_the_wait_behind_another_step_is_nobodys_time_on_the_device() -> None:
    held = overlapped().device.held(10.0, 10.7, "r")
    assert held.own_s == pytest.approx(0.7, abs=0.02)
    assert held.own_s + held.idle_s == pytest.approx(0.7)


def test_an_answer_to_whether_the_worker_is_there_is_no_step() -> None:
    told = overlapped()
    known = told.spans
    told.device.feed(TraceLine("StepDone", 11.0, "worker", "executor", step=0, took_s=0.0))
    assert told.spans == known


def test_a_step_that_was_not_run_is_none() -> None:
    told = Told()
    told.step(1, 10.0)
    told.step(2, 10.01)
    told.failed(1, 10.05)
    told.failed(2, 10.05)
    told.step(3, 10.06)
    told.done(3, 10.2, 0.1)
    told.device.finish(11.0)
    assert [number for number, _, _ in told.spans] == [3]
    assert told.ran == told.device.steps


def test_a_worker_lost_with_two_steps_in_flight_is_down_since_the_last_result() -> None:
    told = Told()
    for number, at in ((1, 10.0), (2, 10.01)):
        told.step(number, at)
    told.done(1, 10.5, 0.5)
    told.step(3, 10.51)
    told.device.feed(TraceLine("WorkerLost", 12.0, "executor", "scheduler"))
    told.device.feed(TraceLine("ModelReady", 13.0, "worker", "executor"))
    assert told.device.down == [(10.5, 13.0)]
    assert told.device.held(10.0, 13.0).down_s == pytest.approx(2.5)


def test_at_the_end_of_a_trace_only_the_first_of_two_steps_has_run() -> None:
    told = Told()
    told.step(1, 10.0)
    told.step(2, 10.01)
    told.device.finish(10.5)
    assert told.spans == [(1, 10.0, 10.5)]
