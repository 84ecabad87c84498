"""What each key has asked within the last minute, and whether it may ask more.

Plain synchronous code: time comes in as an argument. Knows keys by name. Outlives the worker: what was asked before it
was started anew still counts.
"""

from collections import deque
from collections.abc import Mapping

from protocol import errors
from protocol.errors import WireError

WINDOW_S = 60.0


class Allowances:
    """Requests a minute, of the keys that have a bound for them. Exact: within any 60 seconds there are no more."""

    def __init__(self, per_minute: Mapping[str, int] | None = None) -> None:
        self._per_minute = dict(per_minute or {})
        self._asked: dict[str, deque[float]] = {}
        """When, oldest first; never more than the bound."""

    def wait_s(self, key: str, now: float, ahead: int = 0) -> float:
        """Seconds until it may ask again: 0 when it may now. `ahead`: so many have been asked and are not counted yet,
        and all of them are taken to be."""
        most = self._per_minute.get(key)
        if most is None:
            return 0.0
        asked = self._asked.get(key, deque())
        while asked and now - asked[0] >= WINDOW_S:
            asked.popleft()
        too_many = len(asked) + ahead + 1 - most
        if too_many <= 0:
            return 0.0
        return WINDOW_S - (now - asked[too_many - 1]) if too_many <= len(asked) else WINDOW_S

    def refusal(self, key: str, now: float, ahead: int = 0) -> WireError | None:
        """Why it may not ask now, if it may not."""
        wait_s = self.wait_s(key, now, ahead)
        if not wait_s:
            return None
        what = f"This key has asked {self._per_minute[key]:,} times within a minute, the most it may"
        return errors.rate_limit_exceeded(what, wait_s * 1e3)

    def count(self, key: str, now: float) -> None:
        """It has asked, and was accepted."""
        if key in self._per_minute:
            self._asked.setdefault(key, deque()).append(now)
