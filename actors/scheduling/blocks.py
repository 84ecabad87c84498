"""Who holds which KV block, and which content a block can be found by.

Knows block numbers, reference counts, block tables and names. Knows no tensors, no requests' text, no time.

A full block is named by SHA-256 over its parent's name and its tokens; the first block's parent is the root that a
sequence belongs to (model, RoPE settings, tenant). So equal prefixes have equal names, and nobody finds what another
tenant has computed. (Content-addressed blocks are those of vLLM's automatic prefix caching, and in spirit of SGLang's
RadixAttention, Zheng et al., 2023; the root keeps tenants apart.)
"""

from array import array
from collections import OrderedDict, deque
from hashlib import sha256


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for. Nothing was taken."""


class BlockPool:
    """Fixed-size blocks with reference counts. `free + cached + used == total` at all times.

    A block is used while its count is above 0. A block that nobody holds is cached while it has a name by which it can
    be found again, and free otherwise; when the free ones run out, the one cached longest ago loses its name.
    """

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._references = [0] * total
        self._free: deque[int] = deque(range(total))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._names: list[bytes | None] = [None] * total
        self._found: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks that hold nothing anybody could find."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds, but whose content can be found by its name."""
        return len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.free - self.cached

    @property
    def available(self) -> int:
        """How many blocks `allocate` could give."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks `tokens` tokens fill, the last one perhaps in part."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each with one reference. Raises OutOfBlocks when fewer are available."""
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks wanted, {self.available} available")
        while len(self._free) < count:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
            self._free.append(block)
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            assert self._references[block] == 0, f"block {block} was free and held"
            self._references[block] = 1
        return blocks

    def release(self, blocks: "array[int]") -> None:
        """Drop one reference on each; those that reach 0 are cached or free.

        The last block of a table goes first: it is of use only to whoever shares all that stand before it.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} was released more often than held"
            if self._references[block] == 0:
                if self._names[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    # --- content ---

    def find(self, names: list[bytes]) -> list[int]:
        """The blocks of the longest run of `names` from the first that are all here. Takes no reference."""
        found = []
        for name in names:
            block = self._found.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: list[int]) -> int:
        """How many of `blocks` nobody holds: sharing them takes so many from what is available."""
        return sum(1 for block in blocks if not self._references[block])

    def share(self, blocks: list[int]) -> None:
        """One more reference on each."""
        for block in blocks:
            self._references[block] += 1
            self._cached.pop(block, None)

    def publish(self, block: int, name: bytes) -> None:
        """The block holds what `name` says, and can be found by it; unless another block is already."""
        assert self._references[block] > 0, "a block is named by a step that holds it"
        if self._names[block] is None and name not in self._found:
            self._names[block] = name
            self._found[name] = block

    def _forget(self, block: int) -> None:
        name = self._names[block]
        assert name is not None, f"block {block} was cached without a name"
        self._names[block] = None
        del self._found[name]

    def references(self, block: int) -> int:
        return self._references[block]

    def audit(self) -> None:
        """Raises AssertionError unless lists, counts and names tell the same story."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert free.isdisjoint(self._cached), "a block is free and cached"
        for block, references in enumerate(self._references):
            idle = block in free or block in self._cached
            assert (references == 0) == idle, f"block {block} has {references} references"
            assert (block in free) <= (self._names[block] is None), f"block {block} is free and has a name"
        named = {name: block for block, name in enumerate(self._names) if name is not None}
        assert named == self._found, "names and blocks differ"


def chain(parent: bytes, tokens: bytes) -> bytes:
    """The name of a full block: `tokens` as little-endian int32, behind the block named `parent`."""
    return sha256(parent + tokens).digest()


def root(*parts: str) -> bytes:
    """The name that stands before a first block: everything that makes equal tokens mean different keys and values."""
    return sha256("\0".join(parts).encode()).digest()


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

    def first(self, tokens: int) -> bytes:
        """The blocks that hold the first `tokens` tokens, as little-endian int32."""
        count = -(-tokens // self._pool.block_size)
        return self.blocks.tobytes() if count == len(self.blocks) else self.blocks[:count].tobytes()

    def grow(self, tokens: int) -> None:
        """Make room for `tokens` tokens in all. Raises OutOfBlocks, and grows nothing, when the pool cannot."""
        missing = self.missing(tokens)
        if missing:
            self.blocks.extend(self._pool.allocate(missing))

    def begin_with(self, blocks: list[int]) -> None:
        """Share `blocks` as the first ones. Only an empty table begins."""
        assert not self.blocks, "a table that has begun"
        self._pool.share(blocks)
        self.blocks.extend(blocks)

    def hold(self) -> None:
        assert self.holders > 0, "a table that nobody held has lost its blocks"
        self.holders += 1

    def drop(self) -> None:
        self.holders -= 1
        assert self.holders >= 0
        if self.holders == 0:
            self._pool.release(self.blocks)
            self.blocks = array("i")
