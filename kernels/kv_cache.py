"""The paged key and value tensors.

Knows how a position in a sequence becomes a slot in the tensors, and how many bytes a block takes. Does not know
which request owns a block (the scheduler does), how attention reads it, or how many blocks there should be
(`memory.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels import ModelError


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps of each token: `kv_heads` keys of `key_dim` and values of `value_dim` elements."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


def block_bytes(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values together."""
    return sum(layer.elements for layer in layers) * block_size * dtype.itemsize


class KVCache:
    """Keys and values of every layer, in `blocks` blocks of `block_size` tokens.

    `keys[layer]` and `values[layer]` are `[blocks, block_size, kv_heads, head_dim]`, contiguous: one block of a layer
    is one run of memory, so that gathering a block table copies whole blocks, and a (block, head) tile is a strided
    matrix that a product over `head_dim` can read in place.

    On the CPU the pages are taken from the system only when first written. They start as zeros, and must: what is
    masked away in attention still takes part as 0 x value, and 0 x NaN is NaN.
    """

    def __init__(
        self, layers: Sequence[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        both = [self._allocate(it) for it in layers]
        self.keys = [keys for keys, _ in both]
        self.values = [values for _, values in both]
        self.bytes = block_bytes(layers, block_size, dtype) * blocks

    def _allocate(self, layer: LayerShape) -> tuple[Tensor, Tensor]:
        """One layer's keys and values. Their first dimension is the block."""
        return (
            zeros((self.blocks, self.block_size, layer.kv_heads, layer.key_dim), self.dtype, self.device),
            zeros((self.blocks, self.block_size, layer.kv_heads, layer.value_dim), self.dtype, self.device),
        )

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store `key` and `value` `[tokens, kv_heads, head_dim]` at `slots` `[tokens]`."""
        tokens = slots.shape[0]
        self.keys[layer].view(self.blocks * self.block_size, -1).index_copy_(0, slots, key.reshape(tokens, -1))
        self.values[layer].view(self.blocks * self.block_size, -1).index_copy_(0, slots, value.reshape(tokens, -1))


def slots_of(table: NDArray[np.int32], start: int, count: int, block_size: int) -> NDArray[np.int64]:
    """Slots of positions `start` .. `start + count - 1` under a block table `[blocks]`.

    Raises ValueError when the table does not cover them.
    """
    if (start + count + block_size - 1) // block_size > len(table):
        raise ValueError(f"{len(table)} blocks of {block_size} do not cover positions up to {start + count - 1}")
    positions = np.arange(start, start + count)
    slots: NDArray[np.int64] = table[positions // block_size].astype(np.int64) * block_size + positions % block_size
    return slots


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Pages of zeros; on the CPU none is taken from the system before it is written. Raises ModelError."""
    try:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        # numpy's zeros are the system's untouched pages; torch's are written, and so committed at once.
        size = int(np.prod(shape)) * dtype.itemsize
        return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
    except (MemoryError, torch.OutOfMemoryError) as error:
        gib = int(np.prod(shape)) * dtype.itemsize / 2**30
        raise ModelError(f"The KV cache could not be allocated: no {gib:.2f} GiB for one layer's tensor.") from error
