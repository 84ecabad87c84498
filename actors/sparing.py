"""What strangers can bring about as often as they like, and the log is told of seldom.

Knows kinds, and when each was told of.
"""

EVERY_S = 60.0


class Sparing:
    """Each kind is told at once, and then at most every `EVERY_S` seconds, with how many came in between."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def count(self, kind: str, at: float) -> int | None:
        """One has come. How many have since one was told of, this one included; None: it is not to be told of."""
        self._untold[kind] = self._untold.get(kind, 0) + 1
        told_at = self._told_at.get(kind)
        if told_at is not None and at - told_at < EVERY_S:
            return None
        self._told_at[kind] = at
        return self._untold.pop(kind)
