"""Whose prompt is being read, and how much of it their readers have been told.

Plain code: time comes in as an argument. Knows no actors and no policy.
"""

import math

from actors.scheduling.sequence import Sequence

TOLD_EVERY_S = 0.5
"""Seconds between two words about one prompt. One that is read sooner is told of once, when it begins."""


class _Told:
    """One prompt: when its reader was told last, and how many of its tokens."""

    __slots__ = ("at", "sequence", "tokens")

    def __init__(self, sequence: Sequence, at: float) -> None:
        self.sequence = sequence
        self.at = at
        self.tokens = sequence.prompt_tokens_read


class Reading:
    """Every sequence from the first step that runs it to its first token."""

    def __init__(self) -> None:
        self._told: list[_Told] = []
        self._due_at = math.inf
        """Before then there is nothing to tell: this is asked after every step."""

    def begin(self, sequence: Sequence, now: float) -> None:
        """The first step that runs it is planned, and its reader is told so now."""
        self._told.append(_Told(sequence, now))
        self._due_at = min(self._due_at, now + TOLD_EVERY_S)

    def news(self, now: float) -> list[Sequence]:
        """Those whose readers are to be told again, and count as told by this."""
        if now < self._due_at:
            return []
        self._told = [one for one in self._told if not one.sequence.has_begun and one.sequence.reason is None]
        news = []
        for told in self._told:
            read = told.sequence.prompt_tokens_read
            if now >= told.at + TOLD_EVERY_S and read > told.tokens:
                told.at = now
                told.tokens = read
                news.append(told.sequence)
        self._due_at = min((one.at for one in self._told), default=math.inf) + TOLD_EVERY_S
        return news
