"""What the reaper hears and says: whose time is up, what hangs, what leaked, and when everyone has gone.

Times are seconds on the engine's monotonic clock. What it says of sockets is in `sockets.py`.
"""

from protocol.kinds import RequestControl, RequestId, SingleControl

# --- of requests ------------------------------------------------------------------------------------------------------


class Watch(RequestControl, frozen=True):
    """admission -> reaper: this request exists and will be `Released`; say when its time is up.

    `wait_until` is how long it may wait for its first step, `deadline_at` the request's own bound; None: no bound.
    """

    wait_until: float
    deadline_at: float | None


class Expire(RequestControl, frozen=True):
    """reaper -> admission -> scheduler: a clock ran out. `waiting`: it concerns only a request that no step ran yet."""

    at: float
    waiting: bool

    @property
    def key(self) -> object:
        # The patience of the waiting room must not replace a deadline, which also ends a request that runs.
        return self.request, self.waiting


# --- of everything ----------------------------------------------------------------------------------------------------


class Tick(SingleControl, frozen=True):
    """A timer -> whose it is: the reaper's, or the gallery's while somebody watches."""

    at: float


class Sweep(SingleControl, frozen=True):
    """reaper -> tokeniser, admission, scheduler, executor: drop what was kept too long, look for what hangs."""

    at: float


class AuditRequest(SingleControl, frozen=True):
    """reaper -> scheduler: count your blocks."""

    at: float


class AuditReport(SingleControl, frozen=True):
    """scheduler -> reaper: `free + cached + used == total`, or something has leaked. `requests`: all it still holds."""

    at: float
    free: int
    cached: int
    used: int
    total: int
    requests: tuple[RequestId, ...]


# --- of the end -------------------------------------------------------------------------------------------------------


class Drain(SingleControl, frozen=True):
    """engine -> reaper, admission, connections: accept nothing new; what runs may end until `until`."""

    until: float


class Drained(SingleControl, frozen=True):
    """reaper -> engine: nothing is running any more, or the grace time is over."""

    at: float
