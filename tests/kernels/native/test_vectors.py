"""What the processor of this machine would not take by itself: vectors without bfloat16, and vectors of 32 bytes."""

import platform

import pytest

from kernels.native import build
from kernels.native.binding import Best, Library
from kernels.native.build import NotBuilt, cpu_features
from protocol.messages import Sampling
from tests.kernels.native.claims import assert_same_bits_in_chunks, assert_torchs_logits
from tests.kernels.native.decoders import BFLOAT16, FLOAT32, Decoders, Stacks, Way
from tests.kernels.native.test_answer import FILTERS, GREEDY, ROWS, Rows

NEEDS = {
    "x86-64-v3": {"avx2", "fma", "f16c", "bmi2", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
"""As the compiler calls it, and what the system says when the processor can run it."""
FAMILIES = ("qwen2", "qwen2, windows on some layers", "qwen3, heads of 64")


@pytest.fixture(scope="module", params=NEEDS)
def other_kernels(request: pytest.FixtureRequest) -> Library:
    if platform.machine() != "x86_64" or not NEEDS[request.param] <= set(cpu_features().split()):
        pytest.skip(f"this processor is no {request.param}")
    kept = request.config.cache
    assert kept is not None
    with pytest.MonkeyPatch.context() as patch:
        flags = [f"-march={request.param}" if it == "-march=native" else it for it in build.FLAGS]
        patch.setattr(build, "FLAGS", tuple(flags))
        try:
            # Built once, like that of this machine; but no business of the user's cache.
            return Library(build.built_library(cache=kept.mkdir("kernels")))
        except NotBuilt as error:
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def stacks(decoders: Decoders, other_kernels: Library) -> Stacks:
    return Stacks(decoders, other_kernels)


def test_it_has_neither_tiles_nor_products_of_bfloat16(other_kernels: Library) -> None:
    assert other_kernels.best is Best.VECTORS_OF_FLOAT32


@pytest.mark.parametrize("way", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_torch(family: str, way: Way, decoders: Decoders, stacks: Stacks) -> None:
    assert_torchs_logits(family, way, decoders, stacks)


@pytest.mark.parametrize("way", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rows_bits_depend_on_its_sequence_alone(family: str, way: Way, decoders: Decoders, stacks: Stacks) -> None:
    assert_same_bits_in_chunks(family, way, decoders, stacks)


def test_the_tokens_are_those_of_sampling(decoders: Decoders, stacks: Stacks) -> None:
    family = "mistral, no window"
    rows = Rows(stacks(family, FLOAT32, threads=2), decoders(family, FLOAT32.dtype))
    drawn = [Sampling(temperature=0.8, seed=row, **list(FILTERS.values())[row % len(FILTERS)]) for row in range(ROWS)]
    assert rows.agree([GREEDY] * ROWS, list(range(ROWS))) == ROWS
    assert rows.agree(drawn, list(range(ROWS))) >= ROWS - 1
