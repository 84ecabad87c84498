"""Stop texts: which part of an answer may be shown before it is known whether one is beginning.

Knows strings. Knows nothing of tokens.
"""


class StopText:
    """Text goes in piece by piece; what can no longer be part of a stop text comes out.

    The stop text that is complete first ends the answer; of two that are complete with the same character, the one
    that began first. So where an answer ends does not depend on how it was cut into pieces.
    """

    __slots__ = ("_held", "_reach", "_stops", "found")

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop text would end every answer before it began"
        self._stops = stops
        self._reach = max(map(len, stops), default=0) - 1
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """What may be shown now that `piece` has come. Nothing more may be pushed once `found`."""
        assert not self.found, "nothing follows a stop text"
        if not self._stops:
            return piece
        text = self._held + piece
        # A match that begins before the held text would have been held from there: searching from it misses none.
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.found = True
            self._held = ""
            return text[: min(ends)[1]]
        held_from = self._held_from(text)
        self._held = text[held_from:]
        return text[:held_from]

    def release(self) -> str:
        """The held text, when the answer has ended without a stop text."""
        held, self._held = self._held, ""
        return held

    def _held_from(self, text: str) -> int:
        """Where the longest end of `text` begins that may become a stop text."""
        earliest = len(text)
        reach = max(0, len(text) - self._reach)
        for stop in self._stops:
            at = text.find(stop[0], max(reach, len(text) - len(stop) + 1), earliest)
            while at >= 0:
                if stop.startswith(text[at:]):
                    earliest = at
                    break
                at = text.find(stop[0], at + 1, earliest)
        return earliest
