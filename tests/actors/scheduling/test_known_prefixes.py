"""The guess at what may be cached: never of another tenant, never the whole prompt, and at most a piece too short."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from actors.scheduling.known_prefixes import PIECE_TOKENS, KnownPrefixes


def tokens(count: int, first: int = 0) -> bytes:
    return array("i", range(first, first + count)).tobytes()


def test_what_was_never_seen_is_not_in_the_cache() -> None:
    assert KnownPrefixes().guess("", tokens(4 * PIECE_TOKENS)) == 0


@given(before=st.integers(0, 2000), more=st.integers(1, 2000))
def test_a_longer_prompt_begins_with_what_was_seen_but_for_a_piece(before: int, more: int) -> None:
    known = KnownPrefixes()
    known.add("", tokens(before))
    guess = known.guess("", tokens(before + more))
    assert before - PIECE_TOKENS < guess <= before


def test_the_newest_token_is_always_computed() -> None:
    known = KnownPrefixes()
    known.add("", tokens(2 * PIECE_TOKENS))
    assert known.guess("", tokens(2 * PIECE_TOKENS)) == 2 * PIECE_TOKENS - 1


def test_a_different_beginning_is_a_different_prompt() -> None:
    known = KnownPrefixes()
    known.add("", tokens(4 * PIECE_TOKENS))
    assert known.guess("", tokens(1, first=7) + tokens(4 * PIECE_TOKENS)) == 0


def test_another_tenants_prompts_are_unknown() -> None:
    known = KnownPrefixes()
    known.add("alice", tokens(4 * PIECE_TOKENS))
    assert known.guess("bob", tokens(4 * PIECE_TOKENS)) == 0


def test_the_ones_seen_longest_ago_are_forgotten() -> None:
    known = KnownPrefixes(most=3)
    known.add("", tokens(2 * PIECE_TOKENS))
    known.add("", tokens(2 * PIECE_TOKENS, first=10_000))
    assert known.guess("", tokens(2 * PIECE_TOKENS)) == 0, "its first piece has gone, so the second is not reached"
    assert known.guess("", tokens(3 * PIECE_TOKENS, first=10_000)) == 2 * PIECE_TOKENS
