"""The worker's steps, from the pipe and back to it, one at a time or with one behind another.

Knows which steps are not run: those for which there was no memory, and those planned behind one that was not run. Does
not know what a step computes.
"""

import os
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from kernels import memory
from kernels.runner import Launched, Runner
from protocol.messages import Step, StepDone, StepFailed

Send = Callable[[StepDone | StepFailed], None]


class Turns:
    """Launches steps in their order."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._not_run: set[int] = set()

    def launch(self, step: Step) -> Launched | StepFailed:
        """Begin a step, or say why it is not run."""
        if step.behind in self._not_run:
            failed = StepFailed(step.step, f"step {step.behind} was not run, and this one was planned behind it")
        else:
            # Whoever plans has heard of all that was not run before.
            self._not_run.clear()
            try:
                return self._runner.launch(step.chunks)
            except Exception as error:
                if not memory.out_of_memory(error):
                    raise
                failed = StepFailed(step.step, str(error).strip().split("\n")[0])
        self._not_run.add(step.step)
        return failed


def done(step: int, launched: Launched | StepFailed) -> StepDone | StepFailed:
    """How a step ended, when it has."""
    if isinstance(launched, StepFailed):
        return launched
    tokens, took_s = launched.wait()
    return StepDone(step, tokens, took_s)


def one_by_one(runner: Runner, receive: Callable[[], Step | None], send: Send) -> None:
    """Run what comes until nothing does. A step that is on the pipe already begins as soon as the last has ended."""
    turns = Turns(runner)
    while (step := receive()) is not None:
        send(done(step.step, turns.launch(step)))


def overlapped(runner: Runner, receive: Callable[[], Step | None], send: Send) -> None:
    """The same where the device runs beside its host: a step is launched as soon as it comes, behind those that run.

    A thread of its own waits for the device and tells of each end, in their order. What goes wrong there ends the
    process, as it does here.
    """
    turns = Turns(runner)
    ends: SimpleQueue[tuple[int, Launched | StepFailed] | None] = SimpleQueue()
    teller = Thread(target=_tell, args=(ends, send), name="ends", daemon=True)
    teller.start()
    while (step := receive()) is not None:
        ends.put((step.step, turns.launch(step)))
    ends.put(None)
    teller.join()


def _tell(ends: "SimpleQueue[tuple[int, Launched | StepFailed] | None]", send: Send) -> None:
    try:
        while (end := ends.get()) is not None:
            send(done(*end))
    except BrokenPipeError:  # the parent has gone, which `receive` hears of too
        return
    except BaseException:  # noqa: BLE001  nobody waits for this thread: unheard, its steps would only seem to hang
        traceback.print_exc()
        os._exit(1)
