"""Paged attention in plain torch: the truth that every faster one is compared with.

Knows how a ragged batch of prefill chunks and decode rows reads and writes the paged tensors. Does not know requests,
sampling or models.

Decode rows are gathered into padded groups of similar context length and attended in one call a group; each prefill
chunk is one call. All masks are made once a step, not once a layer. Padding costs memory traffic only: what a row
sees is decided by position, so in float32 its greedy tokens do not depend on the company it is in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kernels.kv_cache import KVCache, slots_of

GATHER_BYTES = 16 * 2**20
"""Most key bytes (and as many value bytes) gathered for one group, beyond a group's first row."""
GROUP_SLACK = 0.75
"""A row joins a group when its context is at least this share of the group's longest: a quarter of padding at most."""
GROUP_SLACK_BLOCKS = 4
"""... or shorter by no more than this many blocks, so that short contexts are not split into many groups."""


@dataclass(frozen=True)
class Span:
    """One request's part of the flat row: `count` tokens at positions `start` .. `start + count - 1`.

    `table` `[blocks]` covers positions 0 .. `start + count - 1`.
    """

    start: int
    count: int
    table: NDArray[np.int32]


@dataclass(frozen=True)
class _Decodes:
    """Rows of one token each. `rows` [R] are their places in the flat row; None: they are the whole of it, in order."""

    rows: Tensor | None
    tables: Tensor  # [R, blocks], padded with each row's own first block
    positions: Tensor  # [R]


@dataclass(frozen=True)
class _Prefill:
    """A chunk: flat places `first` .. `last - 1`, positions from `start`."""

    first: int
    last: int
    start: int
    table: Tensor  # [1, blocks]


