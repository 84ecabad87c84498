"""`y = x W^T + b`, where a row's bits are the same in any company.

Source: the tiled product of Triton's tutorial 03 with its order of programs; K split as by "split-K" in NVIDIA's
CUTLASS (efficient_gemm.md), but with the parts kept apart until they are added in their order.

Knows how K is cut, which programs there are for so many rows, and in which order everything is added. Does not know
which of a model's products it is.

**The order of a sum.** K is cut into `splits` of `tiles_per_split` tiles of 64, decided by (N, K) alone. Within a split
the tiles are added in their order, from zero, in float32; the splits are added in their order, from zero; then the bias
is added and the sum is rounded, once. There are two forms, and each does just that:

- *apart*, for few rows: each split is a program of its own and leaves its sum in scratch; a second kernel adds them.
- *whole*: one program goes through all of K. At the end of a split it adds the sum to its total and begins anew.

How many rows a tile has depends on how many there are. What multiplies does not: Hopper's `wgmma` of 64 rows, all of
the tile's columns and 16 places of K. A tile of 256 rows is four of them, one below the other (a test looks at the
PTX). float32 goes through FMA, one place of K after the other, in tiles of one size.

**Why these tiles.** Reading W is what a decode step is. By Little's law, 4.3 TB/s at 1 us of latency under load (an
H200's, of 132 multiprocessors) take 4.3 MB in flight, 33 KiB a multiprocessor. A tile of W is 16 KiB. A program that
has a multiprocessor to itself has five under way (80 KiB), two that share one have three each (96 KiB), so about one
program a multiprocessor is enough, and fewer splits leave fewer sums to write and read. W comes from memory once. Rows
of x come through L2 once for every 128 columns: half as many bytes as W's at 64 rows, a 128th at one, so rows that are
not there are not read.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.products import product
from kernels.triton.rounding import rounded
from kernels.triton.variants import Variant

MULTIPROCESSORS = 132
"""An H200's. Another GPU is given the same programs, so the same bits."""
ENOUGH = 96
"""Programs that keep the memory busy."""
SHARED = 224 * 1024
"""Bytes of shared memory in a multiprocessor that tiles may take."""
MOST_STAGES = 6
COLUMNS = 128
"""Columns of a tile, so of one wgmma."""
STRETCH = 64
"""Places of K in a tile: 128 bytes of a row, what a line of L2 holds."""
LEAST_TILES = 4
"""A split has so many tiles or more, or its sum would be too large beside what it reads."""
MOST_SPLITS = 16
ROWS_APART = 256
"""With more rows a program goes through all of K: the sums of splits would be several times the bytes of W."""
ROWS_TOGETHER = 8
"""Tiles of rows that are done for a column before the next column: W comes from memory once for all of them."""
SUM_COLUMNS = 512


@dataclass(frozen=True)
class Cut:
    """How the sum over K is cut. Decided by (N, K) alone."""

    tiles_per_split: int
    splits: int


@dataclass(frozen=True)
class Form:
    """One way to launch the product. `apart`: each split is a program of its own."""

    rows: int
    columns: int
    stretch: int
    warps: int
    stages: int
    apart: bool

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}


