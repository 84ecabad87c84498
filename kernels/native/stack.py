"""A decoder on the CPU kernels: its weights packed, its cache in their order, one call a step.

Knows how a transformers model is taken over whole (structure.py says which can be) and proves on a few tokens that it
answers as before. Does not know requests or sampling.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.batch import Batch
from kernels.decoder import Decoder
from kernels.kv_cache import KVCache, LayerShape, zeros
from kernels.native import binding
from kernels.native.binding import WISH, Best, LayerWeights, Shape, Step, Unit
from kernels.sampling import greedy, sample, uniform
from kernels.structure import Structure, Unknown, rotations, structure_of
from protocol.messages import SampledToken, Sampling

LANES = 16
"""Tokens whose keys lie together: LANES in simd.h."""
NO_WISHES = np.empty(0, WISH)
TILE_TOKENS = 32
"""Tiles multiply 32 tokens' values at once, which therefore lie together: a block is a multiple of this."""


class TiledKVCache(KVCache):
    """The same bytes as KVCache in the order that cache.h describes: a block's keys and values side by side.

    `keys[layer]` and `values[layer]` are views `[blocks, kv_heads, block_size * head_dim]`, each block and head of the
    values behind its keys.

    What is masked away in attention still takes part as 0 x value. Nothing infinite is ever written here (cache.h).
    """

    def _allocate(self, layer: LayerShape) -> tuple[Tensor, Tensor]:
        elements = self.block_size * layer.key_dim
        both = zeros((self.blocks, layer.kv_heads, 2, elements), self.dtype, self.device)
        return both[:, :, 0], both[:, :, 1]


