"""The gate opens what stands beside it, and nothing else."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.triton.activation import gate_up

NEAR = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-6}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    st.integers(0, 4),
    st.sampled_from([96, 576, 1024, 1536]) | st.integers(1, 2100),
    st.integers(0, 1000),
)
def test_it_is_silu_of_gate_times_up_rounded_once(dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    x = (torch.randn((rows, 2 * width), generator=torch.Generator().manual_seed(seed)) * 5).to(dtype)
    out = torch.full((rows + 1, width), float("nan"), dtype=dtype)
    gate_up(x, out[:rows])
    gate, up = x.double().chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(out[:rows].double(), expected, rtol=1.01 * NEAR[dtype], atol=1e-7)
    assert out[rows].isnan().all()


def test_a_gate_far_on_either_side_is_shut_or_open() -> None:
    x = torch.tensor([[-1e4, -200.0, 0.0, 200.0, 1e4, 2.0, 2.0, 2.0, 2.0, 2.0]])
    out = torch.empty((1, 5))
    gate_up(x, out)
    assert out.tolist() == [[0.0, 0.0, 0.0, 400.0, 2e4]]
