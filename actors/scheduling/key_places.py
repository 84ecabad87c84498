"""How many requests of one key may be inside at once, and which of them give way to others of the same key.

Whoever is inside and paused gets no time on the device, and leaves that to others; but what it holds has to be bounded,
and bounded by key: what the clients of one key leave unread costs no other key a place. Plain code. Knows keys and
requests by name, and who is read by nobody; knows no order among those who wait.
"""

from collections.abc import Callable, Mapping

from protocol.messages import RequestId

SURPLUS = 2
"""So many times as many of a key may be inside as it may have running: those beside them are paused."""


class KeyPlaces:
    """`max_running`: how many the device runs at once. `running_of`: of the keys that have a bound of their own.

    A request that nobody reads does not count as running. When a key has as many inside as may be and another of it
    wants to come in, the one that has been unread longest gives way.
    """

    def __init__(self, max_running: int, running_of: Mapping[str, int] | None = None) -> None:
        self._max_running = max_running
        self._running_of = dict(running_of or {})
        self._unread: dict[str, dict[RequestId, None]] = {}
        """By key; the one that has been unread longest comes first."""
        self._asked: set[RequestId] = set()
        """Those that have been asked to give way."""

    def running_of(self, key: str) -> int | None:
        """The key's own bound, if it has one."""
        return self._running_of.get(key)

    def may_begin(self, key: str, inside: int) -> bool:
        """Whether one more of the key may come in beside `inside` of them."""
        return inside < self._most_inside(key) and self._may_run(key, inside)

    def _most_inside(self, key: str) -> int:
        return SURPLUS * min(self._running_of.get(key, self._max_running), self._max_running)

    def _may_run(self, key: str, inside: int) -> bool:
        most = self._running_of.get(key)
        return most is None or inside - len(self._unread.get(key, ())) < most

    # --- who is read by nobody ---

    def leave_unread(self, key: str, request: RequestId) -> None:
        self._unread.setdefault(key, {})[request] = None

    def read(self, key: str, request: RequestId) -> None:
        """Somebody reads it again, or it is inside no more."""
        self._asked.discard(request)
        unread = self._unread.get(key)
        if unread is not None:
            unread.pop(request, None)
            if not unread:
                del self._unread[key]

    def give_way(self, inside: Callable[[str], int], wants: Callable[[str], bool]) -> list[RequestId]:
        """Those that are to give way now, each named once: one of every key that has too many inside, and of which
        another one `wants` to come in."""
        found = []
        for key, unread in self._unread.items():
            first = next(iter(unread))
            if first in self._asked or inside(key) < self._most_inside(key):
                continue
            if self._may_run(key, inside(key)) and wants(key):
                self._asked.add(first)
                found.append(first)
        return found
