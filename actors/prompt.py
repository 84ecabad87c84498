"""A prompt within the context, if its client allows the oldest turns to be left out; and how short it cannot be.

Plain code that runs in the tokeniser's thread as well. Knows nothing of templates, nor of who asked.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from msgspec import Struct

from protocol.input_items import Message

_STAYS = ("system", "developer")


class Prompts(Protocol):
    """What the tokeniser needs of a vocabulary."""

    @property
    def longest_token(self) -> int | None:
        """The most bytes of text, in UTF-8, that one token stands for; None when there is no such bound."""
        ...

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens up to where the answer begins. Raises `PromptRefused`."""
        ...


class Length(Struct, frozen=True):
    """How long messages are, as far as can be told without a tokeniser."""

    messages: int = 0
    text_bytes: int = 0

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Length":
        return cls(len(messages), sum(_utf8_bytes(message.text) for message in messages))

    def __add__(self, other: "Length") -> "Length":
        return Length(self.messages + other.messages, self.text_bytes + other.text_bytes)

    def tokens(self, longest_token: int | None) -> int:
        """As many tokens at least, since a message takes one or more."""
        return max(self.messages, 0 if longest_token is None else -(-self.text_bytes // longest_token))


def least(messages: Sequence[Message]) -> Length:
    """What stays however much is left out of these and of what came before them."""
    newest = max((n for n, message in enumerate(messages) if message.role == "user"), default=0)
    return Length.of([m for n, m in enumerate(messages) if n >= newest or m.role in _STAYS])


def fit_prompt(prompts: Prompts, messages: Sequence[Message], most: int | None) -> bytes:
    """The prompt as little-endian int32. Past `most` tokens whole turns are left out, the oldest first.

    A turn begins with a user message; system and developer messages stay, and so does the newest turn, even when the
    prompt is still too long with it alone. `most` None: nothing is left out.
    """
    if most is None:
        return _packed(prompts.prompt(messages))

    def without_before(beginning: int) -> list[int]:
        return prompts.prompt([m for n, m in enumerate(messages) if n >= beginning or m.role in _STAYS])

    # What cannot fit, going by its length, is never tokenised: it may be a hundred times as long as what can.
    beginnings = [0, *[n for n, message in enumerate(messages) if message.role == "user"][1:]]
    lengths = _lengths_from(messages)
    beginnings = [n for n in beginnings if lengths[n].tokens(prompts.longest_token) <= most] or beginnings[-1:]
    tokens = without_before(beginnings[0])
    if len(tokens) > most and len(beginnings) > 1:
        # Fewer turns make fewer tokens: a handful of tries instead of one a turn.
        rest = beginnings[1:]
        first = bisect_left(rest, True, key=lambda beginning: len(without_before(beginning)) <= most)
        tokens = without_before(rest[min(first, len(rest) - 1)])
    return _packed(tokens)


def _lengths_from(messages: Sequence[Message]) -> list[Length]:
    """Of what is left when everything before each message is left out that may be."""
    each = [Length.of([message]) for message in messages]
    stays = _running(own if m.role in _STAYS else Length() for m, own in zip(messages, each, strict=True))
    after = _running(
        Length() if m.role in _STAYS else own for m, own in zip(reversed(messages), reversed(each), strict=True)
    )
    return [stays[-1] + after[len(messages) - n] for n in range(len(messages) + 1)]


def _running(lengths: Iterable[Length]) -> list[Length]:
    return list(accumulate(lengths, initial=Length()))


def _packed(tokens: list[int]) -> bytes:
    return np.asarray(tokens, dtype="<i4").tobytes()


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
