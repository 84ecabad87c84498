"""What is said so that somebody can watch the engine: between the gallery, its watchers, and whoever it looks at.

Times are seconds on the engine's monotonic clock. Knows no frame's content: that is `turns.py`'s.
"""

from msgspec import Struct

from protocol.kinds import ConnectionControl, RequestId, SingleControl

# --- gallery <-> admission, scheduler ---------------------------------------------------------------------------------


class Look(SingleControl, frozen=True):
    """gallery -> admission, scheduler: say what nobody is told of: who is there, and who holds which memory.

    Nothing else follows from it. Asked only while somebody watches.
    """

    at: float


class SeenRequest(Struct, frozen=True, array_like=True):
    """A request as whoever holds it knows it. Counts are tokens."""

    request: RequestId
    tenant: str
    state: str
    """`queued`, `prefilling`, `decoding` or `preempted`."""
    received_at: float
    input_tokens: int
    max_output_tokens: int
    ttft_target_s: float | None = None
    itl_target_s: float | None = None
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    paused: bool = False
    preemptions: int = 0
    blocks: int = 0
    """It holds so many; those it shares count for each that does."""
    position: int | None = None
    """In the waiting room, from 1, as it was told last."""
    estimated_wait_s: float | None = None


class SchedulerSeen(SingleControl, frozen=True):
    """scheduler -> gallery: the answer to the `Look` of that time. `free + cached + used == total`, in blocks."""

    at: float
    free: int
    cached: int
    used: int
    total: int
    coefficients: tuple[float, ...]
    """What steps cost now, as in `CostsLearned`."""
    requests: tuple[SeenRequest, ...]


class RoomSeen(SingleControl, frozen=True):
    """admission -> gallery: the same of those who wait to be let in; of very many the first."""

    at: float
    requests: tuple[SeenRequest, ...]


# --- watcher <-> gallery ----------------------------------------------------------------------------------------------


class WatcherCame(ConnectionControl, frozen=True):
    """watcher -> gallery: somebody watches. Of `tenant`'s own requests he may know the ids."""

    tenant: str


class WatcherLeft(ConnectionControl, frozen=True):
    """watcher -> gallery: and no more."""


class FrameTaken(ConnectionControl, frozen=True):
    """watcher -> gallery: the socket has taken the last frame; there is room for one more."""


class Show(ConnectionControl, frozen=True):
    """gallery -> watcher: a frame of `turns.py`, encoded. The next one comes only after `FrameTaken`."""

    frame: bytes
