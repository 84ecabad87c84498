"""Runs side by side: the same in processes of their own, in their order, and each told how far it is."""

import os
from collections.abc import Callable, Sequence

import pytest

from actors.scheduling.policies import POLICIES
from actors.simulator.runs import PolicyRun, RunsFailed, long, run_all
from protocol.scenario import Arrival
from tests.actors.simulator.plain import SETUP, scenario

MANY = scenario(*(Arrival(f"r{number}", 300, 10, at_s=0.4 * number) for number in range(100)))


class Dies:
    """A job whose process ends."""

    def __call__(self, progress: Callable[[int], None]) -> int:
        os._exit(1)


def test_processes_of_their_own_change_nothing() -> None:
    jobs = [PolicyRun(MANY, policy, SETUP) for policy in POLICIES]
    told: list[Sequence[int]] = []
    here = run_all(jobs, lambda far: told.append(list(far)), apart=False)
    assert [timeline.policy for timeline in here] == list(POLICIES)
    assert told[-1] == [100] * 4
    assert run_all(jobs, lambda far: None, apart=True) == here


def test_a_process_that_ends_before_its_run_is_a_sentence() -> None:
    with pytest.raises(RunsFailed, match=r"was ended from outside"):
        run_all([Dies(), Dies()], lambda far: None, apart=True)


def test_only_what_takes_long_is_worth_processes() -> None:
    assert not long(scenario(Arrival("A", 10_000, 100)), runs=4)
    assert long(MANY, runs=40)
