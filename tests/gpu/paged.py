"""A paged cache full of random numbers, and what `attend` needs for a step over it.

Knows shapes. Knows nothing of models, nor what is measured.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK_SIZE = 32


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int
    dim: int

    def __str__(self) -> str:
        return f"{self.query} + {self.kv} heads of {self.dim}"


class PagedStep:
    """Sequences of which the last `counts` tokens are in the step, behind `starts` that are in the cache already.

    Each has blocks of its own, in no order. `out` is poisoned until `run`.
    """

    def __init__(
        self,
        heads: Heads,
        starts: Sequence[int],
        counts: Sequence[int],
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cuda",
        block_size: int = BLOCK_SIZE,
        window: int | None = None,
        seed: int = 0,
    ) -> None:
        self.heads, self.starts, self.counts, self.window = heads, list(starts), list(counts), window
        made = torch.Generator(device).manual_seed(seed)
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        needed = [-(-end // block_size) for end in ends]
        blocks = sum(needed)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=made, device=device, dtype=torch.float32).to(dtype)

        self.query = random(sum(counts), heads.query, heads.dim)
        self.keys = random(blocks + 1, block_size, heads.kv, heads.dim)
        self.values = random(blocks + 1, block_size, heads.kv, heads.dim)
        self.out = torch.full_like(self.query, float("nan"))
        shuffled = np.random.default_rng(seed).permutation(blocks).astype(np.int32)
        tables = np.full((len(ends), max(needed)), blocks, np.int32)
        for row, (first, count) in enumerate(zip(np.cumsum([0, *needed[:-1]]), needed, strict=True)):
            tables[row, :count] = shuffled[first : first + count]
        self.tables = torch.from_numpy(tables).to(device)
        self._plan()

    def again(self, starts: Sequence[int], counts: Sequence[int], query: Tensor) -> "PagedStep":
        """Another step over the same cache, of these tokens of each sequence, none where a count is 0."""
        other = copy.copy(self)
        other.starts, other.counts, other.query = list(starts), list(counts), query
        other.out = torch.full_like(query, float("nan"))
        other._plan()
        return other

    def _plan(self) -> None:
        from kernels.triton import attention
        from kernels.triton.attention_work import bounds, plan_work

        self._attention = attention
        device, group = self.query.device, self.heads.query // self.heads.kv
        starts, counts = np.array(self.starts, np.int32), np.array(self.counts, np.int32)
        work = plan_work(starts, counts, np.arange(len(starts), dtype=np.int32), group)
        most = bounds(len(starts), int(counts.sum()), int((starts + counts).max()), group)
        self._partials = attention.Partials.room(most[2], self.heads.query, self.heads.dim, device)
        many = [np.array([len(it)], np.int32) for it in (work.items, work.merges)]
        self._work = [torch.from_numpy(it.copy()).to(device) for it in (work.items, many[0], work.merges, many[1])]
        self._programs = 2
        if device.type == "cuda":
            at_once = attention.programs_at_once(self.heads.dim, self.query.element_size())
            self._programs = torch.cuda.get_device_properties(device).multi_processor_count * at_once

    @property
    def scale(self) -> float:
        return float(self.heads.dim**-0.5)

    @property
    def bytes(self) -> int:
        """Those that cannot be done without: keys and values up to each end, queries and results."""
        context = sum(self.starts) + sum(self.counts)
        cache = 2 * context * self.heads.kv * self.heads.dim
        return (cache + 2 * self.query.numel()) * self.query.element_size()

    @property
    def flops(self) -> int:
        """Of both products, over what each token sees."""
        pairs = sum(
            count * start + count * (count + 1) // 2 for start, count in zip(self.starts, self.counts, strict=True)
        )
        return 4 * pairs * self.heads.query * self.heads.dim

    def run(self) -> None:
        items, item_count, merges, merge_count = self._work
        self._attention.attend(
            self.query,
            self.keys,
            self.values,
            self.tables,
            items,
            item_count,
            merges,
            merge_count,
            self._partials,
            scale=self.scale,
            window=self.window,
            out=self.out,
            programs=self._programs,
        )