class NativeStack:
    """All layers of one decoder, packed; what runs a batch on them.

    The model's own weights are no longer needed, except its embedding, which is read where it lies.
    """

    def __init__(self, decoder: Decoder, *, threads: int, block_size: int, unit: Unit | None = None) -> None:
        """Pack the weights. `unit` None: the best there is. Raises NotBuilt when there is no library for this
        machine, Unknown when the model is not one it can run, Failed when there is not the memory."""
        lib = binding.load()
        structure = structure_of(decoder)
        if block_size % LANES:
            raise Unknown(f"its cache has blocks of {block_size} tokens, and they know multiples of {LANES}")
        cosines, sines = rotations(decoder)
        self._lib = lib
        self._kept = (structure.embedding.detach(), cosines, sines)  # read in every step
        self._vocabulary = decoder.vocabulary
        self._positions = decoder.max_context
        self._block_size = block_size
        self.unit = best_unit(structure, block_size, lib.best) if unit is None else unit
        shape = Shape(
            layers=len(structure.layers),
            hidden=structure.hidden,
            intermediate=structure.intermediate,
            heads=structure.heads,
            kv_heads=structure.kv_heads,
            head_dim=structure.head_dim,
            vocabulary=decoder.vocabulary,
            positions=decoder.max_context,
            block_size=block_size,
            threads=threads,
            unit=self.unit,
            epsilon=structure.epsilon,
            scale=structure.scale,
        )
        self._stack = lib.new(shape, decoder.dtype.itemsize)
        for index, layer in enumerate(structure.layers):
            kept = {name: it.detach().contiguous() for name, it in layer.tensors.items()}
            addresses = {name: it.data_ptr() for name, it in kept.items()}
            lib.set_layer(self._stack, index, LayerWeights(**addresses, window=layer.window or 0))
        lib.set_ends(
            self._stack,
            structure.embedding.data_ptr(),
            structure.norm.data_ptr(),
            structure.head.contiguous().data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
        )
        self._cache: TiledKVCache | None = None
        self._logits = torch.empty((0, decoder.vocabulary))
        self.bytes = lib.bytes(self._stack) + sum(it.nbytes for it in self._kept)

    def __del__(self) -> None:
        if hasattr(self, "_stack"):
            self._lib.free(self._stack)

    def new_cache(
        self, layers: Sequence[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        assert block_size == self._block_size
        assert device.type == "cpu"
        return TiledKVCache(layers, blocks, block_size, dtype, device)

    def logits(self, cache: KVCache, batch: Batch, rows: Sequence[int]) -> Tensor:
        """See `Forward.logits`. They are overwritten by the next run."""
        self._run(cache, batch, rows, told=len(rows), wishes=NO_WISHES)
        return self._logits[: len(rows)]

    def answer(
        self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]
    ) -> tuple[SampledToken, ...]:
        """See `Forward.answer`."""
        told: list[int] = []
        drawn: list[int] = []
        best: list[int] = []
        for index, it in enumerate(asked):
            (told if it.logprobs is not None else best if greedy(it) else drawn).append(index)
        positions = [int(batch.positions[row]) + 1 for row in rows]
        wishes = np.array(
            [
                (it.top_p, it.min_p, uniform(it.seed, positions[index]), it.temperature, it.top_k)
                for index in drawn
                for it in (asked[index],)
            ],
            WISH,
        )
        order = [*told, *drawn, *best]
        chosen = self._run(cache, batch, [rows[index] for index in order], told=len(told), wishes=wishes)
        tokens = [
            *sample(self._logits[: len(told)], [asked[it] for it in told], [positions[it] for it in told]),
            *(SampledToken(it) for it in chosen),
        ]
        found = dict(zip(order, tokens, strict=True))
        return tuple(found[index] for index in range(len(rows)))

    def _run(
        self, cache: KVCache, batch: Batch, rows: Sequence[int], *, told: int, wishes: NDArray[np.void]
    ) -> list[int]:
        """One forward pass. The first `told` of the rows get logits, the next are drawn as wished, and the others
        get their likeliest token; returns what was chosen, in this order."""
        if cache is not self._cache:
            self._read_from(cache)
        if not 0 <= batch.ids.min() <= batch.ids.max() < self._vocabulary:
            raise ValueError(f"a token is outside 0 .. {self._vocabulary - 1}")
        if not 0 <= batch.positions.min() <= batch.positions.max() < self._positions:
            raise ValueError(f"a position is outside 0 .. {self._positions - 1}")
        kept = np.array(rows, np.int32)
        if self._logits.shape[0] < told + len(wishes):
            # Kept for the next time: new pages would be zeroed by the system first, in every step.
            self._logits = torch.empty((told + len(wishes), self._vocabulary))
        chosen = np.empty(len(rows) - told, np.int32)
        step = Step(
            tokens=batch.ids.size,
            sequences=batch.starts.size,
            kept=kept.size,
            told=told,
            drawn=len(wishes),
            ids=batch.ids.ctypes.data,
            positions=batch.positions.ctypes.data,
            starts=batch.starts.ctypes.data,
            counts=batch.counts.ctypes.data,
            tables=batch.tables.ctypes.data,
            table_begins=batch.table_begins.ctypes.data,
            keep=kept.ctypes.data,
            wishes=wishes.ctypes.data,
            logits=self._logits.data_ptr(),
            chosen=chosen.ctypes.data,
        )
        self._lib.run(self._stack, step)
        return chosen.tolist()

    def _read_from(self, cache: KVCache) -> None:
        assert isinstance(cache, TiledKVCache)
        for layer, keys in enumerate(cache.keys):
            self._lib.set_pages(self._stack, layer, keys.data_ptr())  # the values lie behind them
        self._cache = cache


def best_unit(structure: Structure, block_size: int, best: Best) -> Unit:
    """Tiles where the processor has them and everything comes in whole ones."""
    widths = (structure.hidden, structure.intermediate, structure.head_dim, block_size)
    fits = structure.embedding.dtype == torch.bfloat16 and all(it % TILE_TOKENS == 0 for it in widths)
    return Unit.TILES if best is Best.TILES and fits else Unit.VECTORS
