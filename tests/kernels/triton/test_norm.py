"""Rows are normalised as transformers does it, each in its own order."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.triton.norm import add_rms_norm, rms_norm

FORMATS = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
WIDTHS = st.sampled_from([16, 96, 576, 2048]) | st.integers(1, 700)
# Where float32 sums differ in their last bits, the row may be rounded to the number beside, and so may its product with
# the weight: two units in the last place.
NEAR = {torch.bfloat16: 2**-6, torch.float16: 2**-9, torch.float32: 1e-5}


def drawn(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def poisoned(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """One row more than is written, all of it NaN."""
    return torch.full((rows + 1, width), float("nan"), dtype=dtype)


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As transformers' LlamaRMSNorm."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def assert_near(found: Tensor, expected: Tensor) -> None:
    near = NEAR[found.dtype]
    torch.testing.assert_close(found, expected, rtol=near, atol=near * 1e-3)


@settings(max_examples=30, deadline=None)
@given(FORMATS, st.integers(0, 5), WIDTHS, st.sampled_from([1e-5, 1e-6]), st.integers(0, 1000))
def test_a_row_is_normalised_as_by_transformers(
    dtype: torch.dtype, rows: int, width: int, eps: float, seed: int
) -> None:
    x, weight = drawn(seed, rows, width, dtype=dtype) * 3, drawn(seed + 1, width, dtype=dtype)
    out = poisoned(rows, width, dtype)
    rms_norm(x, weight, eps, out[:rows])
    assert_near(out[:rows], reference(x, weight, eps))
    assert out[rows].isnan().all()


@settings(max_examples=30, deadline=None)
@given(FORMATS, st.integers(0, 5), WIDTHS, st.integers(0, 1000))
@example(torch.float16, 2, 2048, 190)  # rounded to the number beside, twice
def test_the_residual_is_rounded_before_it_is_normalised(dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    x, residual = drawn(seed, rows, width, dtype=dtype), drawn(seed + 1, rows, width, dtype=dtype)
    weight, expected = drawn(seed + 2, width, dtype=dtype), residual + x
    out = poisoned(rows, width, dtype)
    add_rms_norm(x, residual, weight, 1e-5, out[:rows])
    assert torch.equal(residual, expected)
    assert_near(out[:rows], reference(expected, weight, 1e-5))
    assert out[rows].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_row_has_the_same_bits_alone_and_in_a_crowd(dtype: torch.dtype) -> None:
    x, weight = drawn(1, 7, 576, dtype=dtype), drawn(2, 576, dtype=dtype)
    crowd, alone = torch.empty_like(x), torch.empty_like(x)
    rms_norm(x, weight, 1e-5, crowd)
    for row in range(7):
        rms_norm(x[row : row + 1], weight, 1e-5, alone[row : row + 1])
    assert torch.equal(alone, crowd)


def test_a_row_of_zeros_and_a_row_of_large_numbers_stay_finite() -> None:
    x = torch.stack([torch.zeros(96), torch.full((96,), 3e4)]).to(torch.float16)
    out = torch.empty_like(x)
    rms_norm(x, torch.ones(96, dtype=torch.float16), 1e-6, out)
    assert torch.equal(out, torch.tensor([[0.0], [1.0]], dtype=torch.float16).expand(2, 96))


def test_the_result_may_take_the_place_of_its_input() -> None:
    x, residual, weight = (drawn(seed, 3, 96, dtype=torch.bfloat16) for seed in (1, 2, 3))
    expected = torch.empty_like(x)
    add_rms_norm(x, residual.clone(), weight[0], 1e-5, expected)
    add_rms_norm(x, residual, weight[0], 1e-5, x)
    assert torch.equal(x, expected)
