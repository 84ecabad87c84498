"""The kernel against attention position by position in float64, and against itself, bit by bit."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from kernels.triton import attention_work
from kernels.triton.attention import Partials, attend
from kernels.triton.attention_work import bounds, plan_work

CPU = torch.device("cpu")
NAN = float("nan")
ERROR = {torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference, where values are about 1: some roundings of weights and of the result."""


@dataclass(frozen=True)
class Heads:
    kv_heads: int = 1
    group: int = 2
    dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32

    @property
    def all(self) -> int:
        return self.kv_heads * self.group


class Scene:
    """Sequences of `lengths` tokens, written to a cache in shuffled blocks. What nobody wrote is NaN."""

    def __init__(self, lengths: list[int], heads: Heads = Heads(), seed: int = 0) -> None:
        self.heads, self.lengths = heads, lengths
        noise = torch.Generator().manual_seed(seed)
        size = heads.block_size
        needed = [-(-length // size) for length in lengths]
        order = torch.randperm(sum(needed) + 2, generator=noise).to(torch.int32)
        pages = (len(order) + 1, size, heads.kv_heads, heads.dim)
        self.keys = torch.full(pages, NAN, dtype=heads.dtype)
        self.values = self.keys.clone()
        # An index that is looked up beyond a sequence's own blocks would be far outside the cache.
        self.tables = torch.full((len(lengths) + 1, max(needed, default=0) + 1), 2**30, dtype=torch.int32)
        self.queries: list[Tensor] = []
        taken = 0
        for row, (length, blocks) in enumerate(zip(lengths, needed, strict=True), start=1):
            table = order[taken : taken + blocks]
            taken += blocks
            self.tables[row, :blocks] = table
            at = torch.arange(length)
            for pages_of in (self.keys, self.values):
                written = torch.randn(length, heads.kv_heads, heads.dim, generator=noise)
                pages_of[table[at // size].long(), at % size] = written.to(heads.dtype)
            self.queries.append(torch.randn(length, heads.all, heads.dim, generator=noise).to(heads.dtype))

    def attended(
        self, sequences: list[tuple[int, int, int]], *, window: int | None = None, programs: int = 3
    ) -> list[Tensor]:
        """What `sequences` (which, start, count) come to in one step, each `[count, heads, dim]`.

        Rows that no item covers, before and after, are shown to be untouched.
        """
        which, starts, counts = (np.array([it[column] for it in sequences], np.int32) for column in range(3))
        work = plan_work(starts, counts, which + np.int32(1), self.heads.group)
        total, context = int(counts.sum()), int((starts + counts).max(initial=0))
        most = bounds(len(sequences), total, context, self.heads.group)
        partials = Partials.room(most[2], self.heads.all, self.heads.dim, CPU)
        padding = torch.full((5, self.heads.all, self.heads.dim), NAN, dtype=self.heads.dtype)
        query = torch.cat([*(self.queries[it][start : start + count] for it, start, count in sequences), padding])
        out = torch.full_like(query, NAN)
        for left in (partials.values, partials.sums, partials.maxima):
            left.fill_(NAN)
        # Buffers are longer than what counts, and hold what an earlier step left in them.
        items = torch.full((most[0] + 3, work.items.shape[1]), 2**30, dtype=torch.int32)
        merges = torch.full((most[1] + 3, work.merges.shape[1]), 2**30, dtype=torch.int32)
        items[: len(work.items)] = torch.from_numpy(work.items)
        merges[: len(work.merges)] = torch.from_numpy(work.merges)
        attend(
            query, self.keys, self.values, self.tables, items, _count(work.items), merges, _count(work.merges),
            partials, scale=self.heads.dim**-0.5, window=window, out=out, programs=programs,
        )  # fmt: skip
        assert out[total:].isnan().all(), "padding is left as it was"
        return list(torch.split(out[:total], counts.tolist()))

    def expected(self, which: int, start: int, count: int, window: int | None) -> Tensor:
        size, group = self.heads.block_size, self.heads.group
        at = torch.arange(start + count)
        blocks = self.tables[which + 1][at // size].long()
        keys = self.keys[blocks, at % size].double().repeat_interleave(group, 1)
        values = self.values[blocks, at % size].double().repeat_interleave(group, 1)
        query = self.queries[which][start : start + count].double()
        behind = torch.arange(start, start + count)[:, None] - at
        hidden = (behind < 0) | (behind >= (window or start + count))
        scores = torch.einsum("thd,shd->hts", query, keys) * self.heads.dim**-0.5
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, values)


def _count(rows: NDArray[np.int32]) -> Tensor:
    return torch.tensor([len(rows)], dtype=torch.int32)


heads = st.builds(
    Heads,
    kv_heads=st.sampled_from([1, 1, 2]),
    group=st.sampled_from([1, 2, 3, 4, 5, 8, 16]),
    dim=st.sampled_from([16, 32, 64, 96]),
    block_size=st.sampled_from([16, 32, 48, 64]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
pasts = st.sampled_from([0, 0, 1, 15, 64, 255, 256, 300]) | st.integers(0, 560)
counts = st.sampled_from([0, 1, 1, 1, 2, 17]) | st.integers(0, 24)
windows = st.none() | st.sampled_from([1, 16, 64, 256, 257, 1000]) | st.integers(1, 600)


@settings(max_examples=25)
@given(
    heads=heads,
    sequences=st.lists(st.tuples(pasts, counts), max_size=3),
    window=windows,
    programs=st.integers(1, 5),
    wanted=st.sampled_from([1, 4, 512]),
    seed=st.integers(0, 2**16),
)
@example(Heads(1, 4, 128, 16, torch.bfloat16), [(300, 1), (30, 20), (0, 1)], None, 2, 512, 1)
@example(Heads(1, 2, 256, 64, torch.float16), [(300, 1), (0, 0), (30, 20)], 70, 2, 512, 2)
@example(Heads(2, 16, 64, 32, torch.bfloat16), [(511, 2), (1, 1)], 257, 5, 2, 3)
@example(Heads(group=1), [(1, 17)], 1, 1, 512, 0)
@example(Heads(), [], None, 1, 512, 0)
@example(Heads(), [(0, 1)], 1, 4, 512, 0)
def test_attention_is_what_it_is_position_by_position(
    heads: Heads, sequences: list[tuple[int, int]], window: int | None, programs: int, wanted: int, seed: int
) -> None:
    scene = Scene([past + count for past, count in sequences], heads, seed)
    step = [(index, past, count) for index, (past, count) in enumerate(sequences)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_work, "WANTED", wanted)
        found = scene.attended(step, window=window, programs=programs)
    for rows, part in zip(found, step, strict=True):
        expected = scene.expected(*part, window)
        torch.testing.assert_close(rows.double(), expected, rtol=0, atol=ERROR[heads.dtype])


@pytest.mark.parametrize(
    ("heads", "window"),
    [(Heads(), None), (Heads(group=3, dim=96, dtype=torch.bfloat16), None), (Heads(dtype=torch.float16), 40)],
)
def test_a_token_has_the_same_bits_in_a_chunk_of_any_length_and_as_a_decode_row(
    heads: Heads, window: int | None
) -> None:
    scene = Scene([270], heads)
    (whole,) = scene.attended([(0, 250, 20)], window=window)
    chunks = scene.attended([(0, 250, 3), (0, 253, 17)], window=window)
    assert torch.equal(torch.cat(chunks), whole)
    some = (251, 255, 256, 269)
    for position, row in zip(some, scene.attended([(0, it, 1) for it in some], window=window), strict=True):
        assert torch.equal(row[0], whole[position - 250])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    scene = Scene([301, 20, 600, 30], Heads(dtype=dtype))
    (alone,) = scene.attended([(0, 300, 1)], programs=1)
    company = scene.attended([(1, 0, 20), (2, 599, 1), (0, 300, 1), (3, 26, 4)], programs=4)
    assert torch.equal(company[2], alone)


@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, None), (torch.float16, None), (torch.bfloat16, 300)])
def test_a_context_has_the_same_bits_divided_and_whole(
    dtype: torch.dtype, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene([780, 300], Heads(group=4, dtype=dtype))
    step = [(0, 779, 1), (1, 298, 2)]
    divided = scene.attended(step, window=window)
    monkeypatch.setattr(attention_work, "WANTED", 4)
    runs = scene.attended(step, window=window)
    monkeypatch.setattr(attention_work, "MOST_PARTIALS", 0)
    whole = scene.attended(step, window=window)
    for nth in range(2):
        assert torch.equal(divided[nth], whole[nth])
        assert torch.equal(runs[nth], whole[nth])


def test_what_lies_behind_a_window_is_not_read() -> None:
    """Its blocks may have been given back, and hold another's tokens, or none."""
    scene = Scene([400])
    before = scene.attended([(0, 399, 1), (0, 380, 19)], window=100)
    gone = scene.tables[1, : (380 - 100) // 16].long()
    scene.keys[gone] = NAN
    scene.values[gone] = NAN
    scene.tables[1, : len(gone)] = 2**30
    after = scene.attended([(0, 399, 1), (0, 380, 19)], window=100)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
