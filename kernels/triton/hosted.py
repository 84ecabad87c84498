"""A decoder of any structure, as transformers runs it, with our attention.

Knows how transformers' layers are handed to `attend`. Does not know what is in them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kernels.decoder import Decoder
from kernels.triton.layers import Attention, Flat


class HostedModel:
    """A `Body`: the transformers model itself. Its logits are copied to where they are the same in every step, or each
    graph would keep some of its own."""

    sizes: ClassVar[list[int]] = []

    def __init__(self, decoder: Decoder, max_rows: int) -> None:
        self._decoder = decoder
        self._logits = torch.zeros((max_rows, decoder.vocabulary), dtype=decoder.dtype, device=decoder.device)
        self.fixed_bytes = self._logits.nbytes

    def logits(self, flat: Flat, attention: Attention) -> Tensor:
        """See `Body.logits`."""
        ids, positions = flat.ids.long()[None], flat.positions.long()[None]
        step = _Attends(attention, flat.slots.long())
        if not flat.keep.shape[0]:
            self._decoder.body(input_ids=ids, position_ids=positions, use_cache=False, step=step)
            return self._logits[:0]
        found: Tensor = self._decoder.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=flat.keep.long(), step=step
        ).logits[0]
        return self._logits[: found.shape[0]].copy_(found)


@dataclass(frozen=True)
class _Attends:
    """`kernels.attention.interface.Attends`."""

    attention: Attention
    slots: Tensor

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        for pages, news in zip(self.attention.pages(layer), (key, value), strict=True):
            pages.view(-1, *pages.shape[2:]).index_copy_(0, self.slots, news)
        out = query.new_empty(query.shape)
        self.attention.attend(layer, query.contiguous(), out, scaling, window)
        return out
