"""A process that has no files left: what a crowd at the doors, or anything else that opens them, may lead to."""

import contextlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def all_files_taken_but(left: int) -> Iterator[None]:
    """This process can open so many more, and then no others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 16, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in taken:
            os.close(file)
