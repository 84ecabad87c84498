from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actors.prompt import fit_prompt
from protocol.input_items import Message


class _OneTokenACharacter:
    def __init__(self) -> None:
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
