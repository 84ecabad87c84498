"""What is said of a socket: inside its connection, and between the connection and those that outlive it.

Times are seconds on the engine's monotonic clock. Knows no frames' content.
"""

from protocol.errors import WireError
from protocol.kinds import ConnectionControl, Data, SingleControl

# --- inside a connection ----------------------------------------------------------------------------------------------


class FrameReceived(Data, frozen=True):
    """A connection's reader -> its handler: one frame as it came. A `binary` one is no request, but has its place."""

    frame: bytes
    at: float
    binary: bool = False


class SocketLost(SingleControl, frozen=True):
    """A connection's reader or writer -> its handler: the socket is closed, by whatever cause."""

    code: int
    at: float


class WriterIdle(SingleControl, frozen=True):
    """A connection's writer -> its handler: everything has been handed to the socket; there is room for text."""


# --- connection <-> reaper, tokeniser ---------------------------------------------------------------------------------


class WatchConnection(ConnectionControl, frozen=True):
    """connection -> reaper: it is open since `opened_at`, and was last `active_at`.

    `busy`: it waits for something of ours, so it is not idle. `stalled_since`: since then its reader has taken hardly
    anything.
    """

    opened_at: float
    active_at: float
    busy: bool
    stalled_since: float | None = None


class CloseConnection(ConnectionControl, frozen=True):
    """reaper -> connection: close the socket with this code and reason, every response ended first."""

    code: int
    reason: str
    error: WireError | None = None
    """Given when running answers are to be told that they failed and why; None: they are cancelled."""
    keeps: bool = False
    """Responses that can be resumed are not ended, but kept for a client who comes back; the code is 4006 then."""


class ConnectionClosed(ConnectionControl, frozen=True):
    """connection -> tokeniser, reaper: this socket is gone; forget what only it could use."""
