"""FixedChunk: decodes first, then prefill by arrival, within its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.scheduling.blocks import BlockPool
from actors.scheduling.policy import FixedChunk
from actors.scheduling.sequence import Sequence
from tests.actors.recorders import enqueue

POOL = BlockPool(0, 16)


def waiting(order: int, prompt: int) -> Sequence:
    return Sequence(enqueue(f"r{order}", prompt), order, POOL, b"", now=0.0)


def running(order: int, remaining: int, computed: int = 3) -> Sequence:
    one = waiting(order, remaining + computed)
    one.start(0.0)
    one.computed = computed
    return one


def wished(policy: FixedChunk, runnable: list[Sequence], max_step_tokens: int = 100) -> list[tuple[str, int]]:
    return [(wish.sequence.request, wish.tokens) for wish in policy.wishes(runnable, max_step_tokens)]


def test_every_decode_comes_before_any_prefill() -> None:
    assert wished(FixedChunk(8), [running(1, 5), running(2, 1), waiting(3, 9), running(4, 1)]) == [
        ("r2", 1),
        ("r4", 1),
        ("r1", 5),
        ("r3", 3),
    ]


def test_decodes_do_not_count_against_the_chunk() -> None:
    assert wished(FixedChunk(2), [running(1, 1), running(2, 1), running(3, 1), waiting(4, 9)])[-1] == ("r4", 2)


def test_a_chunk_goes_to_the_first_prefill_and_what_is_left_to_the_next() -> None:
    assert wished(FixedChunk(8), [running(1, 6), waiting(2, 9), waiting(3, 9)]) == [("r1", 6), ("r2", 2)]


def test_a_step_has_at_most_max_step_tokens_and_decodes_take_them_first() -> None:
    decodes = [running(order, 1) for order in range(1, 4)]
    assert wished(FixedChunk(8), [*decodes, waiting(4, 9)], max_step_tokens=5)[-1] == ("r4", 2)
    assert wished(FixedChunk(8), [*decodes, waiting(4, 9)], max_step_tokens=2) == [("r1", 1), ("r2", 1)]


def test_a_waiting_prompt_of_one_token_does_not_go_before_an_earlier_waiting_one() -> None:
    assert wished(FixedChunk(8), [waiting(1, 5), waiting(2, 1)]) == [("r1", 5), ("r2", 1)]
    assert wished(FixedChunk(8), [waiting(1, 9), waiting(2, 1)]) == [("r1", 8)]


@pytest.mark.parametrize("chunk_tokens", [0, -1])
def test_a_chunk_has_at_least_one_token(chunk_tokens: int) -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        FixedChunk(chunk_tokens)


@given(
    shapes=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=12),
    chunk=st.integers(1, 20),
    most=st.integers(1, 30),
)
def test_a_step_keeps_its_bounds_and_is_not_idle(shapes: list[tuple[bool, int]], chunk: int, most: int) -> None:
    runs = [running(order, tokens) for order, (is_running, tokens) in enumerate(shapes) if is_running]
    waits = [waiting(order, tokens) for order, (is_running, tokens) in enumerate(shapes) if not is_running]
    wishes = FixedChunk(chunk).wishes([*runs, *waits], most)
    decodes = [wish for wish in wishes if wish.sequence.remaining == 1 and not wish.sequence.waiting]
    prefills = wishes[len(decodes) :]
    assert wishes[: len(decodes)] == decodes
    assert sum(wish.tokens for wish in prefills) <= chunk
    assert sum(wish.tokens for wish in wishes) <= most
    assert all(1 <= wish.tokens <= wish.sequence.remaining for wish in wishes)
    assert len({wish.sequence.request for wish in wishes}) == len(wishes)
    assert bool(wishes) == bool(shapes)
