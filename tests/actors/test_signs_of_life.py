"""A real process at rest and at work, and what shows of it from outside."""

import os
import signal
import subprocess
import sys

import pytest

from actors.signs_of_life import signs_of_life

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

CHILD = "import sys\nfor line in sys.stdin: print(sum(range(10**6)), flush=True)"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.mark.parametrize("script", [CHILD, PARENT], ids=["itself", "its child"])
def test_whoever_works_shows_it(script: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen = []
        for _ in range(3):
            process.stdin.write(b"work\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"499999500000\n"
            seen.append(signs_of_life(process.pid))
        process.stdin.close()
    assert None not in seen
    assert len(set(seen)) == 3


def test_whoever_is_stopped_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = signs_of_life(process.pid)
        assert stopped is not None
        assert signs_of_life(process.pid) == stopped
        process.send_signal(signal.SIGCONT)
        process.stdin.close()


def test_of_a_process_that_is_gone_nothing_can_be_said() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(10)
    assert signs_of_life(process.pid) is None
