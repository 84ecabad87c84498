"""A step as arrays: what every way of running it is given.

Knows how the chunks of a `Step` become one flat row of tokens, and that each block table covers its chunk. Does not
know devices, models, or why the step looks as it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Chunk

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """A ragged batch, sequence after sequence, of `requests`.

    `ids`, `follows` and `positions` are `[tokens]`; `starts` (the position of a sequence's first token here) and
    `counts` (its tokens here) `[sequences]`. `follows` is -1 where a token is known; else its place among those that
    the step before chooses (`Chunk.follows`). `tables` holds the block tables one after another, sequence i's from
    `table_begins[i]` to `table_begins[i + 1]`.
    """

    requests: tuple[str, ...]
    ids: Ints
    follows: Ints
    positions: Ints
    starts: Ints
    counts: Ints
    tables: Ints
    table_begins: Ints

    @property
    def ends(self) -> NDArray[np.int64]:
        """`[sequences]`: where each sequence's tokens end in the flat row."""
        return np.cumsum(self.counts)

    def table(self, sequence: int) -> Ints:
        return self.tables[self.table_begins[sequence] : self.table_begins[sequence + 1]]


def batch_of(chunks: Sequence[Chunk], block_size: int, blocks: int) -> Batch:
    """The arrays of `chunks`, at least one. Raises ValueError on a block table that does not cover its chunk, or that
    names a block outside 0 .. `blocks` - 1, and on a chunk of several tokens of which one is to follow."""
    ids = np.frombuffer(b"".join([it.tokens for it in chunks]), "<i4")
    tables = np.frombuffer(b"".join([it.blocks for it in chunks]), "<i4")
    starts = np.array([it.start for it in chunks], np.int32)
    counts = np.array([len(it.tokens) for it in chunks], np.int32) // 4
    begins = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum(np.array([len(it.blocks) for it in chunks], np.int32) // 4, out=begins[1:])
    short = np.flatnonzero(-(-(starts + counts) // block_size) > np.diff(begins))
    if short.size:
        one = short[0]
        raise ValueError(
            f"{begins[one + 1] - begins[one]} blocks of {block_size} do not cover positions up to "
            f"{starts[one] + counts[one] - 1}"
        )
    if tables.size and not 0 <= tables.min() <= tables.max() < blocks:
        raise ValueError(f"a block table names a block outside 0 .. {blocks - 1}")
    followers = np.array([it.follows for it in chunks], np.int32)
    if ((followers >= 0) & (counts != 1)).any():
        raise ValueError("a chunk of several tokens cannot follow the step before")
    firsts = np.cumsum(counts) - counts
    positions = np.arange(ids.size, dtype=np.int32) + np.repeat(starts - firsts.astype(np.int32), counts)
    requests = tuple([it.request for it in chunks])
    return Batch(requests, ids, np.repeat(followers, counts), positions, starts, counts, tables, begins)
