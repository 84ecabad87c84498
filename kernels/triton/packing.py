"""What a step tells the device, in one buffer that is copied there at once.

Knows where everything lies in it. A CUDA graph has frozen the addresses, so they are the same in every step; what a
step does not use of a section is filled with what does no harm, and what lies behind the last item is not copied. Does
not know what any of it is for, beyond its size.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.batch import Ints
from kernels.triton.attention_work import ITEM, MERGE

CHANGE = 2
"""Numbers in a change of the block tables."""


@dataclass(frozen=True)
class Room:
    """The most of everything in a step."""

    tokens: int
    rows: int
    items: int
    merges: int
    changes: int


class Section(NamedTuple):
    first: int
    shape: tuple[int, ...]
    dtype: type[np.generic]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def of(self, whole: Ints) -> NDArray[np.generic]:
        """On the host: a view of the section."""
        return whole[self.first : self.first + self.size].view(self.dtype).reshape(self.shape)

    def on(self, whole: Tensor) -> Tensor:
        """On the device: a view of the section."""
        part = whole[self.first : self.first + self.size]
        return (part.view(torch.float32) if self.dtype is np.float32 else part).view(self.shape)


class Layout:
    """Sections of a buffer of int32, all of 4 bytes an element. Those whose use differs most come last."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.size = 0
        self.counts = self._section((4,))
        """How many items, merges and changes there are; the last is nothing."""
        self.ids = self._section((room.tokens,))
        self.follows = self._section((room.tokens,))
        self.positions = self._section((room.tokens,))
        self.slots = self._section((room.tokens,))
        self.keep = self._section((room.rows,))
        """Flat rows whose logits are wanted."""
        self.temperature = self._section((room.rows,), np.float32)
        self.top_k = self._section((room.rows,))
        self.top_p = self._section((room.rows,), np.float32)
        self.min_p = self._section((room.rows,), np.float32)
        self.uniform = self._section((room.rows,), np.float32)
        self.told = self._section((room.rows,))
        """Of the rows in `keep`, those whose log-probabilities are wanted."""
        self.changes = self._section((room.changes, CHANGE))
        self.merges = self._section((room.merges, MERGE))
        self.items = self._section((room.items, ITEM))

    def used(self, items: int) -> int:
        """Elements up to the last of so many items."""
        return self.items.first + items * ITEM

    def _section(self, shape: tuple[int, ...], dtype: type[np.generic] = np.int32) -> Section:
        section = Section(self.size, shape, dtype)
        # Sixteen bytes at a time, so that kernels can load as many.
        self.size += -(-section.size // 4) * 4
        return section
