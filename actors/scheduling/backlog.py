"""How much prefill those who are here still have before them: what bounds how many more may come in.

Knows sequences. Knows no memory, no steps and no costs.
"""

from collections.abc import Iterable

from actors.scheduling.sequence import Sequence


class Backlog:
    """Tokens of prefill of all sequences that are here and not paused. Each keeps its own share in `counted`."""

    def __init__(self) -> None:
        self.tokens = 0

    def recount(self, sequence: Sequence) -> None:
        """Its share has changed, perhaps."""
        left = 0
        if sequence.reason is None and not sequence.paused:
            # What a step in flight reads is still before it.
            left = len(sequence.tokens) - (sequence.cached_hint if sequence.waiting else sequence.computed)
            if left == 1 and not sequence.waiting:
                left = 0
        self.tokens += left - sequence.counted
        sequence.counted = left

    def audit(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError when it is not the sum of what `sequences`, all that are here, have in it."""
        counted = sum(one.counted for one in sequences)
        assert self.tokens == counted, f"a backlog of {self.tokens} tokens was counted, {counted} are there"
