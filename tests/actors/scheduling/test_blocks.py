"""Blocks are conserved, whatever is allocated, held, dropped and released."""

import itertools
from array import array
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from actors.scheduling.blocks import BlockPool, BlockTable, OutOfBlocks, chain, root


def test_freed_blocks_are_used_again_the_longest_free_first() -> None:
    pool = BlockPool(4, 16)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.release(array("i", [2]))
    pool.release(array("i", [0, 3]))
    assert pool.allocate(1) == [2]
    pool.release(array("i", [1]))
    assert pool.allocate(3) == [3, 0, 1]


def test_blocks_never_used_come_before_freed_ones_and_a_tables_later_blocks_before_its_earlier_ones() -> None:
    pool = BlockPool(4, 16)
    pool.release(array("i", pool.allocate(2)))
    assert pool.allocate(4) == [2, 3, 1, 0]


def test_out_of_blocks_takes_nothing_and_no_name() -> None:
    pool = BlockPool(4, 16)
    named(pool, b"a", b"b")
    pool.allocate(1)
    assert (pool.free, pool.cached, pool.used, pool.available) == (1, 2, 1, 3)
    with pytest.raises(OutOfBlocks, match="4 blocks wanted, 3 available"):
        pool.allocate(4)
    assert (pool.free, pool.cached, pool.used, pool.available) == (1, 2, 1, 3)
    assert pool.find([b"a", b"b"]) == [0, 1]
    pool.audit()
    assert pool.allocate(3) == [3, 1, 0]
    assert pool.available == 0


def named(pool: BlockPool, *names: bytes) -> list[int]:
    """As many blocks as names, published and let go of: they are cached."""
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.publish(block, name)
    pool.release(array("i", blocks))
    return blocks


def test_the_block_cached_longest_ago_loses_its_name_first() -> None:
    pool = BlockPool(3, 16)
    (a,), (b,), (c,) = named(pool, b"a"), named(pool, b"b"), named(pool, b"c")
    pool.share([a])
    pool.release(array("i", [a]))
    gone = []
    for block in (b, c, a):
        assert pool.allocate(1) == [block]
        gone.append([name for name in (b"a", b"b", b"c") if not pool.find([name])])
    assert gone == [[b"b"], [b"b", b"c"], [b"a", b"b", b"c"]]


def test_a_tables_later_blocks_lose_their_names_before_its_earlier_ones() -> None:
    pool = BlockPool(3, 16)
    names = [b"a", b"b", b"c"]
    blocks = named(pool, *names)
    for left in (2, 1, 0):
        pool.allocate(1)
        assert pool.find(names) == blocks[:left]


def test_free_blocks_are_given_before_any_cached_one_loses_its_name() -> None:
    pool = BlockPool(4, 16)
    named(pool, b"a", b"b")
    pool.allocate(2)
    assert pool.find([b"a", b"b"]) == [0, 1]


def test_a_name_that_is_here_is_not_published_twice() -> None:
    pool = BlockPool(3, 16)
    first, second = pool.allocate(2)
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    pool.publish(first, b"b")
    assert pool.find([b"a"]) == [first]
    assert pool.find([b"b"]) == []
    pool.release(array("i", [first, second]))
    assert (pool.free, pool.cached) == (2, 1), "the second has no name, and is free"
    pool.audit()


def test_a_run_of_names_is_found_as_far_as_it_is_here_and_taken_only_when_shared() -> None:
    pool = BlockPool(4, 16)
    a, b, d = named(pool, b"a", b"b", b"d")
    found = pool.find([b"a", b"b", b"c", b"d"])
    assert found == [a, b]
    assert (pool.idle(found), pool.cached) == (2, 3)
    pool.share(found)
    assert (pool.idle(found), pool.cached, pool.used) == (0, 1, 2)
    pool.share([a])
    pool.release(array("i", [a]))
    assert pool.references(a) == 1
    assert pool.find([b"d"]) == [d]


def test_a_block_nobody_holds_is_not_published() -> None:
    with pytest.raises(AssertionError, match="a step that holds it"):
        BlockPool(1, 16).publish(0, b"a")


def test_the_first_blocks_parent_says_model_and_tenant_and_every_name_its_parent() -> None:
    names = {chain(root(model, tenant), b"1234") for model in ("m", "n") for tenant in ("", "t", "u")}
    assert len(names) == 6
    assert chain(root("m", "t"), b"1234") in names
    assert chain(chain(root("m", "t"), b"1234"), b"5678") != chain(chain(root("m", "t"), b"1235"), b"5678")


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_the_last_block_may_be_filled_in_part(tokens: int, blocks: int) -> None:
    assert BlockPool(0, 16).blocks_for(tokens) == blocks


def test_a_block_released_more_often_than_held_is_a_defect() -> None:
    pool = BlockPool(1, 16)
    blocks = array("i", pool.allocate(1))
    pool.release(blocks)
    with pytest.raises(AssertionError, match="more often than held"):
        pool.release(blocks)


def test_the_audit_finds_a_block_that_is_free_twice_and_one_that_is_lost() -> None:
    twice = BlockPool(2, 16)
    twice._free.append(0)
    with pytest.raises(AssertionError, match="free twice"):
        twice.audit()
    lost = BlockPool(2, 16)
    lost._free.popleft()
    with pytest.raises(AssertionError, match="block 0 has 0 references"):
        lost.audit()
    both = BlockPool(2, 16)
    named(both, b"a")
    both._free.append(0)
    with pytest.raises(AssertionError, match="free and cached"):
        both.audit()
    misnamed = BlockPool(2, 16)
    named(misnamed, b"a")
    misnamed._found.clear()
    with pytest.raises(AssertionError, match="names and blocks differ"):
        misnamed.audit()


