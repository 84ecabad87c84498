from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.kv_cache import KVCache, LayerShape, block_bytes, slots_of

CPU = torch.device("cpu")


def test_slots_follow_the_block_table() -> None:
    table = np.array([5, 0, 9], np.int32)
    assert slots_of(table, 3, 4, 4).tolist() == [23, 0, 1, 2]
    assert slots_of(table, 11, 1, 4).tolist() == [39]


def test_a_table_too_short_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 blocks of 4 do not cover positions up to 12"):
        slots_of(np.array([5, 0, 9], np.int32), 12, 1, 4)


def test_what_is_written_is_found_in_its_block() -> None:
    cache = KVCache([LayerShape(2, 8, 6), LayerShape(1, 4, 4)], 3, 4, torch.bfloat16, CPU)
    key, value = torch.randn(2, 2, 8).bfloat16(), torch.randn(2, 2, 6).bfloat16()
    cache.write(0, torch.tensor([11, 0]), key, value)
    assert torch.equal(cache.keys[0][2, 3], key[0])
    assert torch.equal(cache.values[0][0, 0], value[1])
    assert cache.keys[0].count_nonzero() == key.count_nonzero()


def test_bytes_are_those_of_the_tensors() -> None:
    layers = [LayerShape(2, 8, 6), LayerShape(1, 4, 4)]
    cache = KVCache(layers, 3, 4, torch.bfloat16, CPU)
    tensors = sum(it.nbytes for it in (*cache.keys, *cache.values))
    assert cache.bytes == tensors == 3 * block_bytes(layers, 4, torch.bfloat16)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_pages_are_not_committed_before_they_are_written() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    cache = KVCache([LayerShape(8, 128, 128)], 4096, 16, torch.float32, CPU)
    assert cache.bytes == 512 * 2**20
    assert resident() - before < 32 * 2**20
