"""RMS norm, alone and behind the addition of a residual.

Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), rounded where transformers' LlamaRMSNorm does.

Knows how a row is normalised: by one program, whose width and warps the row's own width decides, so that the order of
its sum does too. Does not know which of a model's norms it is. Those of single heads are in `rotary.py`.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.rounding import rounded
from kernels.triton.variants import Variant


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """`out = norm(x) * weight`: float32 inside; the normalised row is rounded, then its product with the weight.

    `x` and `out` `[rows, width]`, `weight` `[width]`: contiguous, of one format. `out` may be `x`.
    """
    _launch(x, None, weight, eps, out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """`residual += x`, rounded; `out` is the norm of that, as by `rms_norm`. Shapes as there. `out` may be `x`."""
    _launch(x, residual, weight, eps, out)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> None:
    rows, width = x.shape
    if rows == 0:
        return
    given = [it for it in (x, residual, out) if it is not None]
    assert all(it.shape == x.shape for it in given)
    assert all(it.is_contiguous() for it in given)
    assert weight.shape == (width,)
    _norm[rows,](x, residual, weight, out, eps, **_constants(width, residual is not None), **_options(width))


def _constants(width: int, added: bool) -> dict[str, Any]:
    return {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "ADDED": added}


def _options(width: int) -> dict[str, Any]:
    """Eight elements a thread, which are 16 bytes of bfloat16, up to 16 warps."""
    warps = triton.next_power_of_2(width) // (8 * 32)
    return {"num_warps": min(16, max(1, warps)), "num_stages": 1, "enable_fp_fusion": True}


@triton.jit
def _norm(
    x,
    residual,
    weight,
    out,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two
    ADDED: tl.constexpr,
):
    dtype: tl.constexpr = out.dtype.element_ty
    first = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, BLOCK)
    here = at < WIDTH
    row = tl.load(x + first + at, here, 0.0).to(tl.float32)
    if ADDED:
        row += tl.load(residual + first + at, here, 0.0).to(tl.float32)
        row_as_kept = rounded(row, dtype)
        tl.store(residual + first + at, row_as_kept, here)
        row = row_as_kept.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, 0) / WIDTH + eps)
    normalised = rounded(row * scale, dtype).to(tl.float32)
    weights = tl.load(weight + at, here, 0.0).to(tl.float32)
    tl.store(out + first + at, rounded(normalised * weights, dtype), here)


def _variant(width: int, added: bool, dtype: str) -> Variant:
    constants = _constants(width, added)
    signature = dict.fromkeys(("x", "residual", "weight", "out"), f"*{dtype}")
    if not added:
        signature["residual"] = "constexpr"
        constants["residual"] = None
    signature |= {"eps": "fp32", "WIDTH": "constexpr", "BLOCK": "constexpr", "ADDED": "constexpr"}
    name = f"{'add, ' if added else ''}{width}, {dtype}"
    return Variant(_norm, name, signature, constants, _options(width))


VARIANTS = tuple(
    _variant(width, added, dtype)
    for dtype in ("bf16", "fp16")
    for width, added in ((576, True), (2048, True), (2048, False), (4096, True), (8192, True))
)
