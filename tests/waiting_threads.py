"""Has threads of OpenMP that wait for one another soon give their core away, as a worker's do (`kernels/worker.py`).
Where suites run side by side nobody starts more than one.

To be imported before torch. Processes that tests start inherit it: beside other suites' processes they would spend a
good part of their time waiting in a circle. The steps of a test's own small model take less than to wake a thread;
whoever starts a server with a real one takes the limit away (`tests/end_to_end/server.py`).
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
