"""How much a step may hold: as configured, or less for a while after one found no memory on the device.

Plain numbers. Knows no sequences, no time and no device.
"""

GROW_AFTER = 64
"""Steps without a failure, until twice as much is tried again."""


class StepBounds:
    """At most `tokens` tokens of at most `rows` sequences."""

    def __init__(self, tokens: int, rows: int) -> None:
        self.tokens = self._most_tokens = tokens
        self.rows = self._most_rows = rows
        self._run = 0

    @property
    def most_rows(self) -> int:
        """Decode rows, of one token each, that fit into a step."""
        return min(self.tokens, self.rows)

    def ran(self) -> None:
        """A step was run."""
        if self.tokens < self._most_tokens or self.rows < self._most_rows:
            self._run += 1
            if self._run == GROW_AFTER:
                self._run = 0
                self.tokens = min(2 * self.tokens, self._most_tokens)
                self.rows = min(2 * self.rows, self._most_rows)

    def shrink(self, tokens: int, rows: int) -> bool:
        """A step of so many found no memory: half of it from now on. False when it was one token, which has no half.

        Working memory goes by tokens. Where every row had one, fewer rows are the smaller step, and a prompt that is
        read beside them may be cut as before.
        """
        self._run = 0
        if tokens == 1:
            return False
        if tokens > rows:
            self.tokens = min(self.tokens, tokens // 2)
        else:
            self.rows = min(self.rows, rows // 2)
        return True
