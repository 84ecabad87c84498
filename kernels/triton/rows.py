"""What every kernel that reads a row of logits has to know.

Knows how logits become numbers that can be compared and subtracted without a thought, what a row asks for, and what
its tokens weigh. Does not know which of them are kept.
"""

import triton
import triton.language as tl

from kernels.sampling import GREEDY_BELOW

FLOOR = -(2.0**126)
"""What -inf and not-a-number are read as, and what is lower. Differences of such numbers are finite, and no rounding to
a shorter format changes it."""
NOTHING = float("-inf")
"""What stands beyond the end of a row: less than all that stands in it."""

_GREEDY_BELOW = tl.constexpr(GREEDY_BELOW)
_FLOOR = tl.constexpr(FLOOR)
_NOTHING = tl.constexpr(NOTHING)
_LOG2_E = tl.constexpr(1.4426950408889634)
_WHOLE = tl.constexpr(2.0**35)
"""The likeliest token's mass."""


@triton.jit
def logits_of(logits, row, stride, index, vocabulary):
    """A row's logits at `index`, as float32 from `FLOOR` to `-FLOOR`; `NOTHING` beyond the vocabulary."""
    inside = index < vocabulary
    x = tl.load(logits + row.to(tl.int64) * stride + index, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(x > _FLOOR, x, _FLOOR)
    x = tl.where(x < -_FLOOR, x, -_FLOOR)
    return tl.where(inside, x, _NOTHING)


@triton.jit
def peak_of(row, chunks, maxima, CHUNKS: tl.constexpr):
    part = tl.arange(0, CHUNKS)
    return tl.max(tl.load(maxima + row * chunks + part, mask=part < chunks, other=_NOTHING), 0)


@triton.jit
def is_drawn(row, temperature):
    return tl.load(temperature + row) >= _GREEDY_BELOW


@triton.jit
def filters(row, vocabulary, temperature, top_k, top_p):
    """Whether top-k, and whether top-p, takes anything away."""
    drawn = is_drawn(row, temperature)
    k = tl.load(top_k + row)
    return drawn & (k > 0) & (k < vocabulary), drawn & (tl.load(top_p + row) < 1.0)


@triton.jit
def scale_of(row, temperature):
    return _LOG2_E / tl.minimum(tl.load(temperature + row), 1e30)


@triton.jit
def weights_of(x, peak, scale):
    """Of 1 for the likeliest, in float32. -inf weighs nothing, unless there is nothing else."""
    weights = tl.exp2(tl.maximum(x - peak, -1e30) * scale)
    return tl.where(x > tl.where(peak > _FLOOR, _FLOOR, _NOTHING), weights, 0.0)


@triton.jit
def mass_of(weights):
    """Whole numbers, so that they add up exactly."""
    return (weights * _WHOLE).to(tl.int64)
