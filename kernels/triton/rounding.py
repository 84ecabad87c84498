"""Rounding to a model's number format, the same on a GPU and in Triton's interpreter: to nearest, ties to even.

Knows that the interpreter cuts bfloat16 off instead. Knows nothing of what is rounded.
"""

import triton
import triton.language as tl

from kernels.triton.products import INTERPRETED


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """`x`, float32, in `dtype`."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16 << 16
        x = tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)  # of a NaN it would make a number
    return x.to(dtype)
