from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actors.prompt import Length, fit_prompt, least
from protocol.input_items import Message, Role


class _OneTokenACharacter:
    def __init__(self, longest_token: int | None = None) -> None:
        self.longest_token = longest_token
        self.asked: list[str] = []

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        text = "".join(message.text for message in messages)
        self.asked.append(text)
        return [ord(character) for character in text]


_TALK = [
    Message("system", "s"),
    *[Message("user" if n % 2 == 0 else "assistant", str(n) * 3) for n in range(7)],
]


def _text(tokens: bytes) -> str:
    return "".join(map(chr, np.frombuffer(tokens, "<i4")))


def test_nothing_is_left_out_of_what_fits_or_must_stay_whole() -> None:
    whole = "s000111222333444555666"
    assert _text(fit_prompt(_OneTokenACharacter(), _TALK, None)) == whole
    assert _text(fit_prompt(_OneTokenACharacter(), _TALK, len(whole))) == whole


def test_the_oldest_turns_are_left_out_first_and_system_messages_stay() -> None:
    assert _text(fit_prompt(_OneTokenACharacter(), _TALK, 21)) == "s222333444555666"
    assert _text(fit_prompt(_OneTokenACharacter(), _TALK, 15)) == "s444555666"


def test_the_newest_turn_stays_even_if_it_does_not_fit() -> None:
    assert _text(fit_prompt(_OneTokenACharacter(), _TALK, 2)) == "s666"
    assert _text(fit_prompt(_OneTokenACharacter(), _TALK[:2], 2)) == "s000"


@given(st.integers(1, 200), st.integers(1, 800))
def test_as_many_turns_stay_as_fit(turns: int, most: int) -> None:
    prompts = _OneTokenACharacter()
    talk = [Message("user", "abcd") for _ in range(turns)]
    kept = len(_text(fit_prompt(prompts, talk, most))) // 4
    assert kept == min(turns, max(1, most // 4))
    assert len(prompts.asked) <= 10


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=30), st.integers(1, 60))
def test_going_by_lengths_first_changes_no_prompt_and_tokenises_nothing_that_cannot_fit(
    roles: list[Role], most: int
) -> None:
    talk = [Message(role, "abc") for role in roles]
    blind, knowing = _OneTokenACharacter(), _OneTokenACharacter(longest_token=1)
    assert fit_prompt(knowing, talk, most) == fit_prompt(blind, talk, most)
    newest = knowing.asked[-1]
    assert all(len(text) <= most or text == newest for text in knowing.asked)


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=30), st.integers(0, 29))
def test_what_stays_is_never_thought_longer_than_it_is(roles: list[Role], own: int) -> None:
    talk = [Message(role, "é" * n) for n, role in enumerate(roles, start=1)]
    kept = fit_prompt(_OneTokenACharacter(), talk, 1)
    assert least(talk[own:]).text_bytes <= 2 * len(kept) // 4
    assert least(talk).text_bytes <= 2 * len(kept) // 4


def test_a_length_is_in_bytes_and_a_message_is_a_token_at_least() -> None:
    length = Length.of([Message("user", "aé你😀"), Message("user", "")])
    assert length == Length(2, 10)
    assert (length.tokens(3), length.tokens(100), length.tokens(None)) == (4, 2, 2)
