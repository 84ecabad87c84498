import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.batch import batch_of
from kernels.triton.tables import BlockTables
from protocol.messages import Chunk

WIDTH = 8
BLOCK = 16


def chunk(request: str, blocks: list[int]) -> Chunk:
    """A decode row at the end of `blocks`."""
    table = np.array(blocks, "<i4").tobytes()
    return Chunk(request, len(blocks) * BLOCK - 1, bytes(4), table)


Step = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.integers(0, 999), min_size=1, max_size=WIDTH), min_size=1, max_size=4
)


@given(st.lists(Step, max_size=20))
def test_after_its_changes_the_device_has_every_table_of_the_step(steps: list[dict[str, list[int]]]) -> None:
    tables = BlockTables(5, WIDTH)
    device = np.zeros(5 * WIDTH, np.int32)
    for step in steps:
        rows, changes = tables.place(batch_of([chunk(*it) for it in step.items()], BLOCK, 1000))
        device[changes[:, 0]] = changes[:, 1]
        assert len(set(rows.tolist())) == len(step)
        for row, blocks in zip(rows, step.values(), strict=True):
            assert device[row * WIDTH : row * WIDTH + len(blocks)].tolist() == blocks


def test_a_request_that_goes_on_costs_only_what_is_new() -> None:
    tables = BlockTables(2, WIDTH)
    tables.place(batch_of([chunk("a", [5, 6])], BLOCK, 1000))
    _, nothing = tables.place(batch_of([chunk("a", [5, 6])], BLOCK, 1000))
    rows, one = tables.place(batch_of([chunk("a", [5, 6, 7])], BLOCK, 1000))
    assert nothing.tolist() == []
    assert one.tolist() == [[rows[0] * WIDTH + 2, 7]]


def test_the_row_that_was_not_used_for_longest_is_given_away_and_never_one_of_the_same_step() -> None:
    tables = BlockTables(2, WIDTH)
    (a,), _ = tables.place(batch_of([chunk("a", [1])], BLOCK, 1000))
    (b,), _ = tables.place(batch_of([chunk("b", [2])], BLOCK, 1000))
    tables.place(batch_of([chunk("a", [1])], BLOCK, 1000))
    (c,), _ = tables.place(batch_of([chunk("c", [3])], BLOCK, 1000))
    assert c == b
    both, _ = tables.place(batch_of([chunk("d", [4]), chunk("a", [1])], BLOCK, 1000))
    assert both.tolist() == [b, a]


def test_what_does_not_fit_is_refused() -> None:
    tables = BlockTables(1, WIDTH)
    with pytest.raises(ValueError, match="9 blocks, and there is room for 8"):
        tables.place(batch_of([chunk("a", list(range(9)))], BLOCK, 1000))
    with pytest.raises(ValueError, match="2 requests are in a step, and there are 1 block tables"):
        tables.place(batch_of([chunk("a", [1]), chunk("b", [2])], BLOCK, 1000))
    with pytest.raises(ValueError, match="twice"):
        BlockTables(2, WIDTH).place(batch_of([chunk("a", [1]), chunk("a", [2])], BLOCK, 1000))
