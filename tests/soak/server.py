"""`python -m tests.soak.server serve ...`: `rota serve` on a fragile worker (`tests/end_to_end/fragile_worker.py`),
which writes what it holds to the file TEST_HOLDS when it gets SIGUSR2.

Knows what is to be counted. Knows nothing of who asks, nor of what is too much.
"""

import asyncio
import ctypes
import gc
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOLDS = "TEST_HOLDS"
KINDS = ("Connection", "Watcher", "Answer", "AnswerText", "ServerConnection", "WebSocket", "Berth", "Mailbox")
"""Objects that come with a socket or a request, and must go with it; and mailboxes, of which a few stay."""


def holds() -> dict[str, dict[str, int]]:
    """Tasks by name and objects by kind, as they are after the garbage is collected, and how many objects the collector
    had set aside before; what is free of the heap is given back to the system, so that resident memory is what is held.
    """
    aside = gc.get_freeze_count()
    gc.unfreeze()  # what was set aside is neither looked through nor listed
    gc.collect()
    tasks = Counter(re.sub(r"\d+", "N", task.get_name()) for task in asyncio.all_tasks() if not task.done())
    objects = Counter(type(it).__name__ for it in gc.get_objects() if type(it).__name__ in KINDS)
    # What is free stays with the process until somebody asks it back.
    ctypes.CDLL(None).malloc_trim(0)
    return {"tasks": dict(tasks), "objects": dict(objects), "collector": {"aside": aside}}


def main() -> None:
    from actors.engine import Engine
    from tests.end_to_end import fragile_worker

    run = Engine.run

    def write() -> None:
        path = Path(os.environ[HOLDS])
        new = path.with_suffix(".new")
        new.write_text(json.dumps(holds()))
        new.replace(path)

    async def told_to_write(self: Engine, on_ready: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, write)
        await run(self, on_ready)

    Engine.run = told_to_write  # type: ignore[method-assign]
    fragile_worker.serve()


if __name__ == "__main__":
    main()