@functools.cache
def cut(n: int, k: int) -> Cut:
    """As many splits as give each multiprocessor a program when one tile holds all rows, and few a second."""
    tiles, columns = triton.cdiv(k, STRETCH), triton.cdiv(n, COLUMNS)
    wanted = min(MOST_SPLITS, max(1, MULTIPROCESSORS // columns))
    if wanted * columns < ENOUGH and wanted < MOST_SPLITS:
        wanted += 1
    per_split = max(min(LEAST_TILES, tiles), triton.cdiv(tiles, wanted))
    return Cut(per_split, triton.cdiv(tiles, per_split))


@functools.cache
def form(rows: int, n: int, k: int, dtype: torch.dtype) -> Form:
    """What is launched for so many rows. Whatever it is, the bits are the same."""
    splits, columns = cut(n, k).splits, triton.cdiv(n, COLUMNS)
    apart = splits > 1 and rows <= ROWS_APART
    if dtype == torch.float32:
        return Form(32, 64, 32, 8, 3, apart)
    totals = splits > 1 and not apart
    if rows <= 64 or (totals and triton.cdiv(rows, 128) * columns < ENOUGH):
        tall = 64
    elif totals or triton.cdiv(rows, 128) % 2:
        tall = 128  # totals take as many registers as sums, which leaves no room for 256
    else:
        tall = 256
    programs = triton.cdiv(rows, tall) * columns * (splits if apart else 1)
    alone = programs <= MULTIPROCESSORS or tall == 256 or (totals and tall == 128)
    stages = SHARED // (1 if alone else 2) // ((tall + COLUMNS) * STRETCH * dtype.itemsize)
    return Form(tall, COLUMNS, STRETCH, 4 if tall == 64 else 8, min(MOST_STAGES, stages), apart)


def scratch_elements(max_rows: int, n: int, k: int) -> int:
    """How many float32 `linear` needs for up to `max_rows` rows."""
    splits = cut(n, k).splits
    return splits * min(max_rows, ROWS_APART) * n if splits > 1 else 0


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, scratch: Tensor) -> None:
    """`out = x @ weight.T + bias`, rounded once.

    `x` `[rows, K]`, `weight` `[N, K]`, `bias` `[N]`, `out` `[rows, N]`: contiguous, of one format (bfloat16, float16 or
    float32; float32 is multiplied as such). `scratch` is float32, of `scratch_elements(rows, N, K)` elements or more;
    what it holds does not matter, before or after.
    """
    rows, k = x.shape
    n = weight.shape[0]
    if rows == 0:
        return
    how, parts = form(rows, n, k, x.dtype), cut(n, k)
    assert weight.shape == (n, k)
    assert out.shape == (rows, n)
    assert all(it.is_contiguous() for it in (x, weight, out, scratch))
    assert scratch.dtype == torch.float32
    assert scratch.numel() >= scratch_elements(rows, n, k)
    tiles = triton.cdiv(rows, how.rows) * triton.cdiv(n, how.columns)
    _product[tiles, parts.splits if how.apart else 1](
        x, weight, bias, out, scratch, rows, **_constants(how, n, k, bias is not None), **how.options
    )
    if how.apart:
        _sum[triton.cdiv(n, SUM_COLUMNS), rows](
            scratch, bias, out, rows, **_sum_constants(n, k, bias is not None), **_SUM_OPTIONS
        )


_SUM_OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def _constants(how: Form, n: int, k: int, biased: bool) -> dict[str, Any]:
    parts = cut(n, k)
    return {
        "N": n,
        "K": k,
        "SPLIT": parts.tiles_per_split * STRETCH,
        "SPLITS": parts.splits,
        "APART": how.apart,
        "BIASED": biased,
        "ROWS": how.rows,
        "COLUMNS": how.columns,
        "STRETCH": how.stretch,
        "TOGETHER": ROWS_TOGETHER,
    }


def _sum_constants(n: int, k: int, biased: bool) -> dict[str, Any]:
    return {"N": n, "SPLITS": cut(n, k).splits, "BIASED": biased, "COLUMNS": SUM_COLUMNS}


@triton.jit(do_not_specialize=["rows"])
def _product(
    x,
    weight,
    bias,
    out,
    scratch,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    SPLIT: tl.constexpr,  # places of K; the last may have fewer
    SPLITS: tl.constexpr,
    APART: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRETCH: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    row, column = _place(tl.program_id(0), tl.cdiv(rows, ROWS), tl.cdiv(N, COLUMNS), TOGETHER)
    row_at = row * ROWS + tl.arange(0, ROWS)
    column_at = column * COLUMNS + tl.arange(0, COLUMNS)
    k_at = tl.arange(0, STRETCH)
    row_here = row_at < rows
    column_here = column_at < N
    # Beyond the last column the last is read again, which needs no mask in the loop. Beyond the last row nothing is:
    # most of a tile may be beyond it, and would come through L2 all the same.
    weight_row = tl.minimum(column_at, N - 1).to(tl.int64)
    first = tl.program_id(1) * SPLIT if APART else 0
    x_at = x + row_at.to(tl.int64)[:, None] * K + (first + k_at)[None, :]
    weight_at = weight + weight_row[None, :] * K + (first + k_at)[:, None]

    added = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    last = tl.minimum(first + SPLIT, K) if APART else K
    for k in range(first, last, STRETCH):
        if K % STRETCH == 0:
            x_tile = tl.load(x_at, row_here[:, None], 0.0)
            weight_tile = tl.load(weight_at)
        else:
            x_tile = tl.load(x_at, row_here[:, None] & (k_at[None, :] < K - k), 0.0)
            weight_tile = tl.load(weight_at, k_at[:, None] < K - k, 0.0)
        added = product(x_tile, weight_tile, added)
        x_at += STRETCH
        weight_at += STRETCH
        if SPLITS > 1 and not APART:  # noqa: SIM102 - this is decided when it is compiled
            if (k + STRETCH) % SPLIT == 0:
                total += added
                added = tl.zeros((ROWS, COLUMNS), tl.float32)

    here = row_here[:, None] & column_here[None, :]
    to = row_at.to(tl.int64)[:, None] * N + column_at[None, :]
    if APART:
        tl.store(scratch + tl.program_id(1).to(tl.int64) * rows * N + to, added, here)
    else:
        if SPLITS == 1:
            total = added
        elif K % SPLIT != 0:
            total += added
        if BIASED:
            total += tl.load(bias + column_at, column_here, 0.0).to(tl.float32)[None, :]
        tl.store(out + to, rounded(total, out.dtype.element_ty), here)


@triton.jit
def _place(program, row_tiles, column_tiles, TOGETHER: tl.constexpr):
    """Which tile of rows and of columns: down `TOGETHER` rows, then along the columns, then further down."""
    group = program // (TOGETHER * column_tiles)
    within = program % (TOGETHER * column_tiles)
    height = tl.minimum(row_tiles - group * TOGETHER, TOGETHER)
    return group * TOGETHER + within % height, within // height


@triton.jit(do_not_specialize=["rows"])
def _sum(
    scratch,
    bias,
    out,
    rows,
    N: tl.constexpr,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    column_at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here = column_at < N
    total = tl.zeros((COLUMNS,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(scratch + (split * rows.to(tl.int64) + row) * N + column_at, here, 0.0)
    if BIASED:
        total += tl.load(bias + column_at, here, 0.0).to(tl.float32)
    tl.store(out + row * N + column_at, rounded(total, out.dtype.element_ty), here)


_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


def _variants(rows: int, n: int, k: int, biased: bool, dtype: torch.dtype) -> tuple[Variant, ...]:
    """What `linear` launches for so many rows."""
    how, own = form(rows, n, k, dtype), _TYPES[dtype]
    constants, sum_constants = _constants(how, n, k, biased), _sum_constants(n, k, biased)
    given = {"bias": own if biased else "constexpr", "out": own, "scratch": "*fp32", "rows": "i32"}
    signature = {"x": own, "weight": own, **given, **dict.fromkeys(constants, "constexpr")}
    sum_signature = {**given, **dict.fromkeys(sum_constants, "constexpr")}
    if not biased:
        constants["bias"] = sum_constants["bias"] = None
    kind = "apart" if how.apart else f"{cut(n, k).splits} whole"
    name = f"{how.rows} rows, {kind}, {k} to {n}, {own[1:]}"
    product_of_it = Variant(_product, name, signature, constants, how.options)
    if not how.apart or rows > 64:  # the sum is the same for more
        return (product_of_it,)
    return product_of_it, Variant(_sum, f"{k} to {n}, {own[1:]}", sum_signature, sum_constants, _SUM_OPTIONS)


VARIANTS = tuple(
    variant
    for dtype in (torch.bfloat16, torch.float16)
    for rows, n, k, biased in (
        (64, 3072, 2048, True),
        (128, 3072, 2048, True),
        (256, 3072, 2048, True),
        (300, 2048, 8192, False),
        (1024, 2048, 8192, False),
        (64, 16384, 2048, False),
        (128, 16384, 2048, False),
        (256, 16384, 2048, False),
        (64, 128256, 2048, False),
        (128, 128256, 2048, False),
        (64, 576, 600, False),
        (300, 576, 600, True),
    )
    for variant in _variants(rows, n, k, biased, dtype)
) + tuple(variant for rows in (64, 300) for variant in _variants(rows, 576, 600, True, torch.float32))
