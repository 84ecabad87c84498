"""Runs side by side: the same in processes of their own, in their order, and each told how far it is."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

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


class Ignores:
    """A job that tells whether its process hears a Ctrl-C at all."""

    def __call__(self, progress: Callable[[int], None]) -> tuple[bool, bool]:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return signal.SIGINT in held, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_no_process_hears_an_interrupt_from_its_first_moment_on() -> None:
    assert run_all([Ignores(), Ignores()], lambda far: None, apart=True) == [(True, True)] * 2


def test_an_interrupt_while_processes_are_started_ends_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    started = ProcessPoolExecutor.submit

    def interrupted(pool: ProcessPoolExecutor, *args: Any, **more: Any) -> Any:
        future = started(pool, *args, **more)
        os.kill(os.getpid(), signal.SIGINT)
        return future

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    # A shell that runs the tests in the background has them ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([PolicyRun(MANY, policy, SETUP) for policy in POLICIES], lambda far: None, apart=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert multiprocessing.active_children() == []


def test_a_process_that_ends_before_its_run_is_a_sentence() -> None:
    with pytest.raises(RunsFailed, match=r"was ended from outside"):
        run_all([Dies(), Dies()], lambda far: None, apart=True)


def test_only_what_takes_long_is_worth_processes() -> None:
    assert not long(scenario(Arrival("A", 10_000, 100)), runs=4)
    assert long(MANY, runs=40)
