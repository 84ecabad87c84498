"""Requests on a `Runner` without a scheduler: who has which blocks, and the chunks of the next step.

Knows block tables and positions. Knows nothing of what is measured or compared.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from kernels.serving import Serving
from protocol.messages import Chunk, SampledToken, Sampling, Step


@dataclass
class Row:
    """`history` is prompt and answer so far; the first `computed` of its tokens are in the cache, under `blocks`."""

    name: str
    history: list[int]
    prompt: int
    blocks: list[int] = field(default_factory=list)
    computed: int = 0

    @property
    def answer(self) -> list[int]:
        return self.history[self.prompt :]


class Blocks:
    """Those of the cache, handed out in no order."""

    def __init__(self, serving: Serving, seed: int = 0) -> None:
        self.size = serving.ready.block_size
        self._free = list(range(serving.ready.blocks))
        random.Random(seed).shuffle(self._free)

    def cover(self, row: Row, end: int) -> None:
        while len(row.blocks) * self.size < end:
            row.blocks.append(self._free.pop())

    def take_back(self, row: Row) -> None:
        self._free = row.blocks + self._free
        row.blocks, row.computed = [], 0

    def chunk(self, row: Row, most: int, follows: int = -1) -> Chunk:
        """Of what is not computed yet, `most` tokens at most; or the token that the last step chooses."""
        end = row.computed + 1 if follows >= 0 else min(len(row.history), row.computed + most)
        self.cover(row, end)
        tokens = [0] if follows >= 0 else row.history[row.computed : end]
        last = follows >= 0 or end == len(row.history)
        return Chunk(
            row.name,
            row.computed,
            np.array(tokens, "<i4").tobytes(),
            np.array(row.blocks, "<i4").tobytes(),
            Sampling() if last else None,
            follows,
        )


class Steps:
    """Runs steps one after another, and puts what they choose behind each row's history."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._number = 0

    def run(self, rows: list[tuple[Row, Chunk]]) -> float:
        """Seconds on the device."""
        self._number += 1
        done = self._serving.run(Step(self._number, tuple(chunk for _, chunk in rows)))
        self.take(rows, done.tokens)
        return done.took_s

    def take(self, rows: list[tuple[Row, Chunk]], tokens: tuple[SampledToken, ...]) -> None:
        chosen = iter(tokens)
        for row, chunk in rows:
            row.computed += len(chunk.tokens) // 4
            if chunk.sampling is not None:
                row.history.append(next(chosen).token)
