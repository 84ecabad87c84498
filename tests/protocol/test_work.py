"""Everyone who counts what is in a step counts alike, as `Work` says: or costs would be learned of steps that are none.

The worker counts what it calibrates with, the scheduler what it plans, and neither may import the other's room.
"""

from hypothesis import given
from hypothesis import strategies as st

from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import work_of as counted_by_the_scheduler
from actors.scheduling.filling import Filling
from actors.scheduling.sequence import Sequence
from kernels.calibration import work_of as counted_by_the_worker
from protocol.messages import Chunk, Work
from tests.actors.recorders import enqueue

POSITIONS = 64
PARTS = st.lists(st.tuples(st.integers(0, POSITIONS - 1), st.integers(1, POSITIONS)), max_size=6).map(
    lambda parts: [(start, min(count, POSITIONS - start)) for start, count in parts]
)
"""Of each: where it starts, and how many tokens it has. One token is a decode row."""


def counted_one_by_one(parts: list[tuple[int, int]]) -> Work:
    """Every token sees those before it and itself; whatever is not of this step is read from the cache."""
    prefill = [(start, count) for start, count in parts if count > 1]
    rows = [start for start, count in parts if count == 1]
    return Work(
        prefill_tokens=sum(count for _, count in prefill),
        prefill_pairs=sum(position + 1 for start, count in prefill for position in range(start, start + count)),
        prefill_context=sum(start for start, _ in prefill),
        decode_rows=len(rows),
        decode_context=sum(rows),
    )


@given(parts=PARTS)
def test_scheduler_and_worker_count_the_same_step_alike(parts: list[tuple[int, int]]) -> None:
    chunks = tuple(Chunk("r", start, bytes(4 * count), b"") for start, count in parts)
    assert counted_by_the_scheduler(chunks) == counted_by_the_worker(chunks) == counted_one_by_one(parts)


@given(parts=PARTS)
def test_a_step_that_fills_is_counted_as_it_is_when_it_is_full(parts: list[tuple[int, int]]) -> None:
    pool = BlockPool(8 * POSITIONS, 1)
    filling = Filling(8 * POSITIONS, 8)
    for number, (start, count) in enumerate(parts):
        one = Sequence(enqueue(f"r{number}", range(POSITIONS)), number, pool, b"", 0.0)
        one.table.grow(start + count)
        one.computed = start
        filling.add(one, count)
    assert filling.work() == counted_by_the_worker(filling.chunks) == counted_one_by_one(parts)
