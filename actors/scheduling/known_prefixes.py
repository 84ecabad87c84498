"""Which beginnings of prompts have been let in before, and so may be in the KV cache.

A guess, for whoever has to predict work before the scheduler, who knows, can be asked: nothing is known here of blocks,
nor of what has left the cache since. It is counted in pieces, so a guess is at most a piece too short.
"""

from collections import OrderedDict

PIECE_TOKENS = 256
_PIECE_BYTES = 4 * PIECE_TOKENS


class KnownPrefixes:
    """The beginnings seen last, at most `most` pieces of them, each tenant's for itself."""

    def __init__(self, most: int = 16_384) -> None:
        self._most = most
        self._seen: OrderedDict[int, None] = OrderedDict()

    def add(self, tenant: str, tokens: bytes) -> None:
        """`tokens` (little-endian int32) are going to be computed."""
        name = hash(tenant)
        for start in range(0, len(tokens) - _PIECE_BYTES + 1, _PIECE_BYTES):
            name = hash((name, tokens[start : start + _PIECE_BYTES]))
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def guess(self, tenant: str, tokens: bytes) -> int:
        """How many of `tokens`, from the first, may be in the cache."""
        name = hash(tenant)
        for start in range(0, len(tokens) - _PIECE_BYTES + 1, _PIECE_BYTES):
            name = hash((name, tokens[start : start + _PIECE_BYTES]))
            if name not in self._seen:
                return start // 4
        # The newest token is always computed, for the next to be chosen.
        return min(len(tokens) // _PIECE_BYTES * PIECE_TOKENS, len(tokens) // 4 - 1)
