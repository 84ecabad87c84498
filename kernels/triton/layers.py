"""A decoder of a structure we know, layer by layer on our own kernels.

Knows what follows what, and holds the memory that a step's values lie in while it runs: always the same, as CUDA graphs
ask for. Does not know steps, sequences or sampling: whoever runs it says how attention is computed.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.decoder import Decoder
from kernels.structure import rotations, structure_of
from kernels.triton.activation import gate_up
from kernels.triton.linear import form, linear, scratch_elements
from kernels.triton.norm import add_rms_norm, rms_norm
from kernels.triton.rotary import rotate_and_write


@dataclass(frozen=True)
class Flat:
    """The flat row of a step, on the device: `ids`, `positions` and `slots` int32 `[tokens]`, and `keep` int32
    `[kept]`, the rows whose logits are wanted."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    keep: Tensor


class Attention(Protocol):
    """Attention of this step's tokens over the pages of a layer."""

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[blocks + 1, block_size, kv_heads, head_dim]`."""
        ...

    def attend(self, layer: int, query: Tensor, out: Tensor, scale: float, window: int | None) -> None:
        """`query` and `out` `[tokens, heads, head_dim]`. This step's keys and values are in the pages already."""
        ...


class Body(Protocol):
    """What computes a decoder. `fixed_bytes`: what it keeps for the values of a step, beside the weights."""

    @property
    def fixed_bytes(self) -> int: ...

    @property
    def sizes(self) -> list[int]:
        """Tokens of steps that together run every form of its kernels: what has never run is compiled first, which
        takes a second. (A step of so many keeps as many logits as it can.)"""
        ...

    def logits(self, flat: Flat, attention: Attention) -> Tensor:
        """Logits `[kept, vocabulary]`; they may be overwritten by the next step. Nothing is allocated but by torch."""
        ...


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    window: int | None


class OwnLayers:
    """A `Body` of Llama's kind. The decoder's own modules go on working: they share their weights with it."""

    def __init__(self, decoder: Decoder, max_tokens: int, max_rows: int) -> None:
        """Raises Unknown when the model is not of a structure we know."""
        structure = structure_of(decoder)
        cosines, sines = rotations(decoder)
        self._structure = structure
        self._cosines, self._sines = cosines.to(decoder.device), sines.to(decoder.device)
        self._layers = [_packed(layer.tensors, layer.window) for layer in structure.layers]

        self.fixed_bytes = 0

        def room(rows: int, *shape: int, dtype: torch.dtype = decoder.dtype) -> Tensor:
            made = torch.zeros((rows, *shape), dtype=dtype, device=decoder.device)
            self.fixed_bytes += made.nbytes
            return made

        heads, kv_heads, dim = structure.heads, structure.kv_heads, structure.head_dim
        hidden, inner = structure.hidden, structure.intermediate
        self._residual = room(max_tokens, hidden)
        self._normed = room(max_tokens, hidden)
        self._added = room(max_tokens, hidden)
        self._qkv = room(max_tokens, (heads + 2 * kv_heads) * dim)
        self._query = room(max_tokens, heads, dim)
        self._attended = room(max_tokens, heads, dim)
        self._both = room(max_tokens, 2 * inner)
        self._gated = room(max_tokens, inner)
        self._kept = room(max_rows, hidden)
        self._logits = room(max_rows, decoder.vocabulary)
        first = self._layers[0]
        products = [*(it.shape for it in (first.qkv, first.out, first.gate_up, first.down))]
        scratch = [scratch_elements(max_tokens, *shape) for shape in products]
        scratch.append(scratch_elements(max_rows, *structure.head.shape))
        self._scratch = room(max(scratch), dtype=torch.float32)

    @property
    def sizes(self) -> list[int]:
        """See `Body.sizes`."""
        first, rows = self._layers[0], self._kept.shape[0]
        shapes = [it.shape for it in (first.qkv, first.out, first.gate_up, first.down)]
        head, dtype = self._structure.head.shape, self._residual.dtype
        seen: set[tuple[object, ...]] = set()
        found = []
        for tokens in range(1, self._residual.shape[0] + 1):
            forms = {(*shape, form(tokens, *shape, dtype)) for shape in shapes}
            forms.add((*head, form(min(tokens, rows), *head, dtype)))
            if not forms <= seen:
                seen |= forms
                found.append(tokens)
        return found

    def logits(self, flat: Flat, attention: Attention) -> Tensor:
        """See `Body.logits`."""
        structure, tokens = self._structure, flat.ids.shape[0]
        residual, normed, added = self._residual[:tokens], self._normed[:tokens], self._added[:tokens]
        qkv, query, attended = self._qkv[:tokens], self._query[:tokens], self._attended[:tokens]
        both, gated = self._both[:tokens], self._gated[:tokens]
        torch.index_select(structure.embedding, 0, flat.ids, out=residual)
        rms_norm(residual, self._layers[0].attention_norm, structure.epsilon, normed)
        following = [*(it.attention_norm for it in self._layers[1:]), structure.norm]
        for index, (layer, next_norm) in enumerate(zip(self._layers, following, strict=True)):
            keys, values = attention.pages(index)
            linear(normed, layer.qkv, layer.qkv_bias, qkv, self._scratch)
            rotate_and_write(
                qkv,
                flat.positions,
                flat.slots,
                self._cosines,
                self._sines,
                layer.query_norm,
                layer.key_norm,
                structure.epsilon,
                heads=structure.heads,
                kv_heads=structure.kv_heads,
                query=query,
                keys=keys,
                values=values,
            )
            attention.attend(index, query, attended, structure.scale, layer.window)
            linear(attended.flatten(1), layer.out, layer.out_bias, added, self._scratch)
            add_rms_norm(added, residual, layer.mlp_norm, structure.epsilon, normed)
            linear(normed, layer.gate_up, None, both, self._scratch)
            gate_up(both, gated)
            linear(gated, layer.down, None, added, self._scratch)
            add_rms_norm(added, residual, next_norm, structure.epsilon, normed)
        kept = flat.keep.shape[0]
        logits = self._logits[:kept]
        if kept:
            torch.index_select(normed, 0, flat.keep, out=self._kept[:kept])
            linear(self._kept[:kept], structure.head, None, logits, self._scratch)
        return logits


def _packed(tensors: dict[str, Tensor], window: int | None) -> _Layer:
    names = ("query", "key", "value")
    biases = [tensors.get(f"{name}_bias") for name in names]
    known = [it for it in biases if it is not None]
    return _Layer(
        attention_norm=tensors["attention_norm"],
        qkv=_together([tensors[name] for name in names]),
        qkv_bias=_together(known) if known else None,
        query_norm=tensors.get("query_norm"),
        key_norm=tensors.get("key_norm"),
        out=tensors["out"],
        out_bias=tensors.get("out_bias"),
        mlp_norm=tensors["mlp_norm"],
        gate_up=_together([tensors["gate"], tensors["up"]]),
        down=tensors["down"],
        window=window,
    )


def _together(parts: list[Tensor]) -> Tensor:
    """One tensor of all, behind one another. Each of `parts` becomes a view of its part, so that no weight is held
    twice."""
    whole = torch.cat([it.detach() for it in parts])
    first = 0
    for part in parts:
        part.data = whole[first : first + part.shape[0]]
        first += part.shape[0]
    return whole
