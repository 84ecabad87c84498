"""Several runs at once, each in a process of its own.

Knows processes and how far each has come. Knows nothing of what a run is made of.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import c_int64
from typing import Any, Protocol, TypeVar

from actors.scheduling.policies import PolicyName
from actors.simulator.simulation import Setup, Simulation
from protocol.people import people
from protocol.scenario import Scenario
from protocol.timeline import Timeline

Result = TypeVar("Result", covariant=True)
Progress = Callable[[Sequence[int]], None]
"""Told now and then how far each job has come."""

LOOK_EVERY_S = 0.2
WORTH_A_PROCESS = 20_000
"""Tokens of answers, of all runs together: fewer take less time than to start processes."""


class Job(Protocol[Result]):
    """What a process is given: it can be pickled, and says how far it is."""

    def __call__(self, progress: Callable[[int], None]) -> Result: ...


class RunsFailed(Exception):
    """A process has ended before its run. The message is one sentence for the person who started it."""


_far: Any = None
"""In a process of ours: how far each job has come, shared with the one that started it."""


def _begin(far: Any) -> None:
    global _far
    _far = far
    # A Ctrl-C at the terminal reaches every process; the one that started them ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A Ctrl-C is heard when the block has ended, and not at all by the processes started in it: they keep what is
    held back, and would else be interrupted, with a traceback, before they have come as far as `_begin`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do(index: int, job: Job[Result]) -> Result:
    def come(so_far: int) -> None:
        _far[index] = so_far

    return job(come)


def run_all(jobs: Sequence[Job[Result]], progress: Progress, *, apart: bool) -> list[Result]:
    """What each job returns, in their order; `apart`: in processes of their own, as many at once as there are cores.

    Raises RunsFailed.
    """
    if not apart or len(jobs) < 2:
        far = [0] * len(jobs)
        return [job(_noting(far, index, progress)) for index, job in enumerate(jobs)]
    context = multiprocessing.get_context("spawn")
    shared = context.Array(c_int64, len(jobs), lock=False)
    with ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1), context, _begin, (shared,)) as pool:
        try:
            with _interrupts_held():  # each process is started by a submit
                futures: list[Future[Result]] = [pool.submit(_do, index, job) for index, job in enumerate(jobs)]
            while wait(futures, LOOK_EVERY_S).not_done:
                progress(shared[:])
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise RunsFailed(
                "A process of the simulation was ended from outside, perhaps for want of memory."
            ) from None
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _noting(far: list[int], index: int, progress: Progress) -> Callable[[int], None]:
    def come(so_far: int) -> None:
        far[index] = so_far
        progress(far)

    return come


class PolicyRun:
    """A job: one scenario under one policy."""

    def __init__(self, scenario: Scenario, policy: PolicyName, setup: Setup) -> None:
        self._scenario = scenario
        self._policy = policy
        self._setup = setup

    def __call__(self, progress: Callable[[int], None]) -> Timeline:
        return Simulation(self._scenario, self._policy, self._setup, progress=progress).run()


def long(scenario: Scenario, runs: int) -> bool:
    """Whether so many runs of it are worth a process each."""
    answers = sum(question.output_tokens for person in people(scenario) for question in person.questions)
    return runs * answers > WORTH_A_PROCESS