def test_a_table_grows_by_what_is_missing_and_not_at_all_when_the_pool_cannot() -> None:
    pool = BlockPool(3, 4)
    table = BlockTable(pool)
    table.grow(5)
    assert table.blocks.tolist() == [0, 1]
    table.grow(8)
    assert (table.missing(8), table.missing(9), table.missing(3)) == (0, 1, 0)
    with pytest.raises(OutOfBlocks):
        table.grow(17)
    assert table.blocks.tolist() == [0, 1]
    assert pool.free == 1


def test_the_last_to_let_go_of_a_table_gives_its_blocks_back() -> None:
    pool = BlockPool(2, 4)
    table = BlockTable(pool)
    table.grow(8)
    table.hold()
    table.drop()
    assert pool.used == 2
    table.drop()
    assert pool.used == 0
    with pytest.raises(AssertionError, match="nobody held"):
        table.hold()


def test_only_an_empty_table_begins_with_what_others_have_computed() -> None:
    pool = BlockPool(4, 4)
    blocks = named(pool, b"a", b"b")
    table, other = BlockTable(pool), BlockTable(pool)
    table.begin_with(blocks)
    other.begin_with(blocks)
    other.grow(12)
    assert (table.blocks.tolist(), other.blocks.tolist(), pool.used) == ([0, 1], [0, 1, 2], 3)
    with pytest.raises(AssertionError, match="has begun"):
        table.begin_with(blocks)
    other.drop()
    assert (pool.used, pool.cached) == (2, 0)
    table.drop()
    assert (pool.used, pool.cached, pool.free) == (0, 2, 2)


NAMES = [bytes([letter]) for letter in b"abcdef"]


class Tables(RuleBasedStateMachine):
    """Tables that begin, grow, publish and are held and dropped at random, beside a plain account of it all."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, BlockTable] = {}
        self.held: dict[int, list[int]] = {}
        """What each table holds."""
        self.names: dict[bytes, int] = {}
        self.cached: list[int] = []
        """Blocks with a name that nobody holds, the one cached longest ago first."""

    @initialize(total=st.integers(0, 12), block_size=st.integers(1, 4))
    def pool_of(self, total: int, block_size: int) -> None:
        self.pool = BlockPool(total, block_size)

    def counts(self) -> Counter[int]:
        return Counter(block for blocks in self.held.values() for block in blocks)

    def free(self) -> int:
        return self.pool.total - len(self.counts()) - len(self.cached)

    @rule(target=tables, names=st.lists(st.sampled_from(NAMES), unique=True))
    def new(self, names: list[bytes]) -> BlockTable:
        """A table that begins with the first of `names` that are here."""
        expected = [self.names[name] for name in itertools.takewhile(self.names.__contains__, names)]
        found = self.pool.find(names)
        assert found == expected
        assert self.pool.idle(found) == sum(1 for block in found if block in self.cached)
        table = BlockTable(self.pool)
        table.begin_with(found)
        self.alive[id(table)] = table
        self.held[id(table)] = found
        self.cached = [block for block in self.cached if block not in found]
        return table

    @rule(table=tables, tokens=st.integers(0, 20))
    def grow(self, table: BlockTable, tokens: int) -> None:
        if table.holders == 0:
            return
        held = self.held[id(table)]
        missing = max(0, -(-tokens // self.pool.block_size) - len(held))
        assert table.missing(tokens) == missing
        free = self.free()
        if missing > free + len(self.cached):
            with pytest.raises(OutOfBlocks):
                table.grow(tokens)
            assert table.blocks.tolist() == held
            return
        table.grow(tokens)
        given = table.blocks.tolist()[len(held) :]
        assert len(given) == missing
        assert not set(given) & set(self.counts()), "a block that somebody holds is given to another"
        taken = max(0, missing - free)
        lost, self.cached = self.cached[:taken], self.cached[taken:]
        assert set(lost) <= set(given), "names are lost in vain"
        self.names = {name: block for name, block in self.names.items() if block not in lost}
        self.held[id(table)] = held + given

    @rule(table=tables, place=st.integers(0, 4), name=st.sampled_from(NAMES))
    def publish(self, table: BlockTable, place: int, name: bytes) -> None:
        held = self.held[id(table)]
        if place < len(held):
            self.pool.publish(held[place], name)
            if name not in self.names and held[place] not in self.names.values():
                self.names[name] = held[place]

    @rule(table=tables)
    def hold(self, table: BlockTable) -> None:
        if table.holders:
            table.hold()

    @rule(table=tables)
    def drop(self, table: BlockTable) -> None:
        if table.holders > 1:
            table.drop()

    @rule(table=consumes(tables))
    def drop_entirely(self, table: BlockTable) -> None:
        while table.holders:
            table.drop()
        blocks = self.held.pop(id(table))
        del self.alive[id(table)]
        still_held = self.counts()
        named_ones = set(self.names.values())
        self.cached += [block for block in reversed(blocks) if block not in still_held and block in named_ones]

    @invariant()
    def blocks_are_conserved(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, counts = self.pool, self.counts()
        pool.audit()
        assert {key: table.blocks.tolist() for key, table in self.alive.items()} == self.held
        assert all(pool.references(block) == counts[block] for block in range(pool.total))
        assert (pool.free, pool.cached, pool.used) == (self.free(), len(self.cached), len(counts))
        assert pool.free + pool.cached + pool.used == pool.total
        assert pool.available == pool.free + pool.cached
        assert {name: pool.find([name]) for name in NAMES} == {
            name: [self.names[name]] if name in self.names else [] for name in NAMES
        }


TestTables = Tables.TestCase
