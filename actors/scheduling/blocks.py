"""Who holds which KV block.

Knows block numbers, reference counts and block tables. Knows no tensors, no requests' text, no time.
"""

from array import array
from collections import deque


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for. Nothing was taken."""


class BlockPool:
    """Fixed-size blocks with reference counts. `free + cached + used == total` at all times.

    A block is used while its count is above 0. Freed blocks keep their content until they are handed out again,
    the one freed longest ago first.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._references = [0] * total
        self._free: deque[int] = deque(range(total))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds but whose content could be found again: none, as nothing is named yet."""
        return 0

    @property
    def used(self) -> int:
        return self.total - self.free - self.cached

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each with one reference. Raises OutOfBlocks when fewer are free."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            assert self._references[block] == 0, f"block {block} was free and held"
            self._references[block] = 1
        return blocks

    def release(self, blocks: "array[int]") -> None:
        """Drop one reference on each; those that reach 0 are free."""
        for block in blocks:
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} was released more often than held"
            if self._references[block] == 0:
                self._free.append(block)

    def audit(self) -> None:
        """Raises AssertionError unless the free list and the counts tell the same story."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        for block, references in enumerate(self._references):
            assert (references == 0) == (block in free), f"block {block} has {references} references"


class BlockTable:
    """The blocks of one sequence, in order, and who still needs them.

    The sequence holds the table, and so does every planned step that touches it until its result is in. When the last
    of them lets go, the blocks go back to the pool: this one rule makes cancel, preemption and overlapped steps safe.
    """

    __slots__ = ("_pool", "blocks", "holders")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: array[int] = array("i")
        self.holders = 1

    def missing(self, tokens: int) -> int:
        """How many blocks more it takes to hold `tokens` tokens."""
        return max(0, self._pool.blocks_for(tokens) - len(self.blocks))

    def grow(self, tokens: int) -> None:
        """Make room for `tokens` tokens in all. Raises OutOfBlocks, and grows nothing, when the pool cannot."""
        missing = self.missing(tokens)
        if missing:
            self.blocks.extend(self._pool.allocate(missing))

    def hold(self) -> None:
        assert self.holders > 0, "a table that nobody held has lost its blocks"
        self.holders += 1

    def drop(self) -> None:
        self.holders -= 1
        assert self.holders >= 0
        if self.holders == 0:
            self._pool.release(self.blocks)
            self.blocks = array("i")
