"""Starts a process with a session of its own, says which, and never ends. Neither does that."""

import subprocess
import sys
import threading
from collections.abc import Iterator

from tests.gpu.findings import Conditions, Finding


def measure(conditions: Conditions) -> Iterator[Finding]:
    waits = "import threading; threading.Event().wait()"
    child = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.DEVNULL, start_new_session=True)
    yield Finding("its child", child.pid, "")
    threading.Event().wait()
