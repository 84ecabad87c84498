"""How much of the time the GPU was at work, as its driver counts it.

Knows NVML by way of `pynvml`, and how to do without where there is none. NVML's figure is the share of the last part of
a second in which any kernel ran: it does not see gaps between kernels that are shorter than it looks.
"""

import importlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOOK_AGAIN_S = 0.05


class Busy:
    """Looks, in a thread of its own, for as long as `watching` lasts."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        look = _look()
        if look is None:
            yield
            return
        over = threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_AGAIN_S):
                self._seen.append((time.perf_counter(), look()))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def share(self, begin_s: float, end_s: float) -> float | None:
        """Mean between two moments of `perf_counter`; None where nothing was seen."""
        seen = [share for at_s, share in self._seen if begin_s <= at_s <= end_s]
        return sum(seen) / len(seen) if seen else None


def _look() -> Callable[[], float] | None:
    try:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # noqa: BLE001  no package, no driver, no device: there is nothing to look at
        return None
    return lambda: float(pynvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100
