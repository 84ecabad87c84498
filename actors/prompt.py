"""A prompt within the context, if its client allows the oldest turns to be left out.

Plain code that runs in the tokeniser's thread as well. Knows nothing of templates, nor of who asked.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from protocol.input_items import Message


class Prompts(Protocol):
    """What the tokeniser needs of a vocabulary."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens up to where the answer begins. Raises `PromptRefused`."""
        ...


def fit_prompt(prompts: Prompts, messages: Sequence[Message], most: int | None) -> bytes:
    """The prompt as little-endian int32. Past `most` tokens whole turns are left out, the oldest first.

    A turn begins with a user message; system and developer messages stay, and so does the newest turn, even when the
    prompt is still too long with it alone. `most` None: nothing is left out.
    """
    tokens = prompts.prompt(messages)
    if most is not None and len(tokens) > most:
        tokens = _cut(prompts, messages, most) or tokens
    return np.asarray(tokens, dtype="<i4").tobytes()


def _cut(prompts: Prompts, messages: Sequence[Message], most: int) -> list[int] | None:
    """Fewer turns, as many as fit; the newest alone if even it does not. None when there is only one."""
    beginnings = [index for index, message in enumerate(messages) if message.role == "user"][1:]
    if not beginnings:
        return None

    def without_before(beginning: int) -> list[int]:
        kept = [m for n, m in enumerate(messages) if n >= beginning or m.role in ("system", "developer")]
        return prompts.prompt(kept)

    # Fewer turns make fewer tokens: a handful of tries instead of one a turn.
    first = bisect_left(beginnings, True, key=lambda beginning: len(without_before(beginning)) <= most)
    return without_before(beginnings[min(first, len(beginnings) - 1)])
