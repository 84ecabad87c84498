from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.triton import attention_work
from kernels.triton.attention_work import ITEM, MERGE, NARROW, SPLIT, WIDE, Work, bounds, plan_work

steps = st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 3) | st.integers(0, 100)), max_size=12)


def planned(sequences: list[tuple[int, int]], group: int) -> Work:
    """`sequences`: (start, count). Table rows go down from 99, so that none is taken for another number."""
    starts, counts = (np.array([it[column] for it in sequences], np.int32) for column in (0, 1))
    return plan_work(starts, counts, 99 - np.arange(len(sequences), dtype=np.int32), group)


def rows_of(sequences: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Table row and position of each flat row."""
    return [(99 - index, start + nth) for index, (start, count) in enumerate(sequences) for nth in range(count)]


def width(items: NDArray[np.int32]) -> int:
    return int((items[:, 5] - items[:, 4]).sum())


@given(sequences=steps, group=st.integers(1, NARROW), wanted=st.sampled_from([1, 20, 512]))
def test_every_token_meets_every_split_of_its_context_once(
    sequences: list[tuple[int, int]], group: int, wanted: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_work, "WANTED", wanted)
        work = planned(sequences, group)
    rows = rows_of(sequences)
    seen: Counter[tuple[int, int]] = Counter()
    left: dict[int, tuple[int, int]] = {}
    written = set()
    for first, position, tokens, table_row, begin, end, partial, stride in work.items.tolist():
        assert 1 <= tokens * group <= WIDE
        assert 0 <= begin < end <= stride
        assert partial < 0 or tokens * group <= NARROW, "the wide tile leaves no partial results"
        for nth in range(tokens):
            assert rows[first + nth] == (table_row, position + nth)
            for split in range(begin, end):
                seen[first + nth, split] += 1
                if partial >= 0:
                    place = partial + nth * stride + split
                    assert place not in left, "no two leave their result in one place"
                    left[place] = (first + nth, split)
            if partial < 0:
                assert begin == 0
                written.add(first + nth)
    for row, position, partial in work.merges.tolist():
        assert rows[row][1] == position
        assert row not in written
        written.add(row)
        for split in range(position // SPLIT + 1):
            assert left[partial + split] == (row, split)
    assert written == set(range(len(rows)))
    assert set(seen.values()) <= {1}
    for row, (_, position) in enumerate(rows):
        assert all(seen[row, split] for split in range(position // SPLIT + 1))


@given(
    sequences=steps,
    group=st.integers(1, NARROW),
    wanted=st.sampled_from([1, 20, 512]),
    room=st.sampled_from([0, 40, 16384]),
)
def test_no_step_needs_more_room_than_the_bounds(
    sequences: list[tuple[int, int]], group: int, wanted: int, room: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_work, "WANTED", wanted)
        patch.setattr(attention_work, "MOST_PARTIALS", room)
        work = planned(sequences, group)
        live = [it for it in sequences if it[1]]
        tokens, context = sum(it[1] for it in live), max((sum(it) for it in live), default=0)
        items, merges, partials = bounds(len(live), tokens, context, group)
    assert len(work.items) <= items
    assert len(work.merges) <= merges
    divided = work.items[work.items[:, 6] >= 0]
    assert (divided[:, 6] + divided[:, 2] * divided[:, 7]).max(initial=0) <= partials


def test_the_bounds_of_a_large_step_are_no_larger_than_they_must_be() -> None:
    items, merges, partials = bounds(256, 2048, 32768, 4)
    assert (items, merges, partials) == (512 + 256 + 1024, 2048, 16384)
    assert bounds(256, 256, 256, 4) == (256, 0, 0), "a context of one split is never divided"


def test_a_lone_decode_row_is_divided_into_single_splits() -> None:
    work = planned([(10 * SPLIT, 1)], 4)
    assert (work.items[:, 5] - work.items[:, 4]).tolist() == [1] * 11
    assert work.merges.tolist() == [[0, 10 * SPLIT, 0]]


def test_many_decode_rows_are_divided_into_as_many_items_as_are_wanted_not_more() -> None:
    work = planned([(16 * SPLIT - 1, 1)] * 64, 4)
    assert len(work.items) == attention_work.WANTED
    assert len(planned([(2 * SPLIT - 1, 1)] * 2000, 4).merges) == 0, "there are enough of them undivided"


def test_a_long_chunk_is_not_divided_and_comes_before_what_is_done_sooner() -> None:
    work = planned([(300, 1), (9000, 64)], 4)
    assert work.items[:, 6].tolist() == [-1] * 8 + [0, 0]
    assert (np.diff(work.items[:, 5] - work.items[:, 4]) <= 0).all()


def test_where_partial_results_have_no_room_the_shorter_contexts_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_work, "MOST_PARTIALS", 12)
    work = planned([(4 * SPLIT, 1), (9 * SPLIT, 1), (3 * SPLIT, 1)], 1)
    assert work.merges[:, 0].tolist() == [1]
    assert sorted(work.items[work.items[:, 6] < 0, 0].tolist()) == [0, 2]
    assert width(work.items) == 5 + 10 + 4


@pytest.mark.parametrize("sequences", [[], [(700, 0)], [(0, 0), (5, 0)]])
def test_a_step_without_tokens_is_no_work(sequences: list[tuple[int, int]]) -> None:
    work = planned(sequences, 4)
    assert work.items.shape == (0, ITEM)
    assert work.merges.shape == (0, MERGE)
    assert work.items.dtype == work.merges.dtype == np.int32


@pytest.mark.parametrize("group", [0, 17])
def test_a_group_without_room_in_a_tile_is_refused(group: int) -> None:
    with pytest.raises(ValueError, match="room for 1 to 16"):
        planned([(0, 1)], group)
    with pytest.raises(ValueError, match="room for 1 to 16"):
        bounds(1, 1, 1, group)
