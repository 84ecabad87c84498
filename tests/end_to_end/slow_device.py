"""`python -m tests.end_to_end.slow_device serve ...`: `rota serve` on a device that takes time, two steps at a time.

Its worker is `python -m tests.end_to_end.slow_device FD`: the real one, around whose kernels stands a device with a
thread of its own. With TEST_DEVICE_TOKENS=N there is no memory for a step of more than N tokens; with
TEST_DEVICE_TAKES_S=T each step takes T seconds more than it takes there.
"""

import os
import sys
from functools import partial
from typing import Any

TAKES_S = 0.004


def serve() -> None:
    from actors import cli, serving
    from actors.worker_process import WorkerProcess

    command = (sys.executable, "-m", "tests.end_to_end.slow_device")
    vars(serving)["WorkerProcess"] = partial(WorkerProcess, command)
    cli.main()


def work() -> None:
    from kernels import serving, worker
    from kernels.choice import Choice, choose_forward
    from tests.kernels.beside import Beside

    tokens, takes_s = os.environ.get("TEST_DEVICE_TOKENS"), float(os.environ.get("TEST_DEVICE_TAKES_S", TAKES_S))

    def beside(*arguments: Any) -> Choice:
        choice = choose_forward(*arguments)
        return choice._replace(forward=Beside(choice.forward, takes_s, int(tokens) if tokens else None))

    vars(serving)["choose_forward"] = beside
    worker.main()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        work()
