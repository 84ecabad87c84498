"""Which device, which number format, how many threads.

Knows the machine. Knows nothing of models.
"""

import os
from pathlib import Path

import torch

from kernels import ModelError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(wish: str) -> torch.device:
    """`auto` is the first GPU if torch sees one, else the CPU. Raises ModelError when the wish cannot be met."""
    if wish == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wish)
    except RuntimeError as error:
        raise ModelError(f"There is no kind of device called {wish!r}: use auto, cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"rota runs on cpu and cuda, not on {wish!r}.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ModelError(f"The device {wish!r} was asked for, but torch sees no GPU on this machine.")
        device = torch.device("cuda", device.index or 0)
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise ModelError(f"There is no GPU {device.index}: torch sees {torch.cuda.device_count()} of them.")
    return device


def choose_dtype(wish: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it, else float32. Raises ModelError on an unknown name."""
    if wish == "auto":
        return torch.bfloat16 if device.type == "cuda" or _cpu_multiplies_bfloat16() else torch.float32
    if wish not in _DTYPES:
        raise ModelError(f"There is no number format called {wish!r} here: use auto, {', '.join(_DTYPES)}.")
    return _DTYPES[wish]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def choose_threads() -> int | None:
    """Threads for torch's products: the cores this process may use, one a physical core.

    None when the user has set `OMP_NUM_THREADS`, which torch follows by itself.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return None
    if not hasattr(os, "sched_getaffinity"):
        return None
    # Siblings share one core's vector unit, so that a second thread on it gains nothing and disturbs the first.
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, len(cores))


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cpu_multiplies_bfloat16() -> bool:
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
