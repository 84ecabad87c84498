"""What people say: a text for each question, made before a run from its seed and nothing else.

Knows the kinds of prompts: prose of about a length, an exact number of tokens, texts from a file, one text for all.
Knows no API and no server.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from loadgen.exact_words import exact
from loadgen.prompts import prompt
from loadgen.warm_up import Lengths, text

EXACT, LETTERS = "exact", "letters"
"""The kinds that are made; any other name is a file."""


class Said(NamedTuple):
    text: str
    asked_tokens: int | None
    """How long it is to be, with all that the server puts around it; None: as long as it is."""


class Wording(Protocol):
    def question(self, index: int, tokens: int, *, first: bool) -> Said:
        """The text number `index` of a run, of so many tokens. `first`: nothing has been said before it."""


class Letters:
    """Prose of about as many tokens (`prompts`)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def question(self, index: int, tokens: int, *, first: bool) -> Said:
        return Said(prompt(self._seed, index, tokens), tokens)


class Pieces:
    """Prose cut to length by what the server counted of two texts before."""

    def __init__(self, seed: int, lengths: Lengths) -> None:
        self._seed = seed
        self._lengths = lengths

    def question(self, index: int, tokens: int, *, first: bool) -> Said:
        return Said(text(self._seed, index, self._lengths.pieces(tokens)), tokens)


class Exact:
    """Words that are a token each, so many that prompt and chat template together have the tokens asked for.

    A later question of a conversation has that many words: what the template adds there is not known.
    """

    def __init__(self, seed: int, lengths: Lengths) -> None:
        """`lengths`: how many tokens the server counts of so many words."""
        self._seed = seed
        self._lengths = lengths

    def question(self, index: int, tokens: int, *, first: bool) -> Said:
        words = self._lengths.pieces(tokens) if first else tokens
        return Said(exact(self._seed, index, words), tokens)


class Texts:
    """Those of a file, in an order that the seed draws; from the beginning again when they are used up."""

    def __init__(self, seed: int, texts: Sequence[str]) -> None:
        draw = random.Random(f"texts {seed}")
        self._texts = sorted(texts, key=lambda _: draw.random())

    def question(self, index: int, tokens: int, *, first: bool) -> Said:
        return Said(self._texts[index % len(self._texts)], None)


class One:
    """The same for everybody."""

    def __init__(self, text: str) -> None:
        self._text = text

    def question(self, index: int, tokens: int, *, first: bool) -> Said:
        return Said(self._text, None)
