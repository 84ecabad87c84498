"""How many messages or frames a socket may send: a bucket that fills as time passes. Knows nothing of what they say."""


class MessageRate:
    """`per_s` messages a second, and `at_once` of them after a silence."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s = per_s
        self._most = float(at_once)
        self._left = self._most
        self._at: float | None = None
        self.over = 0.0
        """Messages too many, forgotten as fast as others are let in: whoever goes on with more than twice the rate has
        ever more, though some find room in between."""

    def take(self, at: float, worth: int = 1) -> float:
        """One has come that counts as `worth`. Returns in how many seconds there would be room for it, 0 when there
        is."""
        if self._at is not None:
            passed = max(0.0, at - self._at) * self._per_s
            self._left = min(self._most, self._left + passed)
            self.over = max(0.0, self.over - passed)
        self._at = at
        if self._left < worth:
            self.over += 1
            return (worth - self._left) / self._per_s
        self._left -= worth
        return 0.0
