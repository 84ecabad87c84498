from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.batch import batch_of
from protocol.messages import Chunk


def chunk(start: int, ids: Sequence[int], table: Sequence[int]) -> Chunk:
    return Chunk("r", start, np.array(ids, "<i4").tobytes(), np.array(table, "<i4").tobytes())


def test_chunks_become_one_flat_row() -> None:
    batch = batch_of([chunk(0, [7, 8, 9], [4]), chunk(33, [5], [2, 0]), chunk(30, [1, 2, 3, 4], [3, 1, 5])], 32, 6)
    assert batch.ids.tolist() == [7, 8, 9, 5, 1, 2, 3, 4]
    assert batch.positions.tolist() == [0, 1, 2, 33, 30, 31, 32, 33]
    assert batch.starts.tolist() == [0, 33, 30]
    assert batch.counts.tolist() == [3, 1, 4]
    assert batch.ends.tolist() == [3, 4, 8]
    assert batch.tables.tolist() == [4, 2, 0, 3, 1, 5]
    assert batch.table_begins.tolist() == [0, 1, 3, 6]
    assert [batch.table(it).tolist() for it in range(3)] == [[4], [2, 0], [3, 1, 5]]


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([1, 16, 32]),
)
def test_any_chunks_keep_their_tokens_positions_and_tables(
    drawn: list[tuple[int, list[int], int]], block_size: int
) -> None:
    tables = [list(range(-(-(start + len(ids)) // block_size) + spare)) for start, ids, spare in drawn]
    chunks = [chunk(start, ids, table) for (start, ids, _), table in zip(drawn, tables, strict=True)]
    batch = batch_of(chunks, block_size, 400)
    end = 0
    for index, ((start, ids, _), table) in enumerate(zip(drawn, tables, strict=True)):
        begin, end = end, int(batch.ends[index])
        assert batch.ids[begin:end].tolist() == ids
        assert batch.positions[begin:end].tolist() == list(range(start, start + len(ids)))
        assert batch.table(index).tolist() == table
    assert end == batch.ids.size == batch.positions.size


def test_every_array_is_what_the_kernels_read_by_address() -> None:
    batch = batch_of([chunk(0, [7, 8], [1]), chunk(16, [5], [2, 0])], 16, 3)
    for name in ("ids", "positions", "starts", "counts", "tables", "table_begins"):
        array = getattr(batch, name)
        assert array.dtype == np.int32, name
        assert array.flags.c_contiguous, name


@pytest.mark.parametrize(
    ("start", "count", "blocks", "sentence"),
    [
        (0, 1, 0, "0 blocks of 16 do not cover positions up to 0"),
        (16, 1, 1, "1 blocks of 16 do not cover positions up to 16"),
        (0, 33, 2, "2 blocks of 16 do not cover positions up to 32"),
    ],
)
def test_a_table_that_does_not_cover_its_chunk_is_an_error(start: int, count: int, blocks: int, sentence: str) -> None:
    fine = chunk(0, [1], [0])
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        batch_of([fine, chunk(start, [1] * count, range(blocks)), fine], 16, 9)


@pytest.mark.parametrize("table", [[9], [0, -1], [-(2**31)], [2**31 - 1, 0]])
def test_a_block_that_is_not_there_is_an_error_even_where_it_would_not_be_read(table: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^a block table names a block outside 0 \.\. 8$"):
        batch_of([chunk(0, [1], [3]), chunk(0, [1], table)], 16, 9)
