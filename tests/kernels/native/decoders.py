"""Small random decoders, packed or not, and single steps on them, for tests of the CPU kernels.

    decoder = make_decoder(tmp_path, torch.float32, "qwen3", num_key_value_heads=1)
    logits = step(forward, new_cache(forward, decoder, 8, 32), [Part(ids, 0, 20, table)])

Every weight is random, norms and biases too, and the same in bfloat16 as in float32.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.batch import batch_of
from kernels.checkpoint import Checkpoint
from kernels.decoder import Decoder, load_decoder
from kernels.kv_cache import KVCache
from kernels.native import binding
from kernels.native.binding import Best, Library, Unit
from kernels.native.stack import NativeStack, TiledKVCache
from kernels.quiet import quiet_transformers
from kernels.runner import Forward
from protocol.messages import Chunk

CPU = torch.device("cpu")
CONTEXT = 1024
SIZES: dict[str, Any] = {
    "vocab_size": 301,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
}


def heads(query: int, kv: int, dim: int) -> dict[str, int]:
    """A model as wide as transformers' Llama asks for: a multiple of the heads, which together may be wider."""
    hidden = next(it for it in (64, 80, 96, 288) if it % query == 0)
    return {"hidden_size": hidden, "num_attention_heads": query, "num_key_value_heads": kv, "head_dim": dim}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama, heads of 16": {"model_type": "llama", **heads(5, 5, 16)},
    "llama, heads of 32": {"model_type": "llama", "tie_word_embeddings": True, **heads(4, 4, 32)},
    "llama, heads of 64": {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 257, **heads(9, 3, 64)},
    "llama, heads of 96": {"model_type": "llama", "attention_bias": True, "vocab_size": 320, **heads(3, 1, 96)},
    "llama, heads of 256": {"model_type": "llama", "num_hidden_layers": 1, **heads(4, 1, 256)},
    "mistral, window of 20": {"model_type": "mistral", "sliding_window": 20, **heads(6, 2, 32)},
    "mistral, window of 300": {"model_type": "mistral", "sliding_window": 300, **heads(4, 1, 64)},
    "mistral, no window": {"model_type": "mistral", "sliding_window": None, **heads(4, 2, 128)},
    "qwen2": {"model_type": "qwen2", "vocab_size": 299, **heads(4, 1, 16)},
    "qwen2, windows on some layers": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 50,
        "max_window_layers": 1,
        "num_hidden_layers": 3,
        **heads(4, 2, 32),
    },
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, **heads(4, 1, 128)},
    "qwen3, heads of 64": {"model_type": "qwen3", "attention_bias": True, **heads(3, 3, 64)},
}


@dataclass(frozen=True)
class Way:
    """A number format, and what multiplies it."""

    name: str
    dtype: torch.dtype
    unit: Unit

    def __str__(self) -> str:
        return self.name

    def can(self, family: str) -> bool:
        # Tiles are of 32 elements.
        return self.unit is Unit.VECTORS or FAMILIES[family]["head_dim"] % 32 == 0


FLOAT32 = Way("float32", torch.float32, Unit.VECTORS)
BFLOAT16 = Way("bfloat16", torch.bfloat16, Unit.VECTORS)
TILES = Way("bfloat16 on tiles", torch.bfloat16, Unit.TILES)
WAYS = (FLOAT32, BFLOAT16, TILES)


def make_decoder(folder: Path, dtype: torch.dtype, model_type: str, **settings: Any) -> Decoder:
    """A decoder of that type with SIZES and `settings`, as the worker would load it."""
    quiet_transformers()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **SIZES, **settings}))
    decoder = load_decoder(Checkpoint(model_type, folder, random_weights=True), CPU, dtype)
    noise = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, weight in decoder.model.named_parameters():
            drawn = torch.randn(weight.shape, generator=noise)
            if weight.dim() == 1:
                drawn = 0.2 * drawn + (1.0 if "norm" in name else 0.0)
            elif "embed" not in name:
                drawn *= 1.5 * weight.shape[1] ** -0.5
            weight.copy_(drawn.bfloat16())
    return decoder


Decoders = Callable[[str, torch.dtype], Decoder]
"""One of FAMILIES, made once."""


class Stacks:
    """Decoders packed for one library, each once for every number of threads and size of blocks."""

    def __init__(self, decoders: Decoders, lib: Library) -> None:
        self._decoders = decoders
        self._lib = lib
        self._made: dict[tuple[str, Way, int, int], NativeStack] = {}

    def __call__(self, family: str, way: Way, *, threads: int = 1, block_size: int = 32) -> NativeStack:
        if way.unit is Unit.TILES and self._lib.best is not Best.TILES:
            pytest.skip("there are no tiles in this processor, or in what the library was built for")
        key = family, way, threads, block_size
        if key not in self._made:
            decoder = self._decoders(family, way.dtype)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(binding, "load", lambda: self._lib)
                self._made[key] = NativeStack(decoder, threads=threads, block_size=block_size, unit=way.unit)
        return self._made[key]


@dataclass(frozen=True)
class Part:
    """Tokens `start` .. `end - 1` of a sequence, whose blocks are `table`."""

    ids: Sequence[int]
    start: int
    end: int
    table: Sequence[int]

    @property
    def chunk(self) -> Chunk:
        ids, table = np.array(self.ids[self.start : self.end], "<i4"), np.array(self.table, "<i4")
        return Chunk("r", self.start, ids.tobytes(), table.tobytes())


def new_cache(forward: Forward, decoder: Decoder, blocks: int, block_size: int) -> KVCache:
    return forward.new_cache(decoder.layers, blocks, block_size, decoder.dtype, decoder.device)


@torch.inference_mode()
def step(forward: Forward, cache: KVCache, parts: Sequence[Part]) -> Tensor:
    """Logits behind each part `[parts, vocabulary]`, in float32."""
    batch = batch_of([it.chunk for it in parts], cache.block_size, cache.blocks)
    return forward.logits(cache, batch, (batch.ends - 1).tolist()).to(torch.float32, copy=True)


def remembered(cache: KVCache, table: Sequence[int], length: int) -> list[Tensor]:
    """Keys and values of a sequence, layer after layer: each `[length, kv_heads, head_dim]`."""
    blocks = list(table)
    found = []
    for keys, values in zip(cache.keys, cache.values, strict=True):
        pages = keys[blocks], values[blocks]
        if isinstance(cache, TiledKVCache):
            pages = _untiled(*pages, cache.block_size)
        found += [it.flatten(0, 1)[:length] for it in pages]
    return found


def _untiled(keys: Tensor, values: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """`[blocks, kv_heads, block_size * head_dim]` as cache.h lays them out to `[blocks, block_size, kv_heads, dim]`."""
    blocks, kv_heads, elements = keys.shape
    dim, together = elements // block_size, 4 // keys.element_size()
    columns = keys.view(blocks, kv_heads, block_size // 16, dim // together, 16, together)
    rows = values.view(blocks, kv_heads, block_size // together, dim, together)
    shape = (blocks, block_size, kv_heads, dim)
    return columns.permute(0, 2, 4, 1, 3, 5).reshape(shape), rows.permute(0, 2, 4, 1, 3).reshape(shape)


def apart(one: Tensor, other: Tensor) -> Tensor:
    """Each row's distance as a share of the other's norm `[rows]`."""
    difference: Tensor = (one.float() - other.float()).norm(dim=-1)
    size: Tensor = other.float().norm(dim=-1)
    return difference / size
