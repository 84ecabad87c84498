"""Tests in several processes at once, of which some want the machine to themselves.

Each test holds a lock: shared, or for a test marked `alone`, exclusively. All come through one door, so that whoever
waits to be alone is not kept out for ever by others who come and go. Knows no test.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def place(*, alone: bool) -> Iterator[None]:
    """While it is held nobody else is alone, and if it is held `alone`, nobody else holds one: in whichever suite of
    this user on this machine."""
    folder = Path(tempfile.gettempdir())
    with (folder / f"rota-tests-{os.getuid()}.place").open("w") as lock:
        with (folder / f"rota-tests-{os.getuid()}.door").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
