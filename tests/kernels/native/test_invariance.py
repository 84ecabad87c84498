"""With the CPU kernels a row's bits depend on its own sequence alone, in every number format.

Logits and all that is kept in the cache are compared bit for bit with those of the sequence alone: one thread, one
chunk, a cache that nobody has used.
"""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.decoder import Decoder
from kernels.native.stack import NativeStack
from tests.kernels.native.claims import (
    LONG,
    assert_same_bits_in_chunks,
    bits_alone,
    same,
    some_tokens,
    used_cache,
)
from tests.kernels.native.decoders import (
    FAMILIES,
    WAYS,
    Decoders,
    Part,
    Stacks,
    Way,
    make_decoder,
    new_cache,
    remembered,
    step,
)

SOME_FAMILIES = ("llama, heads of 64", "mistral, window of 20", "mistral, window of 300", "qwen3")
BLOCKS = 160


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("family", SOME_FAMILIES)
def test_chunks_of_any_size_by_any_number_of_threads_give_the_same_bits(
    family: str, way: Way, decoders: Decoders, stacks: Stacks
) -> None:
    assert_same_bits_in_chunks(family, way, decoders, stacks)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("family", SOME_FAMILIES[:2])
def test_token_by_token_the_bits_are_those_of_one_chunk(
    family: str, way: Way, decoders: Decoders, stacks: Stacks
) -> None:
    decoder, native = decoders(family, way.dtype), stacks(family, way)
    ids = some_tokens(2, 300)
    cache, table = used_cache(native, decoder, 10), list(reversed(range(10)))
    for at in range(300):
        logits = step(native, cache, [Part(ids, at, at + 1, table)])[0]
        if at in (0, 31, 32, 100, 255, 256, 299):
            found = logits, remembered(cache, table, at + 1)
            assert same(found, bits_alone(native, decoder, ids[: at + 1])), f"at {at}"


@st.composite
def crowds(draw: st.DrawFn) -> list[list[Part]]:
    """Steps in which several sequences grow, each at a pace of its own. Their blocks are in any order."""
    lengths = draw(st.lists(st.one_of(st.integers(1, 70), st.integers(200, LONG)), min_size=1, max_size=4))
    lengths += [1] * draw(st.integers(0, 40))
    order = Random(draw(st.integers(0, 2**32)))
    free = order.sample(range(BLOCKS), BLOCKS)
    sequences = [some_tokens(index, length) for index, length in enumerate(lengths)]
    tables = [[free.pop() for _ in range(-(-length // 32))] for length in lengths]
    sizes = st.one_of(st.just(1), st.integers(2, 40), st.sampled_from([16, 64, 512]))
    paces = [draw(sizes) for _ in lengths]
    done, steps = [0] * len(lengths), list[list[Part]]()
    while left := [it for it, length in enumerate(lengths) if done[it] < length]:
        early = len(steps) < 16  # then all go to their end at once
        parts = []
        for it in order.sample(left, order.randint(1, len(left)) if early else len(left)):
            pace = order.choice([paces[it], order.randint(1, paces[it])]) if early else LONG
            end = min(lengths[it], done[it] + pace)
            parts.append(Part(sequences[it], done[it], end, tables[it]))
            done[it] = end
        steps.append(parts)
    return steps


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("family", SOME_FAMILIES)
@settings(max_examples=6)
@given(steps=crowds(), threads=st.integers(1, 3))
def test_random_company_and_splits_give_the_bits_of_each_sequence_alone(
    family: str, way: Way, steps: list[list[Part]], threads: int, decoders: Decoders, stacks: Stacks
) -> None:
    decoder, native, single = decoders(family, way.dtype), stacks(family, way, threads=threads), stacks(family, way)
    cache = used_cache(native, decoder, BLOCKS)
    for parts in steps:
        for part, logits in zip(parts, step(native, cache, parts), strict=True):
            if part.end == len(part.ids) or part.start == 0:
                found = logits, remembered(cache, part.table, part.end)
                assert same(found, bits_alone(single, decoder, part.ids[: part.end]))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("family", SOME_FAMILIES)
def test_a_prefix_that_another_request_left_gives_the_bits_of_ones_own(
    family: str, way: Way, decoders: Decoders, stacks: Stacks
) -> None:
    decoder, native = decoders(family, way.dtype), stacks(family, way, threads=2)
    cache = new_cache(native, decoder, 40, 32)
    prefix = some_tokens(3, 10 * 32)
    first, second = prefix + some_tokens(4, 50), prefix + some_tokens(5, 90)
    step(native, cache, [Part(first, 0, 370, range(12))])
    # The second reads the first's blocks, while the first goes on.
    table = [*range(10), 30, 20, 25]
    logits = step(native, cache, [Part(first, 369, 370, range(12)), Part(second, 320, 410, table)])
    single = stacks(family, way)
    assert same((logits[1], remembered(cache, table, 410)), bits_alone(single, decoder, second))
    assert same((logits[0], remembered(cache, range(12), 370)), bits_alone(single, decoder, first))


@pytest.mark.parametrize("way", WAYS[:2], ids=str)
@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_the_size_of_blocks_does_not_matter(block_size: int, way: Way, decoders: Decoders, stacks: Stacks) -> None:
    family = "llama, heads of 64"
    decoder, ids = decoders(family, way.dtype), some_tokens(6, 500)
    native = stacks(family, way, block_size=block_size)
    assert same(bits_alone(native, decoder, ids, block_size), bits_alone(stacks(family, way), decoder, ids))


@pytest.fixture(scope="module", params=[float("inf"), float("nan")])
def overflowing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoders:
    """FAMILIES to which token 300 is more than they can hold."""
    folder = tmp_path_factory.mktemp("overflowing")

    def made(family: str, dtype: torch.dtype) -> Decoder:
        decoder = make_decoder(folder, dtype, **FAMILIES[family])
        with torch.no_grad():
            decoder.model.get_parameter("model.embed_tokens.weight")[300] = request.param
        return decoder

    return made


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("family", ["mistral, window of 300", "mistral, no window"])
def test_a_request_that_overflows_harms_nobody_beside_it_and_nobody_who_gets_its_blocks(
    family: str, way: Way, stacks: Stacks, overflowing: Decoders
) -> None:
    stacks(family, way)  # skips where there is no such way
    decoder = overflowing(family, way.dtype)
    native = NativeStack(decoder, threads=2, block_size=32, unit=way.unit)
    ids, bad = some_tokens(8, 333), [300] * 340
    truth = bits_alone(native, decoder, ids)
    cache = new_cache(native, decoder, 24, 32)
    table = Random(2).sample(range(24), 12)
    rest = [it for it in range(24) if it not in table]
    # It fills all blocks; then some go to another request, beside which it still runs.
    logits = step(native, cache, [Part(bad, 0, 340, table), Part(bad, 0, 340, rest)])
    assert not logits.isfinite().any()
    assert min(it.abs().max() for it in remembered(cache, table, 340)) > 1e38
    for start, end in ((0, 1), (1, 40), (40, 257), (257, 333)):
        logits = step(native, cache, [Part(bad, 339, 340, rest), Part(ids, start, end, table)])
    assert logits[1].isfinite().all()
    assert same((logits[1], remembered(cache, table, 333)), truth)
