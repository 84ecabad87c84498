"""The memory budget: weights, KV blocks, working memory.

Knows what is free on a device, how to measure what a step takes beside weights and KV, and the arithmetic that turns
these into a number of blocks. Knows nothing of models or of what is in a block.
"""

import contextlib
import ctypes
import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels import ModelError

GIB = 2**30
CPU_KV_DEFAULT = 4 * GIB
"""On a CPU the memory is shared with everything else the machine does: enough for some 180,000 tokens of a small
model, and a laptop stays usable."""
CPU_KV_SHARE = 0.5


@dataclass(frozen=True)
class Budget:
    """How the device's memory is divided, in bytes. `kv_bytes` is `blocks` whole blocks."""

    weights_bytes: int
    kv_bytes: int
    working_bytes: int
    blocks: int


def plan(
    *,
    weights_bytes: int,
    working_bytes: int,
    available_bytes: int,
    block_bytes: int,
    block_size: int,
    max_context: int,
    max_rows: int,
    kv_memory: int | None,
    gpu_bytes: int | None,
) -> Budget:
    """How many blocks there will be.

    `available_bytes` is free with the weights already loaded and no step running. `kv_memory` is what was asked for,
    None for a choice of ours: on a GPU all of `gpu_bytes` beside what a step needs, and on a CPU, where that is None, a
    share of what is free. Never more than `max_rows` requests of `max_context` tokens could use.

    Raises ModelError, with the arithmetic, when not one request of `max_context` tokens fits, or when what was asked
    for is not there.
    """
    blocks_each = -(-max_context // block_size)
    room = available_bytes - working_bytes
    if kv_memory is None:
        on_cpu = min(CPU_KV_DEFAULT, int(room * CPU_KV_SHARE))
        kv_bytes = on_cpu if gpu_bytes is None else min(room, gpu_bytes - working_bytes)
    else:
        kv_bytes = kv_memory
        if kv_bytes > room:
            step = f", of which a step needs {_size(working_bytes)} to work in" if working_bytes else ""
            raise ModelError(
                f"{_size(kv_bytes)} was asked for KV blocks, but beside the weights ({_size(weights_bytes)}) "
                f"{_size(available_bytes)} is free{step}: set kv-memory to {_size(max(0, room))} at most."
            )
    blocks = min(kv_bytes // block_bytes, blocks_each * max_rows)
    if blocks < blocks_each:
        raise ModelError(
            f"Not one request of the full context fits: {max_context:,} tokens need {blocks_each:,} blocks of "
            f"{block_size}, {_size(blocks_each * block_bytes)}, and the KV blocks have {_size(max(0, kv_bytes))} "
            f"(the weights take {_size(weights_bytes)}; {_size(available_bytes)} is free beside them). "
            f"Set kv-memory to {_size(_whole_mib(blocks_each * block_bytes))} or more, or max-context lower."
        )
    return Budget(weights_bytes, blocks * block_bytes, working_bytes, blocks)


def gpu_bytes(device: torch.device, fraction: float) -> int | None:
    """Bytes of a GPU that may still be taken before `fraction` of it is, others' share counted; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return int(total * fraction) - (total - free)


def out_of_memory(error: Exception) -> bool:
    """Whether a step failed for lack of memory, so that a smaller one may not."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # torch's allocator for the CPU has no exception of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def available_bytes(device: torch.device) -> int:
    """Bytes this process could still take on `device`: on the CPU what the system and our control group leave."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return min(_system_available(), _control_group_available())


class PeakMeter:
    """Measures the most memory taken at one time inside a `with` block, beyond what was taken at its start.

    On Linux the process's high-water mark is reset by writing to `/proc/self/clear_refs` (proc(5)); elsewhere the
    mark only ever rises, so an earlier, higher peak hides this one and `bytes` is too small, never too large.
    """

    bytes: int = 0

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = 0

    def __enter__(self) -> "PeakMeter":
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._start = torch.cuda.memory_allocated(self._device)
        else:
            _give_back_free_memory()
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
            self._start = _status_bytes("VmRSS")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device)
        else:
            peak = _status_bytes("VmHWM")
        self.bytes = max(0, peak - self._start)


def _give_back_free_memory() -> None:
    """Have the C library return what the process has freed, or a step that reuses it would seem to take nothing."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(field: str) -> int:
    """A field of /proc/self/status in bytes; without such a file, the resident peak getrusage knows."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _system_available() -> int:
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    except OSError:
        pass
    # No way to ask what is free: half of what is fitted is what other programs usually leave.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _control_group_available() -> int:
    """What a container's limit leaves; a very large number where there is no limit. Versions 2 and 1."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such version here, or "max": no limit
            return max(0, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return 2**62


def _size(size: int) -> str:
    """In the one unit a person would set it in."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"


def _whole_mib(size: int) -> int:
    return -(-size // 2**20) * 2**20
