"""Who attends what, for one step: the list of work that the attention kernel walks.

Knows how a ragged step is cut into tiles of tokens and stretches of context, and how much room that can need. Knows no
device, no cache and no layer.

A tile is a few tokens of one sequence. Its context is cut into splits of `SPLIT` positions, counted from the
sequence's first token. An item of work is a tile and a run of splits, computed one after another by one program. A
tile in several items leaves a partial result for each token and split; a merge joins those of one token. As the kernel
keeps split results apart in either case, and joins them in the same order, what is cut here changes no bit of the
result: it may depend on the company that a token is in.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPLIT = 256
"""Positions in a split."""
NARROW = 16
WIDE = 32
"""Rows of a tile, one for each token and query head of a group: a tile with more rows than `NARROW` is computed as
`WIDE`. Neither is 64, from where on Triton takes another instruction, whose sums have another order."""
SHORT = 16
"""Chunks of no more tokens than this are cut into narrow tiles, and their context may be divided: alone they would be
too few tiles to fill a device."""
WANTED = 512
"""Items that a step is cut into where its short chunks allow it; each is done once for every key head."""
MOST_PARTIALS = 16384
"""Partial results of a step at most. Beyond it, the shorter contexts are not divided: there is work enough."""

ITEM = 8
"""Columns of an item: first flat row, position of the first token, tokens, table row, first split, split after the
last, partial of the first token and split 0 (-1: none are left, the result is written), splits of the tile."""
MERGE = 3
"""Columns of a merge: flat row, position, partial of split 0. The partials of a token follow one another."""


@dataclass(frozen=True)
class Work:
    """`items` int32 `[n, ITEM]`, those that take longest first, and `merges` int32 `[m, MERGE]`."""

    items: NDArray[np.int32]
    merges: NDArray[np.int32]


def plan_work(starts: NDArray[np.int32], counts: NDArray[np.int32], table_rows: NDArray[np.int32], group: int) -> Work:
    """The work of a step of sequences `[S]`: `counts` tokens each, the first at position `starts`.

    `group` is how many query heads share a key head. Flat rows are in the order of the sequences. Raises ValueError
    when a group has no room in a tile.
    """
    narrow, wide = _tokens(group)
    most = np.where(counts <= SHORT, narrow, wide)
    sequence, ordinal = _repeated(-(-counts // most))
    offset = ordinal * most[sequence]
    tokens = np.minimum(most[sequence], counts[sequence] - offset)
    first = (np.cumsum(counts) - counts)[sequence] + offset
    position = starts[sequence] + offset
    splits = (position + tokens - 1) // SPLIT + 1

    # As long a run of splits as leaves enough items.
    run = np.where(counts[sequence] <= SHORT, max(1, int(splits.sum()) // WANTED), splits)
    run = np.where(_within_room(np.where(run < splits, tokens * splits, 0), splits), run, splits)
    divided = run < splits
    needed = np.where(divided, tokens * splits, 0)
    partial = np.where(divided, np.cumsum(needed) - needed, -1)

    tile, ordinal = _repeated(-(-splits // run))
    begin = ordinal * run[tile]
    end = np.minimum(begin + run[tile], splits[tile])
    columns = (first[tile], position[tile], tokens[tile], table_rows[sequence[tile]], begin, end, partial[tile])
    items = np.stack((*columns, splits[tile]), axis=1).astype(np.int32)

    chosen = np.flatnonzero(divided)
    part, token = _repeated(tokens[chosen])
    part = chosen[part]
    merges = np.stack((first[part] + token, position[part] + token, partial[part] + token * splits[part]), axis=1)
    heavy = (end - begin) * np.where(tokens[tile] * group <= NARROW, 1, 2)
    return Work(items[np.argsort(-heavy, kind="stable")], merges.astype(np.int32))


def bounds(max_rows: int, max_tokens: int, max_context: int, group: int) -> tuple[int, int, int]:
    """Items, merges and partials of any step of at most `max_rows` sequences with a token or more, `max_tokens` tokens
    in all, and `max_context` positions in a sequence. Raises ValueError as `plan_work` does."""
    narrow, wide = _tokens(group)
    short = min(max_tokens, max_rows * SHORT)
    tiles = min(max_tokens, -(-short // narrow) - (-(max_tokens - short) // wide) + max_rows)
    splits = -(-max_context // SPLIT)
    if splits < 2:
        return tiles, 0, 0
    partials = min(MOST_PARTIALS, short * splits)
    # A run is at least half of the splits over WANTED, so that the divided tiles have that many runs and one each.
    return tiles + min(partials, 2 * WANTED), min(short, partials // 2), partials


def _tokens(group: int) -> tuple[int, int]:
    """Tokens of a narrow tile, and of a wide one."""
    if not 1 <= group <= NARROW:
        raise ValueError(f"{group} query heads share a key head, and the attention kernel has room for 1 to {NARROW}")
    return NARROW // group, WIDE // group


def _repeated(times: NDArray[np.signedinteger]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each index as often as `times` says, and which time it is."""
    index = np.repeat(np.arange(len(times)), times)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)


def _within_room(needed: NDArray[np.int64], splits: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which tiles can leave the partials they would, the longest contexts first."""
    order = np.argsort(-splits, kind="stable")
    fits = np.empty(len(order), np.bool_)
    fits[order] = np.cumsum(needed[order]) <= MOST_PARTIALS
    return fits
