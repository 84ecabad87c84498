"""What the scheduler is told of a request that has not come yet: control messages overtake data.

Knows ids, and what was said of each. Knows no sequence and nobody's address.
"""

from actors.tombstones import Tombstones
from protocol.messages import RequestId


class EarlyWords:
    """Kept until the request comes; of one that never does, cancels and ends of patience are dropped by age.

    Whether it is paused is not: its connection says so again, or cancels it. At most `capacity` are kept, too.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._cancelled = Tombstones(capacity)
        self._impatient = Tombstones(capacity)
        self._asleep: dict[RequestId, bool] = {}
        """Those that are paused: whether because nobody reads them."""
        self._capacity = capacity

    def cancel(self, request: RequestId, now: float) -> None:
        self._cancelled.bury(request, now)
        self._asleep.pop(request, None)

    def lose_patience(self, request: RequestId, now: float) -> None:
        """The time that it may wait for its first step is over."""
        self._impatient.bury(request, now)

    def set_paused(self, request: RequestId, paused: bool, unread: bool) -> None:
        self._asleep.pop(request, None)
        if paused:
            if len(self._asleep) >= self._capacity:
                del self._asleep[next(iter(self._asleep))]
            self._asleep[request] = unread

    def sweep(self, now: float) -> None:
        self._cancelled.sweep(now)
        self._impatient.sweep(now)

    # --- it has come: each is said once ---

    def cancelled(self, request: RequestId) -> bool:
        return self._cancelled.rises(request)

    def impatient(self, request: RequestId) -> bool:
        return self._impatient.rises(request)

    def paused(self, request: RequestId) -> bool | None:
        """None: it is not. Else whether because nobody reads it."""
        return self._asleep.pop(request, None)
