"""When things happen on a device that runs beside its host: copies, the end of a step, and steps recorded once.

Knows streams, events and graphs. Does not know what runs in them. On a CPU, where Triton's interpreter runs the
kernels, everything has happened when it has been said.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Landing(Protocol):
    """The end of a step, and its results on the host."""

    def wait(self) -> float:
        """Return when the results are there: the seconds that the step was on the device."""
        ...


class Timeline(Protocol):
    """One step after another on the device."""

    def on_host(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Memory `[elements]` of the host that the device can read and write by itself."""
        ...

    def begin(self) -> object:
        """From here on it is the next step's time."""
        ...

    def end(self, begun: object, results: Sequence[tuple[Tensor, Tensor]]) -> Landing:
        """The step that `begun` began ends here. Copy each result from the device to the host, beside what follows."""
        ...

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Have `work` ready to be done again and again, in the same memory. What it returns is there every time.

        Raises RuntimeError when it cannot be, because it waits for the device on its way.
        """
        ...


class OnGpu:
    """Steps run in the current stream; results are copied in another, so that the next step need not wait for them.

    Recorded work is a CUDA graph. (All share one pool: only one of them runs at a time.)
    """

    def __init__(self, device: torch.device) -> None:
        self._side = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def on_host(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(elements, dtype=dtype, pin_memory=True)

    def begin(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, begun: object, results: Sequence[tuple[Tensor, Tensor]]) -> Landing:
        assert isinstance(begun, torch.cuda.Event)
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        landed = torch.cuda.Event()
        with torch.cuda.stream(self._side):
            self._side.wait_event(ended)
            for device, host in results:
                host.copy_(device, non_blocking=True)
            landed.record()
        return _OnItsWay(begun, ended, landed)

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Once as it is: kernels are compiled and loaded by that, which must not happen while a graph is captured. And
        # once to see whether it waits for the device on its way: a capture that fails leaves torch's allocator behind
        # in a state in which it gives nothing back.
        work()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # The outer one sees to it that the stream is the same again, whatever happens inside.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=self._pool):
            result = work()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class _OnItsWay:
    def __init__(self, begun: torch.cuda.Event, ended: torch.cuda.Event, landed: torch.cuda.Event) -> None:
        self._begun = begun
        self._ended = ended
        self._landed = landed

    def wait(self) -> float:
        self._landed.synchronize()
        took_ms: float = self._begun.elapsed_time(self._ended)
        return took_ms / 1e3


class OnCpu:
    """Triton's interpreter: nothing runs beside anything."""

    def on_host(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(elements, dtype=dtype)

    def begin(self) -> float:
        return time.perf_counter()

    def end(self, begun: object, results: Sequence[tuple[Tensor, Tensor]]) -> Landing:
        assert isinstance(begun, float)
        for device, host in results:
            host.copy_(device)
        return _Landed(time.perf_counter() - begun)

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return work


class _Landed:
    def __init__(self, took_s: float) -> None:
        self._took_s = took_s

    def wait(self) -> float:
        return self._took_s


def timeline_of(device: torch.device) -> Timeline:
    return OnGpu(device) if device.type == "cuda" else OnCpu()