class PagedBatch:
    """One step's ragged batch over a cache; an `Attends`.

    Raises ValueError when a block table does not cover its span.
    """

    def __init__(self, cache: KVCache, spans: Sequence[Span], device: torch.device) -> None:
        self._cache = cache
        self._device = device
        size = cache.block_size
        slots = np.concatenate([slots_of(it.table, it.start, it.count, size) for it in spans])
        if slots.size and not 0 <= slots.min() <= slots.max() < cache.blocks * size:
            raise ValueError(f"a block table names a block outside 0 .. {cache.blocks - 1}")
        self._slots = torch.from_numpy(slots).to(device)
        first_key = cache.keys[0]
        self._group_blocks = max(1, GATHER_BYTES // (first_key[0].numel() * first_key.element_size()))
        self._prefills: list[_Prefill] = []
        singles: list[tuple[int, Span]] = []
        place = 0
        for span in spans:
            if span.count == 1:
                singles.append((place, span))
            else:
                blocks = -(-(span.start + span.count) // size)
                table = torch.from_numpy(span.table[None, :blocks].astype(np.int64)).to(device)
                self._prefills.append(_Prefill(place, place + span.count, span.start, table))
            place += span.count
        self._decodes = [self._padded(group, alone=len(group) == place) for group in self._groups(singles)]
        self._masks: dict[int | None, list[Tensor | None]] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """See `Attends.attend`. Writes this step's keys and values into the cache first."""
        self._cache.write(layer, self._slots, key, value)
        if window not in self._masks:
            self._masks[window] = [
                *(self._decode_mask(it, window) for it in self._decodes),
                *(self._prefill_mask(it, window) for it in self._prefills),
            ]
        masks = iter(self._masks[window])
        out: Tensor | None = None
        for group in self._decodes:
            rows = query if group.rows is None else query.index_select(0, group.rows)
            keys, values = self._gather(layer, group.tables)
            found = _attention(rows[:, :, None], keys, values, next(masks), scaling)[:, :, 0]
            if group.rows is None:
                return found
            out = self._room(query, value) if out is None else out
            out.index_copy_(0, group.rows, found)
        for chunk in self._prefills:
            mine = slice(chunk.first, chunk.last)
            rows = query[mine].transpose(0, 1)[None]
            if chunk.start == 0:
                keys, values = key[mine].transpose(0, 1)[None], value[mine].transpose(0, 1)[None]
            else:
                keys, values = self._gather(layer, chunk.table, chunk.start + chunk.last - chunk.first)
            found = _attention(rows, keys, values, next(masks), scaling)[0].transpose(0, 1)
            if found.shape[0] == query.shape[0]:
                return found
            out = self._room(query, value) if out is None else out
            out[mine] = found
        assert out is not None, "a step has at least one token"
        return out

    def _groups(self, singles: list[tuple[int, Span]]) -> list[list[tuple[int, Span]]]:
        """Decode rows by context length, longest first, cut where padding or size would grow too large."""
        groups: list[list[tuple[int, Span]]] = []
        longest = 0
        for place, span in sorted(singles, key=lambda it: -it[1].start):
            blocks = span.start // self._cache.block_size + 1
            similar = blocks >= min(longest * GROUP_SLACK, longest - GROUP_SLACK_BLOCKS)
            if groups and similar and (len(groups[-1]) + 1) * longest <= self._group_blocks:
                groups[-1].append((place, span))
            else:
                groups.append([(place, span)])
                longest = blocks
        return groups

    def _padded(self, group: list[tuple[int, Span]], *, alone: bool) -> _Decodes:
        if alone:
            group = sorted(group, key=lambda it: it[0])
        blocks = max(span.start for _, span in group) // self._cache.block_size + 1
        tables = np.empty((len(group), blocks), np.int64)
        for row, (_, span) in enumerate(group):
            own = span.table[:blocks]
            tables[row, : len(own)] = own
            # Padding names a block of the row's own, so that nothing of another request is even read.
            tables[row, len(own) :] = own[0]
        places = np.array([place for place, _ in group])
        positions = np.array([span.start for _, span in group])
        return _Decodes(
            None if alone else torch.from_numpy(places).to(self._device),
            torch.from_numpy(tables).to(self._device),
            torch.from_numpy(positions).to(self._device),
        )

    def _decode_mask(self, group: _Decodes, window: int | None) -> Tensor:
        """`[R, 1, 1, context]`: what is added to the scores."""
        seen = torch.arange(group.tables.shape[1] * self._cache.block_size, device=self._device)
        return self._added(seen, group.positions[:, None], window)[:, None, None]

    def _prefill_mask(self, chunk: _Prefill, window: int | None) -> Tensor | None:
        """`[chunk, context]`, added to the scores; None: the chunk begins its sequence and is simply causal."""
        end = chunk.start + chunk.last - chunk.first
        if chunk.start == 0 and (window is None or window >= end):
            return None
        seen = torch.arange(end, device=self._device)
        return self._added(seen, torch.arange(chunk.start, end, device=self._device)[:, None], window)

    def _added(self, seen: Tensor, positions: Tensor, window: int | None) -> Tensor:
        # Numbers, not truth values: scaled_dot_product_attention would turn those into numbers once a layer.
        hidden = seen > positions
        if window is not None:
            hidden |= seen <= positions - window
        added = torch.zeros(hidden.shape, dtype=self._cache.keys[0].dtype, device=self._device)
        return added.masked_fill_(hidden, float("-inf"))

    def _gather(self, layer: int, tables: Tensor, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, kv_heads, context, head_dim]` of block tables `[R, blocks]`, cut to `length`."""
        return (
            _gathered(self._cache.keys[layer], tables, length),
            _gathered(self._cache.values[layer], tables, length),
        )

    @staticmethod
    def _room(query: Tensor, value: Tensor) -> Tensor:
        return query.new_empty((*query.shape[:2], value.shape[2]))


def _gathered(pages: Tensor, tables: Tensor, length: int | None) -> Tensor:
    # `embedding` copies whole blocks row by row; indexing with a tensor is ten times slower on the CPU (measured).
    found = F.embedding(tables, pages.view(pages.shape[0], -1))
    rows = found.view(tables.shape[0], -1, *pages.shape[2:])
    return (rows if length is None else rows[:, :length]).transpose(1, 2)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Softmax attention over `[batch, heads, tokens, head_dim]`; without a mask it is causal from the first token."""
    grouped = query.shape[1] != key.shape[1]
    if grouped and query.is_cuda:
        # The fused CUDA kernels take no grouped heads together with a mask.
        share = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        grouped = False
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )
