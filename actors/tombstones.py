"""Cancels that arrived before what they cancel.

A control message overtakes data, so an actor may hear of a cancel before the request. It keeps the id here until the
request arrives behind it. Ids that never arrive (their request had just ended) are dropped by age.
"""

from protocol.messages import RequestId


class Tombstones:
    """Request ids with the time they were buried; at most `capacity`, the oldest go first."""

    def __init__(self, capacity: int = 4096, kept_s: float = 60.0) -> None:
        self._buried: dict[RequestId, float] = {}
        self._capacity = capacity
        self._kept_s = kept_s

    def bury(self, request: RequestId, now: float) -> None:
        self._buried.pop(request, None)
        if len(self._buried) >= self._capacity:
            del self._buried[next(iter(self._buried))]
        self._buried[request] = now

    def rises(self, request: RequestId) -> bool:
        """Whether this arriving request was cancelled ahead of its arrival. Forgets it."""
        return self._buried.pop(request, None) is not None

    def sweep(self, now: float) -> None:
        self._buried = {request: at for request, at in self._buried.items() if now - at < self._kept_s}

    def __len__(self) -> int:
        return len(self._buried)
