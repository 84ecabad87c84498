"""The three plain policies: decodes and prefill in one step, or one before the other; prefill by arrival."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.scheduling.policies import POLICIES, PolicyName, policy_named
from actors.scheduling.policy import DecodeFirst, FixedChunk, PrefillFirst
from actors.scheduling.sequence import Sequence
from actors.scheduling.slack import Slack
from tests.actors.scheduling.views import decoding, prefilling, view, waiting, wished

PLAIN: tuple[PolicyName, ...] = ("fixed_chunk", "decode_first", "prefill_first")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("slack", Slack), ("fixed_chunk", FixedChunk), ("decode_first", DecodeFirst), ("prefill_first", PrefillFirst)],
)
def test_every_policy_has_its_name(name: PolicyName, kind: type) -> None:
    assert type(policy_named(name, 8)) is kind
    assert name in POLICIES


# --- FixedChunk ---


def test_every_decode_comes_before_any_prefill() -> None:
    seen = view(prefilling(1, 5), decoding(2), waiting(3, 9), decoding(4))
    assert wished(FixedChunk(8), seen) == [("r2", 1), ("r4", 1), ("r1", 5), ("r3", 3)]


def test_decodes_do_not_count_against_the_chunk() -> None:
    assert wished(FixedChunk(2), view(decoding(1), decoding(2), decoding(3), waiting(4, 9)))[-1] == ("r4", 2)


def test_a_chunk_goes_to_the_first_prefill_and_what_is_left_to_the_next() -> None:
    assert wished(FixedChunk(8), view(prefilling(1, 6), waiting(2, 9), waiting(3, 9))) == [("r1", 6), ("r2", 2)]


def test_a_step_has_at_most_max_step_tokens_and_decodes_take_them_first() -> None:
    decodes = [decoding(order) for order in range(1, 4)]
    assert wished(FixedChunk(8), view(*decodes, waiting(4, 9), max_step_tokens=5))[-1] == ("r4", 2)
    assert all(tokens == 1 for _, tokens in wished(FixedChunk(8), view(*decodes, waiting(4, 9), max_step_tokens=3)))


@pytest.mark.parametrize("chunk_tokens", [0, -1])
def test_a_chunk_has_at_least_one_token(chunk_tokens: int) -> None:
    for kind in (FixedChunk, Slack):
        with pytest.raises(ValueError, match="at least 1 token"):
            kind(chunk_tokens)


# --- one before the other ---


def test_prefill_first_fills_the_step_with_prefill_by_arrival() -> None:
    seen = view(decoding(1), prefilling(2, 6), waiting(3, 9), waiting(4, 9), max_step_tokens=12)
    assert wished(PrefillFirst(), seen) == [("r2", 6), ("r3", 6)]


def test_prefill_first_decodes_in_steps_without_prefill() -> None:
    assert wished(PrefillFirst(), view(decoding(1), decoding(2))) == [("r1", 1), ("r2", 1)]


def test_decode_first_prefills_in_steps_without_a_decode() -> None:
    assert wished(DecodeFirst(), view(decoding(1), prefilling(2, 6), waiting(3, 9))) == [("r1", 1)]
    seen = view(prefilling(2, 6), waiting(3, 9), waiting(4, 9), max_step_tokens=12)
    assert wished(DecodeFirst(), seen) == [("r2", 6), ("r3", 6)]


# --- all of them ---


@pytest.mark.parametrize("name", PLAIN)
def test_a_waiting_prompt_of_one_token_does_not_go_before_an_earlier_waiting_one(name: PolicyName) -> None:
    assert wished(policy_named(name, 8), view(waiting(1, 5), waiting(2, 1))) == [("r1", 5), ("r2", 1)]
    assert wished(policy_named(name, 8), view(waiting(1, 9), waiting(2, 1), max_step_tokens=8)) == [("r1", 8)]


@pytest.mark.parametrize("name", POLICIES)
def test_one_that_is_paused_while_it_waits_is_passed_over(name: PolicyName) -> None:
    assert wished(policy_named(name, 8), view(waiting(1, 5, paused=True), waiting(2, 3))) == [("r2", 3)]
    assert wished(policy_named(name, 8), view(waiting(1, 5, paused=True))) == []
    crowd = [waiting(order, 5, due_in=50.0, paused=True) for order in range(1, 100)]
    assert wished(policy_named(name, 8), view(*crowd, waiting(100, 3, due_in=60.0))) == [("r100", 3)]


MAKERS: dict[str, Callable[[int, int], Sequence]] = {
    "decoding": decoding,
    "prefilling": prefilling,
    "waiting": waiting,
}
SHAPES = st.lists(st.tuples(st.sampled_from(sorted(MAKERS)), st.integers(2, 30)), max_size=12)


@pytest.mark.parametrize("name", PLAIN)
@given(shapes=SHAPES, chunk=st.integers(1, 20), most=st.integers(12, 30))
def test_a_step_keeps_its_bounds_and_is_not_idle(
    name: PolicyName, shapes: list[tuple[str, int]], chunk: int, most: int
) -> None:
    sequences = [MAKERS[kind](order, tokens) for order, (kind, tokens) in enumerate(shapes, start=1)]
    wishes = policy_named(name, chunk).wishes(view(*sequences, max_step_tokens=most))
    decodes = [wish for wish in wishes if wish.sequence.has_begun]
    prefills = [wish for wish in wishes if not wish.sequence.has_begun]
    if name == "fixed_chunk":
        assert wishes == decodes + prefills
        assert sum(wish.tokens for wish in prefills) <= chunk
    else:
        assert not (decodes and prefills)
        assert bool(prefills) == any(kind != "decoding" for kind, _ in shapes) or (name == "decode_first" and decodes)
    for group in (decodes, prefills):
        runs = [wish for wish in group if not wish.sequence.waiting]
        assert runs == sorted(runs, key=lambda wish: wish.sequence.order)
        assert group[: len(runs)] == runs, "those that hold memory go before those that need some"
    assert sum(wish.tokens for wish in wishes) <= most
    assert all(1 <= wish.tokens <= wish.sequence.remaining for wish in wishes)
    assert len({wish.sequence.request for wish in wishes}) == len(wishes)
    assert bool(wishes) == bool(shapes)
