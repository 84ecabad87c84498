"""What is usual of answers: how long they get, and how much later than they might their first tokens come.

Plain numbers: time comes in as an argument. Knows sequences that have come so far; decides nothing.
"""

from collections import deque

from actors.scheduling.sequence import Sequence

USUAL_OUTPUT_TOKENS = 128.0
"""Of an answer, before any has ended."""
USUAL_MEMORY = 0.95
DELAYS_KEPT, DELAYS_KNOWN, DELAY_SHARE = 64, 8, 0.8
"""First tokens come later than their prefill alone takes: how much, for all but a fifth of the latest ones."""


class Usual:
    """`output_tokens`: of an answer, smoothed over those that have ended."""

    def __init__(self) -> None:
        self.output_tokens = USUAL_OUTPUT_TOKENS
        self._delays: deque[float] = deque(maxlen=DELAYS_KEPT)

    @property
    def delay_s(self) -> float:
        """How much later than its prefill alone takes a first token comes. 0 before enough have come."""
        delays = sorted(self._delays)
        return delays[int(DELAY_SHARE * len(delays))] if len(delays) >= DELAYS_KNOWN else 0.0

    def ended(self, sequence: Sequence) -> None:
        """Its answer is whole."""
        if sequence.output_tokens:
            self.output_tokens = USUAL_MEMORY * self.output_tokens + (1 - USUAL_MEMORY) * sequence.output_tokens

    def first_token(self, sequence: Sequence, now: float) -> None:
        """Its first token is there. How much later than if it had had the device to itself?

        Whoever could not have been in time even so had to stand aside, and says nothing of the others.
        """
        came_at = sequence.last_token_at
        if came_at + sequence.alone_s <= sequence.first_token_due:
            self._delays.append(max(0.0, now - came_at - sequence.alone_s))
