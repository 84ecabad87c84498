"""What is claimed of the CPU kernels, of whatever library they are in: they compute what torch does, and a row's bits
depend on its own sequence alone."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.decoder import Decoder
from kernels.kv_cache import KVCache
from kernels.native.stack import NativeStack
from kernels.runner import Forward, TorchForward
from tests.kernels.native.decoders import Decoders, Part, Stacks, Way, apart, new_cache, remembered, step

FLOAT32_APART = 1e-4
"""Most that logits may be apart in float32, as a share of their norm: sums are in another order."""
BFLOAT16_SHARE = 1.5
"""How much further than torch's own in bfloat16 ours may be from float32. (They are nearer.)"""
BLOCKS = 100
LENGTHS = (700, 1, 2, 33, 64, 300, 257, 40)
LONG = 700
"""Nearly three of the stretches that attention is cut into."""


def assert_torchs_logits(
    family: str,
    way: Way,
    decoders: Decoders,
    stacks: Stacks,
    *,
    lengths: Sequence[int] = LENGTHS,
    block_size: int = 32,
    seed: int = 1,
) -> None:
    """In float32 within FLOAT32_APART; in bfloat16 as near to float32 as torch's."""
    decoder, native = decoders(family, way.dtype), stacks(family, way, threads=2, block_size=block_size)
    steps = ragged(decoder.vocabulary, block_size, seed, lengths)

    def run(forward: Forward, its: Decoder) -> Tensor:
        cache = new_cache(forward, its, BLOCKS, block_size)
        return torch.cat([step(forward, cache, parts) for parts in steps])

    exact = decoders(family, torch.float32)
    truth = run(TorchForward(exact), exact)
    ours = apart(run(native, decoder), truth)
    if way.dtype is torch.float32:
        assert ours.max() < FLOAT32_APART, ours
        return
    torchs = apart(run(TorchForward(decoder), decoder), truth)
    assert ours.mean() < BFLOAT16_SHARE * torchs.mean(), (ours, torchs)
    assert ours.max() < BFLOAT16_SHARE * torchs.max(), (ours, torchs)


def ragged(vocabulary: int, block_size: int, seed: int, lengths: Sequence[int]) -> list[list[Part]]:
    """Steps in which sequences of `lengths` grow, some of them at a time, in any order and by pieces of any size."""
    draw = random.Random(seed)
    free = draw.sample(range(BLOCKS), BLOCKS)
    ids = [[draw.randrange(vocabulary) for _ in range(length)] for length in lengths]
    tables = [[free.pop() for _ in range(-(-length // block_size))] for length in lengths]
    done = [0] * len(lengths)
    steps = []
    while left := [it for it, length in enumerate(lengths) if done[it] < length]:
        parts = []
        for it in draw.sample(left, draw.randint(1, len(left))):
            size = draw.choice([1, 1, draw.randint(2, 40), draw.randint(2, 400)])
            end = min(done[it] + size, lengths[it])
            parts.append(Part(ids[it], done[it], end, tables[it][: draw.choice([None, -(-end // block_size)])]))
            done[it] = end
        steps.append(parts)
    return steps


Bits = tuple[Tensor, list[Tensor]]
"""The logits behind a sequence, and what the cache keeps of it."""


def bits_alone(native: NativeStack, decoder: Decoder, ids: Sequence[int], block_size: int = 32) -> Bits:
    """In one chunk, in a cache that nobody has used."""
    table = range(-(-len(ids) // block_size))
    cache = new_cache(native, decoder, len(table), block_size)
    return step(native, cache, [Part(ids, 0, len(ids), table)])[0], remembered(cache, table, len(ids))


def same(one: Bits, other: Bits) -> bool:
    return torch.equal(one[0], other[0]) and all(map(torch.equal, one[1], other[1]))


def assert_same_bits_in_chunks(family: str, way: Way, decoders: Decoders, stacks: Stacks) -> None:
    """Of any size, by any number of threads, through any block table, whatever the blocks held before."""
    decoder = decoders(family, way.dtype)
    ids = some_tokens(1, LONG)
    truth = bits_alone(stacks(family, way), decoder, ids)
    for size, threads in ((16, 2), (64, 3), (100, 1), (512, 2)):
        native, cache = stacks(family, way, threads=threads), used_cache(stacks(family, way), decoder, 30)
        table = random.Random(size).sample(range(30), 22)
        for start in range(0, LONG, size):
            logits = step(native, cache, [Part(ids, start, min(start + size, LONG), table)])[0]
        assert same((logits, remembered(cache, table, LONG)), truth), f"chunks of {size}, {threads} threads"


def used_cache(native: NativeStack, decoder: Decoder, blocks: int) -> KVCache:
    cache = new_cache(native, decoder, blocks, 32)
    for layer in (*cache.keys, *cache.values):
        layer.fill_(7.0)
    return cache


def some_tokens(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(257) for _ in range(length)]
