"""A device that takes time and runs beside its host, as a GPU does: a thread of its own, one step after another.

What it computes is another `Forward`'s. It can be made to run out of memory.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kernels.batch import Batch
from kernels.kv_cache import KVCache, LayerShape
from kernels.runner import Forward, Launched, Ran
from protocol.messages import SampledToken, Sampling

AT_START = ("measure", "first", "calibration")
"""Whose steps are run before anybody asks for anything."""


@dataclass(frozen=True)
class Under:
    future: "Future[Ran]"

    def wait(self) -> Ran:
        return self.future.result()


class Beside:
    """`forward` on such a device: each step takes `takes_s` seconds more than it takes there.

    `most_tokens`: steps of more find no memory, once somebody asks for something. What a step's rows follow is read
    when the device comes to it, from where the step before has left it, and never from the host.
    """

    def __init__(self, forward: Forward, takes_s: float = 0.0, most_tokens: int | None = None) -> None:
        self._forward = forward
        self._takes_s = takes_s
        self._most_tokens = most_tokens
        self._device = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._chosen = np.zeros(0, np.int32)
        self.recorded: list[int] = []
        self.fixed_bytes = 0

    def new_cache(
        self, layers: Sequence[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        return self._forward.new_cache(layers, blocks, block_size, dtype, device)

    def logits(self, cache: KVCache, batch: Batch, rows: Sequence[int]) -> Tensor:
        return self._forward.logits(cache, batch, rows)

    def answer(
        self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]
    ) -> tuple[SampledToken, ...]:
        return self.launch(cache, batch, rows, asked).wait().tokens

    def launch(self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]) -> Launched:
        tokens = batch.ids.size
        if self._most_tokens is not None and tokens > self._most_tokens and not batch.requests[0].startswith(AT_START):
            raise torch.OutOfMemoryError(f"{tokens} tokens are more than {self._most_tokens}\nand a second line")
        return Under(self._device.submit(self._run, cache, batch, rows, asked))

    def record(self, cache: KVCache, shown: Callable[[list[int]], Iterable[int]]) -> None:
        self.recorded = list(shown([1, 2, 4]))

    @torch.inference_mode()
    def _run(self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]) -> Ran:
        began = time.perf_counter()
        time.sleep(self._takes_s)
        ids = batch.ids.copy()
        following = batch.follows >= 0
        ids[following] = self._chosen[batch.follows[following]]
        tokens = self._forward.answer(cache, replace(batch, ids=ids), rows, asked)
        self._chosen = np.array([it.token for it in tokens], np.int32)
        return Ran(tokens, time.perf_counter() - began)
