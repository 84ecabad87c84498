"""What changes on the device between two steps: tokens that the last step chose, and block tables.

Knows where numbers go. Does not know what they mean. How many there are is read from the device, so that a CUDA graph
that has frozen the launches stays right.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.variants import Variant

BLOCK = 256
_OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def fill_in(ids: Tensor, follows: Tensor, chosen: Tensor) -> None:
    """`ids[t] = chosen[follows[t]]` where `follows[t]` is not negative; the rest of `ids` is left as it is.

    `ids` and `follows` `[tokens]`, `chosen` `[rows]`: int32, contiguous.
    """
    tokens = ids.shape[0]
    if tokens == 0:
        return
    assert follows.shape == ids.shape
    _fill_in[triton.cdiv(tokens, BLOCK),](ids, follows, chosen, tokens, BLOCK=BLOCK, **_OPTIONS)


def apply_changes(tables: Tensor, changes: Tensor, change_count: Tensor, programs: int) -> None:
    """`tables[index] = value` for the first `change_count[0]` of `changes`; no index stands there twice.

    `tables` is flat or `[table_rows, blocks_per_table]`, `changes` `[room, 2]` (index in the flat table, value),
    `change_count` `[1]`: int32, contiguous. `programs` walk the list together.
    """
    if changes.shape[0] == 0:
        return
    assert tables.is_contiguous()
    assert changes.is_contiguous()
    assert changes.shape[1] == 2
    _apply_changes[programs,](tables, changes, change_count, BLOCK=BLOCK, **_OPTIONS)


# A buffer's sections begin where the one before ends: their alignment is not to make a kernel of its own.
@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["ids", "follows", "chosen"])
def _fill_in(ids, follows, chosen, tokens, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(follows + at, at < tokens, -1)
    here = row >= 0
    tl.store(ids + at, tl.load(chosen + row, here, 0), here)


@triton.jit(do_not_specialize_on_alignment=["tables", "changes", "change_count"])
def _apply_changes(tables, changes, change_count, BLOCK: tl.constexpr):
    count = tl.load(change_count)
    for first in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        here = at < count
        index = tl.load(changes + 2 * at, here, 0)
        tl.store(tables + index, tl.load(changes + 2 * at + 1, here, 0), here)


VARIANTS = (
    Variant(
        _fill_in,
        "int32",
        {"ids": "*i32", "follows": "*i32", "chosen": "*i32", "tokens": "i32", "BLOCK": "constexpr"},
        {"BLOCK": BLOCK},
        _OPTIONS,
    ),
    Variant(
        _apply_changes,
        "int32",
        {"tables": "*i32", "changes": "*i32", "change_count": "*i32", "BLOCK": "constexpr"},
        {"BLOCK": BLOCK},
        _OPTIONS,
    ),
)
