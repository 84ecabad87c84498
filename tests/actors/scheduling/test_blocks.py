"""Blocks are conserved, whatever is allocated, held, dropped and released."""

from array import array

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from actors.scheduling.blocks import BlockPool, BlockTable, OutOfBlocks


def test_freed_blocks_are_used_again_the_longest_free_first() -> None:
    pool = BlockPool(4, 16)
    assert pool.allocate(4) == [0, 1, 2, 3]
    pool.release(array("i", [2]))
    pool.release(array("i", [3, 0]))
    assert pool.allocate(1) == [2]
    pool.release(array("i", [1]))
    assert pool.allocate(3) == [3, 0, 1]


def test_blocks_never_used_come_before_freed_ones_so_that_content_is_kept_longest() -> None:
    pool = BlockPool(4, 16)
    pool.release(array("i", pool.allocate(2)))
    assert pool.allocate(4) == [2, 3, 0, 1]


def test_out_of_blocks_takes_nothing() -> None:
    pool = BlockPool(3, 16)
    pool.allocate(1)
    with pytest.raises(OutOfBlocks, match="3 blocks wanted, 2 free"):
        pool.allocate(3)
    assert pool.free == 2
    assert pool.allocate(2) == [1, 2]
    pool.audit()


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


class Tables(RuleBasedStateMachine):
    """Tables that grow and are held and dropped at random, beside a plain count of what each should hold."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[int, int] = {}
        self.alive: dict[int, BlockTable] = {}

    @initialize(total=st.integers(0, 12), block_size=st.integers(1, 4))
    def pool_of(self, total: int, block_size: int) -> None:
        self.pool = BlockPool(total, block_size)

    @rule(target=tables)
    def new(self) -> BlockTable:
        table = BlockTable(self.pool)
        self.alive[id(table)] = table
        self.expected[id(table)] = 0
        return table

    @rule(table=tables, tokens=st.integers(0, 20))
    def grow(self, table: BlockTable, tokens: int) -> None:
        if table.holders == 0:
            return
        wanted = max(self.expected[id(table)], -(-tokens // self.pool.block_size))
        if wanted - self.expected[id(table)] > self.pool.free:
            with pytest.raises(OutOfBlocks):
                table.grow(tokens)
        else:
            table.grow(tokens)
            self.expected[id(table)] = wanted

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
        self.expected[id(table)] = 0

    @invariant()
    def blocks_are_conserved(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.audit()
        held = [block for table in self.alive.values() for block in table.blocks]
        assert len(held) == len(set(held)), "a block is in two tables"
        assert len(held) == sum(self.expected.values()) == self.pool.used
        assert self.pool.free + self.pool.cached + self.pool.used == self.pool.total


TestTables = Tables.TestCase
