"""SiLU of the gate, times up: what stands between the products of an MLP.

Source: Shazeer, GLU Variants Improve Transformer (2020), "SwiGLU".

Knows elements, each of which is computed for itself. Knows nothing of the products.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.rounding import rounded
from kernels.triton.variants import Variant

BLOCK = 1024
_OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def gate_up(x: Tensor, out: Tensor) -> None:
    """`out = silu(gate) * up`, float32 inside, rounded once.

    `x` `[rows, 2 * width]`, first gate, then up; `out` `[rows, width]`: contiguous, of one format.
    """
    rows, width = out.shape
    if rows == 0:
        return
    assert x.shape == (rows, 2 * width)
    assert x.is_contiguous()
    assert out.is_contiguous()
    _gate_up[rows, triton.cdiv(width, BLOCK)](x, out, WIDTH=width, BLOCK=BLOCK, **_OPTIONS)


@triton.jit
def _gate_up(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = at < WIDTH
    gate = tl.load(x + row * 2 * WIDTH + at, here, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * WIDTH + WIDTH + at, here, 0.0).to(tl.float32)
    # exp(-|gate|) is never infinite, whatever the gate is.
    small = tl.exp(-tl.abs(gate))
    silu = gate * tl.where(gate < 0, small, 1.0) / (1.0 + small)
    tl.store(out + row * WIDTH + at, rounded(silu * up, out.dtype.element_ty), here)


VARIANTS = tuple(
    Variant(
        _gate_up,
        f"{width}, {dtype}",
        {"x": f"*{dtype}", "out": f"*{dtype}", "WIDTH": "constexpr", "BLOCK": "constexpr"},
        {"WIDTH": width, "BLOCK": BLOCK},
        _OPTIONS,
    )
    for dtype in ("bf16", "fp16")
    for width in (1536, 8192)
)
