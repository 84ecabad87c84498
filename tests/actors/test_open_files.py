"""As many sockets as were asked for, or as the machine lets a process have."""

import subprocess
import sys

SAID = """
import resource, sys
from actors.open_files import allow_files
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(allow_files(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def allowed(soft: int, hard: int, wanted: int) -> tuple[int, int]:
    """What it says there may be, and the limit after, in a process of its own with these limits."""
    said = subprocess.run(
        [sys.executable, "-c", SAID, str(soft), str(hard), str(wanted)], check=True, capture_output=True, text=True
    )
    most, limit = said.stdout.split()
    return int(most), int(limit)


def test_the_limit_is_raised_to_what_is_needed() -> None:
    assert allowed(256, 4096, 1000) == (1000, 1000)


def test_a_limit_that_is_high_enough_stays() -> None:
    assert allowed(2048, 4096, 1000) == (1000, 2048)


def test_no_more_than_the_machine_allows() -> None:
    assert allowed(256, 800, 1000) == (800, 800)
