"""Products are what they should be, and a row of one has the same bits whatever stands beside it, in every form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.triton.linear import ROWS_APART, Form, cut, form, linear, scratch_elements

ROOT = Path(__file__).parents[3]
FORMATS = [torch.bfloat16, torch.float16, torch.float32]
# A sum of K products in float32, rounded once.
NEAR = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}
MULTIPLIES_BY = """
import json, re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.triton.linear import VARIANTS

found = {}
for it in VARIANTS:
    if re.search("(to 3072|to 2048|to 16384), bf16", it.name) and it.kernel.fn.__name__ == "_product":
        pointers = [place for place, kind in enumerate(it.signature.values()) if kind.startswith("*")]
        aligned = {(place,): [["tt.divisibility", 16]] for place in pointers}
        source = ASTSource(it.kernel, it.signature, it.constexprs, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=it.options)
        found[it.name] = sorted(set(re.findall(r"\\S*mma\\S*m\\d+n\\d+k\\d+\\S*", compiled.asm["ptx"])))
print(json.dumps(found))
"""
SHAPES_OF_1B = [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048)]


def drawn(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """By `linear`, into memory full of NaN, of which nothing beyond the result is written."""
    rows, n, k = x.shape[0], weight.shape[0], weight.shape[1]
    out = torch.full((rows + 1, n), float("nan"), dtype=x.dtype)
    scratch = torch.full((scratch_elements(rows, n, k) + 9,), float("nan"))
    linear(x, weight, bias, out[:rows], scratch)
    assert out[rows].isnan().all()
    assert scratch[-9:].isnan().all()
    return out[:rows]


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.integers(0, 70),
    st.sampled_from([96, 128, 130]) | st.integers(1, 200),
    st.sampled_from([64, 96, 576, 640]) | st.integers(1, 600),
    st.booleans(),
    st.integers(0, 1000),
)
def test_it_is_the_product_summed_in_float32_and_rounded_once(
    dtype: torch.dtype, rows: int, n: int, k: int, biased: bool, seed: int
) -> None:
    x, weight = drawn(seed, rows, k, dtype=dtype), drawn(seed + 1, n, k, dtype=dtype)
    bias = drawn(seed + 2, n, dtype=dtype) if biased else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    sums = x.double().abs() @ weight.double().abs().T  # what float32's error grows with
    found = product(x, weight, bias).double()
    assert ((found - exact).abs() <= NEAR[dtype] * exact.abs() + 2**-22 * (sums + 1)).all()


@pytest.mark.parametrize(
    ("dtype", "n", "k"), [(torch.bfloat16, 130, 600), (torch.float16, 96, 576), (torch.float32, 70, 320)]
)
def test_a_row_has_the_same_bits_alone_in_a_crowd_and_in_every_form(dtype: torch.dtype, n: int, k: int) -> None:
    assert cut(n, k).splits > 1
    most = ROWS_APART + 8
    x, weight, bias = (drawn(seed, *it, dtype=dtype) for seed, it in enumerate([(most, k), (n, k), (n,)]))
    crowd = product(x, weight, bias)
    assert not form(most, n, k, dtype).apart
    for first, count in ((0, 1), (most - 1, 1), (5, 33), (70, 100), (3, ROWS_APART)):
        assert form(count, n, k, dtype).apart
        assert torch.equal(product(x[first : first + count], weight, bias), crowd[first : first + count])


def test_many_rows_have_the_same_bits_in_taller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = drawn(1, 260, 576, dtype=torch.bfloat16), drawn(2, 64, 576, dtype=torch.bfloat16)
    found = [product(x, weight, None)]
    for tall in (128, 256):
        taller = Form(tall, 128, 64, 8, 4, apart=False)
        monkeypatch.setattr("kernels.triton.linear.form", lambda *_, taller=taller: taller)
        found.append(product(x, weight, None))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@given(st.integers(1, 20_000), st.integers(1, 200_000), st.integers(1, 20_000), st.sampled_from(FORMATS))
def test_every_place_of_k_is_in_one_split_and_scratch_has_room_for_all_of_them(
    rows: int, n: int, k: int, dtype: torch.dtype
) -> None:
    parts, how = cut(n, k), form(rows, n, k, dtype)
    stretch = parts.tiles_per_split * 64
    assert (parts.splits - 1) * stretch < k <= parts.splits * stretch
    assert stretch % how.stretch == 0
    assert scratch_elements(rows, n, k) == scratch_elements(10**6, n, k) or rows <= ROWS_APART
    assert not how.apart or scratch_elements(rows, n, k) == parts.splits * rows * n
    assert how.stages >= 3


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize(("n", "k"), SHAPES_OF_1B)
def test_a_decode_step_keeps_enough_of_the_weights_in_flight(n: int, k: int, rows: int) -> None:
    how, parts = form(rows, n, k, torch.bfloat16), cut(n, k)
    programs = -(-n // how.columns) * parts.splits
    at_once = 132 if programs <= 132 else 264
    tiles = min(how.stages - 1, parts.tiles_per_split)
    in_flight = min(programs, at_once) * tiles * how.columns * how.stretch * 2
    latency_s, bytes_per_s = 1e-6, 4.3e12
    assert in_flight > latency_s * bytes_per_s  # Little's law


def test_every_form_of_a_product_multiplies_by_the_same_instruction() -> None:
    """Or its bits would be another matter. Compiled in a process of its own: here kernels are interpreted."""
    environment = {name: it for name, it in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", MULTIPLIES_BY], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert {name.split(",")[0] for name in found} == {"64 rows", "128 rows", "256 rows"}
    for instructions in found.values():
        assert instructions == ["wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"]
