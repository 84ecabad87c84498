"""Has threads of OpenMP that wait for one another soon give their core away, as a worker's do (`kernels/worker.py`).

To be imported before torch. Processes that tests start inherit it: beside other suites' processes they would spend a
good part of their time waiting in a circle.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
