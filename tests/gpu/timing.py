"""How long something takes on the device, and how fast the device copies.

Knows CUDA's events and graphs. On a CPU, where only the check itself is tried, it takes the host's clock.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from tests.gpu.findings import Conditions, Finding

INNER = 10
"""Times that a graph does its work, so that what a replay costs the host is not in the figure."""
REPEATS = 15


def measure(conditions: Conditions) -> Iterator[Finding]:
    """The copy that every byte floor is told by."""
    gib = 0.001 if conditions.smoke else 4.0
    there = torch.empty(int(gib * 2**30), dtype=torch.uint8, device=conditions.device)
    source = torch.zeros_like(there)
    took_s = median_s(lambda: there.copy_(source), conditions)
    yield Finding("copy on the device", 2 * there.numel() / took_s / 1e9, "GB/s", note=f"{gib:g} GiB, read and written")


def median_s(work: Callable[[], object], conditions: Conditions) -> float:
    """Seconds that `work` takes: the median over replays of a graph that does it `INNER` times."""
    if conditions.smoke:
        return median_of_host_s(work, 1)
    return replayed_s(work) / INNER


def replayed_s(work: Callable[[], object]) -> float:
    stream_of: Any = torch.cuda.Stream
    aside = stream_of()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # kernels are compiled and loaded, which a graph cannot hold
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(INNER):
            work()
    graph.replay()
    event_of: Any = torch.cuda.Event
    events = [event_of(enable_timing=True) for _ in range(REPEATS + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) for a, b in pairwise(events))) / 1e3


def median_of_host_s(work: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - began_s)
    return statistics.median(took)
