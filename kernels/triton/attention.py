"""Attention over the paged cache: prefill chunks and decode rows in one launch, grouped queries, sliding windows.

Knows how an item of work (`attention_work.py`) is computed and how partial results are joined. Does not know requests,
who writes the cache, or what a step is.

For a token at position p, over the positions s that it sees (0 .. p, or p - window + 1 .. p):
`out = softmax(scale * query . keys[s]) @ values[s]`. The softmax is computed as it goes (Milakov and Gimelshein 2018,
"Online normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention"), over a context in splits whose results
are joined at the end (Dao et al. 2023, "Flash-Decoding"), where keys and values are in pages (Kwon et al. 2023,
"Efficient Memory Management for Large Language Model Serving with PagedAttention").

**A token's bits depend on nothing but its own context.** The context is cut at fixed positions: into splits of `SPLIT`,
and these into tiles of keys. Each split starts from nothing; the results of splits are joined in ascending order by
`_shares`, whether one program had them all or each was left to `_merge`. Sums are taken by the matrix unit, the
softmax's denominator too, in an order that does not depend on how many rows a tile has. Nothing is contracted to a
fused multiply-add (`enable_fp_fusion`), which each kernel would do in its own places. What is hidden from a token adds
exact zeros, so tiles of keys that are wholly hidden can be left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.attention_work import ITEM, MERGE, NARROW, SPLIT, WIDE
from kernels.triton.products import INTERPRETED, product
from kernels.triton.variants import Variant

LOG2_E = 1.4426950408889634
MERGERS = 4
"""Programs that merge, for each that attends: they are a quarter as wide."""
AT_ONCE = 2 if INTERPRETED else 16
"""Partial results that a merging program asks for before it needs the first. The interpreter asks one by one anyway."""

_NARROW = tl.constexpr(NARROW)
_WIDE = tl.constexpr(WIDE)
_ITEM = tl.constexpr(ITEM)
_MERGE = tl.constexpr(MERGE)
_AT_ONCE = tl.constexpr(AT_ONCE)


@dataclass(frozen=True)
class Partials:
    """Results of single splits, for `n` pairs of a token and a split; all float32.

    `values` `[n, heads, head_dim]` are sums weighted by `2 ** (score - maximum)`, `sums` `[n, heads]` those weights,
    `maxima` `[n, heads]` the highest scores, times log2(e).
    """

    values: Tensor
    sums: Tensor
    maxima: Tensor

    @classmethod
    def room(cls, count: int, heads: int, head_dim: int, device: torch.device) -> "Partials":
        """Not yet written. `bounds` says how many are needed."""
        shapes = ((count, heads, head_dim), (count, heads), (count, heads))
        return cls(*(torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes))


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    items: Tensor,
    item_count: Tensor,
    merges: Tensor,
    merge_count: Tensor,
    partials: Partials,
    *,
    scale: float,
    window: int | None,
    out: Tensor,
    programs: int,
) -> None:
    """Attention of `query` `[T, heads, head_dim]` over the pages `keys` and `values` `[blocks, block_size, kv_heads,
    head_dim]` into `out`, shaped as `query`; all contiguous and of one format.

    `tables` int32 `[table_rows, blocks_per_table]` are what an item's table row is looked up in. `items` and `merges`
    are `plan_work`'s, on the device, with how many of them count as int32 `[1]` each. Rows that no item covers are
    left as they are. Neither synchronises nor allocates: `programs` programs walk the items, however many there are
    (`programs_at_once`).
    `window` is how many positions a token sees, its own among them; None: all up to its own.
    """
    heads, head_dim = query.shape[1:]
    block_size, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    keys_of_tile, options = _tiling(head_dim, query.element_size())
    _attend[(programs,)](
        query, keys, values, tables, items, item_count, out, partials.values, partials.sums, partials.maxima,
        scale * LOG2_E, tables.stride(0),
        GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim, PADDED=_padded(head_dim), **_parts(head_dim),
        BLOCK_SIZE=block_size, WINDOW=window or 0, SPLIT=SPLIT, KEYS=keys_of_tile, **options,
    )  # fmt: skip
    _merge[(programs * MERGERS,)](
        merges, merge_count, out, partials.values, partials.sums, partials.maxima,
        HEADS=heads, HEAD_DIM=head_dim, PADDED=_padded(head_dim), WINDOW=window or 0, SPLIT=SPLIT, **MERGE_OPTIONS,
    )  # fmt: skip


MERGE_OPTIONS: dict[str, Any] = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}


def _padded(head_dim: int) -> int:
    return int(triton.next_power_of_2(head_dim))


def _parts(head_dim: int) -> dict[str, int]:
    """Into which parts of a head keys are cut: the tile's width must be a power of two."""
    part = _padded(head_dim) // 2 if head_dim >= 64 else head_dim
    return {"PART": part, "REST": _padded(head_dim - part) if head_dim > part else 0}


