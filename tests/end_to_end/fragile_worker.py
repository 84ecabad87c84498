"""`python -m tests.end_to_end.fragile_worker serve ...`: `rota serve` on a worker that breaks when it is told to.

The worker is the real one, on a device that takes time and two steps at a time (`slow_device.py`). It looks into the
folder TEST_FAULTS before it loads and at every step, and each file it finds there is one fault:

- `raise`: this step raises, and the process ends with a traceback.
- `no memory`: this load finds too little, and refuses its model as a loader does.
- `out of memory`: this load runs out, as an allocation does that nobody has foreseen.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.end_to_end.slow_device import TAKES_S

FAULTS = "TEST_FAULTS"


def serve() -> None:
    from actors import cli, serving
    from actors.worker_process import WorkerProcess

    command = (sys.executable, "-m", "tests.end_to_end.fragile_worker")
    vars(serving)["WorkerProcess"] = partial(WorkerProcess, command)
    cli.main()


def work() -> None:
    from kernels import ModelError, serving, turns, worker
    from kernels.choice import Choice, choose_forward
    from tests.kernels.beside import Beside

    load, launch = serving.load, turns.Turns.launch

    def beside(*arguments: Any) -> Choice:
        choice = choose_forward(*arguments)
        return choice._replace(forward=Beside(choice.forward, TAKES_S))

    def fragile_load(*arguments: Any) -> Any:
        if told_to("no memory"):
            raise ModelError("This model needs 2 GiB more than there is.")
        if told_to("out of memory"):
            raise MemoryError("an allocation of 2 GiB failed")
        return load(*arguments)

    def fragile_launch(*arguments: Any) -> Any:
        if told_to("raise"):
            raise RuntimeError("the device has gone")
        return launch(*arguments)

    vars(serving)["choose_forward"] = beside
    vars(serving)["load"] = fragile_load
    turns.Turns.launch = fragile_launch  # type: ignore[method-assign, assignment]
    worker.main()


def told_to(fault: str) -> bool:
    """Once for each time that somebody has left the file there."""
    try:
        (Path(os.environ[FAULTS]) / fault).unlink()
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        work()
