import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.prompts import TOKENS_PER_WORD, prompt

seeds = st.integers(0, 10**6)


@pytest.mark.parametrize("tokens", [60, 140, 1000, 8000])
def test_prompts_are_about_as_long_as_asked(tokens: int) -> None:
    for index in range(20):
        words = len(prompt(7, index, tokens).split())
        assert abs(words * TOKENS_PER_WORD + 14 - tokens) < 20


def test_a_tiny_prompt_keeps_its_first_line_and_its_question() -> None:
    text = prompt(7, 0, 1)
    assert text.startswith("Letter 0-7, about ")
    assert text.endswith(".")
    assert len(text.split()) < 40


@given(seeds, st.integers(0, 10**4), st.integers(1, 500))
def test_the_same_numbers_give_the_same_prompt(seed: int, index: int, tokens: int) -> None:
    assert prompt(seed, index, tokens) == prompt(seed, index, tokens)


@given(st.lists(st.tuples(seeds, st.integers(0, 10**4)), min_size=2, max_size=2, unique=True))
def test_no_two_prompts_share_more_than_a_word(numbers: list[tuple[int, int]]) -> None:
    one, other = (prompt(seed, index, 140).split() for seed, index in numbers)
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_neighbouring_prompts_are_about_different_things() -> None:
    topics = {prompt(7, index, 140).split("about ")[1].split(",")[0] for index in range(16)}
    assert len(topics) == 16
