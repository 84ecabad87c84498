"""Numbers go where they are sent, and nowhere else."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.triton.inputs import BLOCK, apply_changes, fill_in


def ints(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2 * BLOCK + 3), st.integers(1, 40))
def test_a_token_that_follows_a_row_is_what_the_row_chose(data: st.DataObject, tokens: int, rows: int) -> None:
    seed = data.draw(st.integers(0, 1000))
    source = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, 200_000, (rows,), generator=source, dtype=torch.int32)
    ids = torch.randint(0, 200_000, (tokens + 5,), generator=source, dtype=torch.int32)
    follows = torch.randint(-1, rows, (tokens,), generator=source, dtype=torch.int32)
    expected = ids.clone()
    expected[:tokens] = torch.where(follows < 0, ids[:tokens], chosen[follows.clamp(min=0).long()])
    fill_in(ids[:tokens], follows, chosen)
    assert torch.equal(ids, expected)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 600), st.integers(1, 3))
def test_the_first_changes_are_made_and_what_stands_behind_them_is_not(
    data: st.DataObject, room: int, programs: int
) -> None:
    count = data.draw(st.integers(0, room))
    source = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    tables = torch.randint(0, 99, (30, 40), generator=source, dtype=torch.int32)
    changes = torch.stack([torch.randperm(1200, generator=source)[:room], torch.randperm(1200)[:room]], 1).int()
    expected = tables.clone().view(-1)
    expected[changes[:count, 0].long()] = changes[:count, 1]
    changes[count:] = 2**31 - 1  # would be far outside
    apply_changes(tables, changes, ints([count]), programs)
    assert torch.equal(tables.view(-1), expected)


def test_the_count_is_read_from_the_device_at_each_launch() -> None:
    tables, changes, count = ints([0, 0, 0]), ints([0, 7, 1, 8]).view(2, 2), ints([1])
    apply_changes(tables, changes, count, 1)
    assert tables.tolist() == [7, 0, 0]
    count.fill_(2)
    apply_changes(tables, changes, count, 1)
    assert tables.tolist() == [7, 8, 0]