def _tiling(head_dim: int, item_bytes: int) -> tuple[int, dict[str, Any]]:
    """Keys of a tile, and what the kernel is launched with.

    With four stages, two or three tiles of keys and of values are on their way to shared memory while one is worked
    on: 64 KiB a multiprocessor or more, where an H200's bandwidth times the latency of its memory is about 35 KiB.
    """
    if item_bytes > 2:
        return 32, {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": False}
    if head_dim > 128:
        return 32, {"num_warps": 8, "num_stages": 4, "enable_fp_fusion": False}
    if 64 < head_dim < 128:
        # A head in two unlike parts takes more registers: with 64 keys Triton 3.6 is short of two.
        return 32, {"num_warps": 4, "num_stages": 6, "enable_fp_fusion": False}
    options = {"num_warps": 4, "num_stages": 4, "enable_fp_fusion": False}
    # Three programs share a multiprocessor, and without a limit on registers two would. (Smaller heads are no model's
    # that anybody would serve on a GPU, and would spill.)
    return 64, options | {"maxnreg": 168} if head_dim == 64 else options


def programs_at_once(head_dim: int, item_bytes: int) -> int:
    """How many attending programs a multiprocessor of sm_90 has room for: `programs` should be as many for each."""
    if item_bytes > 2 or head_dim > 128:
        return 1
    return 3 if head_dim <= 64 else 2


@triton.jit
def _shares(high, other):
    """The higher of two maxima (log2), and how much each part's sums count beside it; none where there is nothing."""
    highest = tl.maximum(high, other)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    return highest, tl.exp2(high - base), tl.exp2(other - base)


@triton.jit
def _blocks(table, positions, end, BLOCK_SIZE: tl.constexpr):
    return tl.load(table + positions // BLOCK_SIZE, mask=positions < end, other=0)


@triton.jit
def _tile(
    query, keys, values, table, out, part_values, part_sums, part_maxima, first, position, tokens, begin_split,
    end_split, partial, stride, kv_head, scale, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr, PART: tl.constexpr, REST: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SPLIT: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One item for one key head. Row `token * GROUP + h` of the tile is query head `h` of the group."""
    HEADS: tl.constexpr = KV_HEADS * GROUP
    EVERY: tl.constexpr = SPLIT // KEYS
    rows = tl.arange(0, ROWS)
    token = rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    there = rows < tokens * GROUP
    places = tl.arange(0, PADDED)
    inside = places < HEAD_DIM
    line = (first + token) * HEADS + head
    mask = there[:, None] & inside[None, :]
    # Long heads are multiplied in two parts, so that registers need not hold all of both factors at a time.
    part = tl.arange(0, PART)
    at_query = query + line[:, None] * HEAD_DIM + part[None, :]
    rows_query = tl.load(at_query, mask=there[:, None], other=0.0)
    if REST:
        rest = PART + tl.arange(0, REST)
        at_query = query + line[:, None] * HEAD_DIM + rest[None, :]
        rest_query = tl.load(at_query, mask=there[:, None] & (rest < HEAD_DIM)[None, :], other=0.0)

    # Rows beyond the tile's see what its last token sees: with nothing in sight they would be 0 / 0.
    own = position + tl.minimum(token, tokens - 1)
    begin = begin_split * SPLIT
    if WINDOW:
        begin = tl.maximum(begin, position - WINDOW + 1)
    end = tl.minimum(end_split * SPLIT, position + tokens)
    begin_tile = begin // KEYS
    end_tile = (end + KEYS - 1) // KEYS

    # As wide as lets Triton share its columns out between warps, as it does with those of the other products.
    ones = tl.full((KEYS, 2 * ROWS), 1.0, rows_query.dtype)
    high = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS, 2 * ROWS), tl.float32)
    sums = tl.zeros((ROWS, PADDED), tl.float32)
    all_high = high
    all_total = tl.zeros((ROWS,), tl.float32)
    all_sums = sums

    within = tl.arange(0, KEYS)
    block = _blocks(table, begin_tile * KEYS + within, end, BLOCK_SIZE)
    for tile in range(begin_tile, end_tile):
        at = tile * KEYS + within
        # Asked for a tile ahead, so that keys and values do not wait for it.
        next_block = _blocks(table, at + KEYS, end, BLOCK_SIZE)
        # What nobody wrote, or what was given back behind a window, may hold anything, NaN too.
        written = (at >= begin) & (at < end)
        slot = block.to(tl.int64) * BLOCK_SIZE + at % BLOCK_SIZE
        cell = slot * (KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        tile_keys = tl.load(keys + cell[None, :] + part[:, None], mask=written[None, :], other=0.0)
        scores = product(rows_query, tile_keys, tl.zeros((ROWS, KEYS), tl.float32))
        if REST:
            mask_rest = written[None, :] & (rest < HEAD_DIM)[:, None]
            rest_keys = tl.load(keys + cell[None, :] + rest[:, None], mask=mask_rest, other=0.0)
            scores = product(rest_query, rest_keys, scores)
        mask_values = written[:, None] & inside[None, :]
        tile_values = tl.load(values + cell[:, None] + places[None, :], mask=mask_values, other=0.0)

        behind = own[:, None] - at[None, :]
        seen = behind >= 0
        if WINDOW:
            seen = seen & (behind < WINDOW)
        scores = tl.where(seen, scores * scale, float("-inf"))
        highest = tl.maximum(high, tl.max(scores, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        kept = tl.exp2(high - base)[:, None]
        weights = tl.exp2(scores - base[:, None]).to(rows_query.dtype)
        total = product(weights, ones, total * kept)
        sums = product(weights, tile_values, sums * kept)
        high = highest
        block = next_block

        if ((tile + 1) % EVERY == 0) | (tile + 1 == end_tile):
            leaves = partial >= 0
            if ROWS > _NARROW:
                leaves = False  # known beforehand: `plan_work` divides narrow tiles only
            if leaves:
                place = (partial + token * stride + tile // EVERY) * HEADS + head
                tl.store(part_maxima + place, high, mask=there)
                tl.store(part_sums + place, tl.max(total, 1), mask=there)
                tl.store(part_values + place[:, None] * HEAD_DIM + places[None, :], sums, mask=mask)
            else:
                all_high, share, other = _shares(all_high, high)
                all_total = all_total * share + tl.max(total, 1) * other
                all_sums = all_sums * share[:, None] + sums * other[:, None]
            high = tl.full((ROWS,), float("-inf"), tl.float32)
            total = tl.zeros((ROWS, 2 * ROWS), tl.float32)
            sums = tl.zeros((ROWS, PADDED), tl.float32)
    if partial < 0:
        found = (all_sums / all_total[:, None]).to(out.dtype.element_ty)
        tl.store(out + line[:, None] * HEAD_DIM + places[None, :], found, mask=mask)


@triton.jit
def _attend(
    query, keys, values, tables, items, item_count, out, part_values, part_sums, part_maxima, scale, table_stride,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr,
    PART: tl.constexpr, REST: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """Every program takes every so many items; the key heads of one item are side by side, as they are in memory."""
    for work in range(tl.program_id(0), tl.load(item_count) * KV_HEADS, tl.num_programs(0)):
        item = items + work // KV_HEADS * _ITEM
        first = tl.load(item)
        position = tl.load(item + 1)
        tokens = tl.load(item + 2)
        table = tables + tl.load(item + 3).to(tl.int64) * table_stride
        begin_split = tl.load(item + 4)
        end_split = tl.load(item + 5)
        partial = tl.load(item + 6)
        stride = tl.load(item + 7)
        if tokens * GROUP <= _NARROW:
            _tile(
                query, keys, values, table, out, part_values, part_sums, part_maxima, first, position, tokens,
                begin_split, end_split, partial, stride, work % KV_HEADS, scale, GROUP, KV_HEADS, HEAD_DIM, PADDED,
                PART, REST, BLOCK_SIZE, WINDOW, SPLIT, KEYS, _NARROW,
            )  # fmt: skip
        else:
            _tile(
                query, keys, values, table, out, part_values, part_sums, part_maxima, first, position, tokens,
                begin_split, end_split, partial, stride, work % KV_HEADS, scale, GROUP, KV_HEADS, HEAD_DIM, PADDED,
                PART, REST, BLOCK_SIZE, WINDOW, SPLIT, KEYS, _WIDE,
            )  # fmt: skip


@triton.jit
def _merge(
    merges, merge_count, out, part_values, part_sums, part_maxima, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Joins the splits of one token and query head, from the first that it sees to its own."""
    places = tl.arange(0, PADDED)
    inside = places < HEAD_DIM
    for work in range(tl.program_id(0), tl.load(merge_count) * HEADS, tl.num_programs(0)):
        merge = merges + work // HEADS * _MERGE
        head = work % HEADS
        first = tl.load(merge)
        position = tl.load(merge + 1)
        partial = tl.load(merge + 2)
        begin = 0
        if WINDOW:
            begin = tl.maximum(position - WINDOW + 1, 0) // SPLIT
        end = position // SPLIT + 1
        high = tl.full((1,), float("-inf"), tl.float32)
        total = tl.zeros((1,), tl.float32)
        sums = tl.zeros((PADDED,), tl.float32)
        for some in range(begin, end, _AT_ONCE):
            for nth in tl.static_range(_AT_ONCE):
                split = some + nth + tl.arange(0, 1)
                there = split < end
                place = (partial + split) * HEADS + head
                other_high = tl.load(part_maxima + place, mask=there, other=float("-inf"))
                other_total = tl.load(part_sums + place, mask=there, other=0.0)
                line = place * HEAD_DIM + places
                other_sums = tl.load(part_values + line, mask=inside & there, other=0.0)
                high, share, other = _shares(high, other_high)
                total = total * share + other_total * other
                sums = sums * share + other_sums * other
        found = (sums / total).to(out.dtype.element_ty)
        tl.store(out + (first * HEADS + head) * HEAD_DIM + places, found, mask=inside)


def _variants() -> Iterator[Variant]:
    # Every choice is seen with some other: with all others there would be hundreds, of a few seconds each.
    for head_dim in (64, 96, 128, 256):
        for form, block_size, window, group in (
            ("bf16", 16, 4096, 3),
            ("bf16", 32, 0, 8),
            ("bf16", 64, 0, 1),
            ("fp16", 16, 4096, 3),
            ("fp16", 32, 0, 8),
        ):
            keys, options = _tiling(head_dim, 2)
            shape = {"HEAD_DIM": head_dim, "PADDED": _padded(head_dim), "WINDOW": window, "SPLIT": SPLIT}
            likely = block_size == 64 or (head_dim == 64 and bool(window))
            own = {"GROUP": group, "KV_HEADS": 8, "BLOCK_SIZE": block_size, "KEYS": keys, **_parts(head_dim)}
            name = f"{form}, heads of {head_dim}, blocks of {block_size}, groups of {group}"
            yield _variant(_attend, name + ", window" * bool(window), form, shape | own, options, likely)
        for form, window in (("bf16", 0), ("fp16", 4096)):
            shape = {"HEAD_DIM": head_dim, "PADDED": _padded(head_dim), "WINDOW": window, "SPLIT": SPLIT}
            name = f"{form}, heads of {head_dim}"
            yield _variant(
                _merge, name + ", window" * bool(window), form, shape | {"HEADS": 32}, MERGE_OPTIONS, not window
            )


def _variant(
    kernel: Any, name: str, form: str, constexprs: dict[str, Any], options: dict[str, Any], likely: bool
) -> Variant:
    types = dict.fromkeys(("query", "keys", "values", "out"), f"*{form}")
    types |= dict.fromkeys(("tables", "items", "item_count", "merges", "merge_count"), "*i32")
    types |= dict.fromkeys(("part_values", "part_sums", "part_maxima"), "*fp32")
    types |= {"scale": "fp32", "table_stride": "i32"}
    signature = {it: types.get(it, "constexpr") for it in kernel.arg_names}
    return Variant(kernel, name, signature, constexprs, options, likely)


VARIANTS = tuple(_variants())
