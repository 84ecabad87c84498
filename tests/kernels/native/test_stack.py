"""What the CPU kernels compute is what torch computes."""

import random
from pathlib import Path

import pytest
import torch

from kernels.batch import batch_of
from kernels.kv_cache import KVCache, block_bytes
from kernels.native.binding import Library, Unit
from kernels.native.stack import NativeStack, TiledKVCache
from kernels.runner import TorchForward
from kernels.structure import Unknown
from tests.kernels.native.claims import FLOAT32_APART, assert_torchs_logits
from tests.kernels.native.decoders import (
    BFLOAT16,
    CPU,
    FAMILIES,
    FLOAT32,
    TILES,
    WAYS,
    Decoders,
    Part,
    Stacks,
    Way,
    apart,
    heads,
    make_decoder,
    new_cache,
    remembered,
    step,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float32_the_logits_are_those_of_torch(family: str, decoders: Decoders, stacks: Stacks) -> None:
    assert_torchs_logits(family, FLOAT32, decoders, stacks)


@pytest.mark.parametrize("way", [BFLOAT16, TILES], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_the_logits_are_as_near_to_float32_as_those_of_torch(
    family: str, way: Way, decoders: Decoders, stacks: Stacks
) -> None:
    if not way.can(family):
        pytest.skip("tiles are of 32 elements, and this head is not")
    assert_torchs_logits(family, way, decoders, stacks)


@pytest.mark.parametrize("seed", range(6))
def test_random_ragged_batches_are_torchs_whatever_the_size_of_blocks(
    seed: int, decoders: Decoders, stacks: Stacks
) -> None:
    draw = random.Random(seed)
    family, block_size = draw.choice(list(FAMILIES)), (16, 32, 48, 64, 128, 256)[seed]
    lengths = [draw.randint(1, draw.choice([5, 100, 600])) for _ in range(draw.randint(1, 9))]
    assert_torchs_logits(family, FLOAT32, decoders, stacks, lengths=lengths, block_size=block_size, seed=seed)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_cache_holds_torchs_keys_and_values_and_nothing_elsewhere(
    way: Way, decoders: Decoders, stacks: Stacks
) -> None:
    family = "qwen3"
    decoder, native = decoders(family, way.dtype), stacks(family, way)
    plain = TorchForward(decoder)
    ours, torchs = new_cache(native, decoder, 9, 32), new_cache(plain, decoder, 9, 32)
    ids, table = [it % 300 for it in range(77)], [4, 8, 1]
    for start, end in ((0, 1), (1, 30), (30, 77)):
        step(native, ours, [Part(ids, start, end, table)])
        step(plain, torchs, [Part(ids, start, end, table)])
    share = FLOAT32_APART if way is FLOAT32 else 0.03
    for one, other in zip(remembered(ours, table, 77), remembered(torchs, table, 77), strict=True):
        assert one.shape == other.shape == (77, 1, 128)
        assert apart(one.flatten(), other.flatten()) < share
    rest = [it for it in range(9) if it not in table]
    for one in remembered(ours, [*rest, table[-1]], 7 * 32):
        assert one[: 6 * 32].count_nonzero() == 0
        assert one[6 * 32 + 77 - 64 :].count_nonzero() == 0


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_step_that_wants_no_logits_gives_none_and_fills_the_cache_as_one_that_does(
    way: Way, decoders: Decoders, stacks: Stacks
) -> None:
    family = "llama, heads of 64"
    decoder, native = decoders(family, way.dtype), stacks(family, way)
    part = Part(list(range(50)), 0, 50, [2, 0])
    silent, told = new_cache(native, decoder, 3, 32), new_cache(native, decoder, 3, 32)
    assert native.logits(silent, batch_of([part.chunk], 32, 3), []).shape == (0, 257)
    step(native, told, [part])
    assert all(map(torch.equal, remembered(silent, [2, 0], 50), remembered(told, [2, 0], 50)))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_chunk_without_tokens_changes_nothing(way: Way, decoders: Decoders, stacks: Stacks) -> None:
    family = "llama, heads of 64"
    decoder, native = decoders(family, way.dtype), stacks(family, way, threads=2)
    ids = list(range(50))
    alone = step(native, new_cache(native, decoder, 4, 32), [Part(ids, 0, 50, [2, 0])])
    empty = [Part(ids, 0, 0, []), Part(ids, 0, 50, [2, 0]), Part(ids, 32, 32, [1, 3])]
    assert torch.equal(step(native, new_cache(native, decoder, 4, 32), empty)[1], alone[0])


def test_the_cache_is_as_large_as_torchs_and_a_block_is_its_first_dimension(decoders: Decoders) -> None:
    layers = decoders("llama, heads of 64", torch.bfloat16).layers
    cache = TiledKVCache(layers, 7, 32, torch.bfloat16, CPU)
    assert cache.bytes == KVCache(layers, 7, 32, torch.bfloat16, CPU).bytes == 7 * block_bytes(layers, 32, cache.dtype)
    assert {tuple(it.shape) for it in (*cache.keys, *cache.values)} == {(7, 3, 32 * 64)}
    cache.values[1][3] = 1.0
    assert cache.keys[1].count_nonzero() == 0
    # A block of a layer is one run of memory, each head's values behind its keys.
    assert cache.keys[0].stride() == cache.values[0].stride() == (2 * 3 * 32 * 64, 2 * 32 * 64, 1)
    assert cache.values[0].data_ptr() == cache.keys[0].data_ptr() + 32 * 64 * 2


def test_a_stack_goes_from_one_cache_to_another_and_back(decoders: Decoders, stacks: Stacks) -> None:
    family = "llama, heads of 64"
    decoder, native = decoders(family, torch.float32), stacks(family, FLOAT32)
    one, other = new_cache(native, decoder, 2, 32), new_cache(native, decoder, 2, 32)
    ids, table = list(range(40)), [1, 0]
    whole = step(native, one, [Part(ids, 0, 40, table)])
    step(native, one, [Part(ids, 0, 20, table)])
    step(native, other, [Part([9] * 40, 0, 40, table)])
    assert torch.equal(step(native, one, [Part(ids, 20, 40, table)]), whole)


def test_its_bytes_are_those_of_the_weights_and_little_more(decoders: Decoders, stacks: Stacks) -> None:
    decoder = decoders("llama, heads of 64", torch.bfloat16)
    stack = stacks("llama, heads of 64", BFLOAT16)
    # Its embedding is also its head, which is packed beside it in pairs of panels; and the rotations of all positions.
    head, rotations = 288 * 288 * 2, 2 * 1024 * 32 * 4
    assert 0 <= head + rotations - (stack.bytes - decoder.weights_bytes) < 2**13  # norms are not counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_left_to_itself_it_takes_the_best_that_fits(dtype: torch.dtype, decoders: Decoders, stacks: Stacks) -> None:
    def unit(family: str, block_size: int) -> Unit:
        return NativeStack(decoders(family, dtype), threads=1, block_size=block_size).unit

    if dtype is torch.bfloat16:
        stacks("llama, heads of 64", TILES)  # skips where there are none
        assert unit("llama, heads of 64", 32) is Unit.TILES
    else:
        assert unit("llama, heads of 64", 32) is Unit.VECTORS
    assert unit("llama, heads of 64", 16) is Unit.VECTORS
    assert unit("llama, heads of 16", 32) is Unit.VECTORS


def test_blocks_that_keys_would_reach_over_are_refused(tmp_path: Path, cpu_kernels: Library) -> None:
    decoder = make_decoder(tmp_path / "model", torch.float32, "llama", **heads(4, 2, 32))
    with pytest.raises(Unknown, match="blocks of 24 tokens"):
        NativeStack(decoder, threads=1, block_size=24)


@pytest.mark.parametrize("token", [-1, 1 << 20])
def test_a_token_outside_the_vocabulary_is_an_error(token: int, tmp_path: Path, cpu_kernels: Library) -> None:
    decoder = make_decoder(tmp_path / "model", torch.float32, "llama", **heads(4, 2, 32))
    forward = NativeStack(decoder, threads=1, block_size=32)
    with pytest.raises(ValueError, match="outside 0"):
        step(forward, new_cache(forward, decoder, 2, 32), [Part([token], 0, 1, [0])])
