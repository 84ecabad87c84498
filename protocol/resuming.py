"""What is said of a response whose socket was lost: between the connection that asked for it and the one it is read on.

The connection a response was asked on stays its home to the end, with or without a socket: what the engine says of it
comes there, and who reads it is known there alone. A newer connection on which a client comes back is its reader from
afar. Every attempt of a connection to read has a number, its `visit`: what still comes of an older one is not heard.
Times are seconds on the engine's monotonic clock. Knows no events' content.
"""

from protocol.errors import WireError
from protocol.kinds import ConnectionId, Merging, RequestControl, SingleControl

# --- the reader's connection -> the response's home -------------------------------------------------------------------


class _OfAReader(RequestControl, frozen=True):
    """Keyed by the reader too: two that want the same response are both to be answered."""

    connection: ConnectionId
    """The reader's."""
    visit: int

    @property
    def key(self) -> object:
        return self.request, self.connection, self.visit


class Resume(_OfAReader, frozen=True):
    """A client has come back for this response, and has had every event up to `starting_after` (-1: none).

    Answered by `Relayed` or `RelayEnded`. Whoever read it until now is told that it is read elsewhere.
    """

    starting_after: int


class RelayTaken(_OfAReader, frozen=True):
    """All that was relayed has been handed to the socket: there is room for more."""


class RelayCancel(_OfAReader, frozen=True):
    """The reader wants it no more. `closing`: nor can it wait, because its socket is about to be closed; then the end
    is told at once, as `failed` where there is an `error`."""

    closing: bool = False
    error: WireError | None = None


class ReaderLeft(_OfAReader, frozen=True):
    """The reader's socket is gone. `lost`: without a goodbye, so it may come back."""

    lost: bool


# --- the response's home -> the reader's connection -------------------------------------------------------------------


class Relayed(Merging, frozen=True):
    """Frames for the reader, in order. `last`: the terminal event is among them, or has been told before."""

    visit: int
    frames: tuple[bytes, ...]
    last: bool = False

    @property
    def key(self) -> object:
        return self.request, self.visit

    def join(self, newer: "Relayed") -> "Relayed":
        """These frames, then those of `newer`."""
        return Relayed(self.request, self.visit, self.frames + newer.frames, newer.last)


class RelayEnded(RequestControl, frozen=True):
    """Nothing (more) of it will be relayed to this visit, and why."""

    visit: int
    error: WireError

    @property
    def key(self) -> object:
        return self.request, self.visit


# --- the response's home <-> the reaper -------------------------------------------------------------------------------


class Detached(RequestControl, frozen=True):
    """home -> reaper: nobody reads this response; it is kept until then. None: it is read again, or is no more."""

    connection: ConnectionId
    """Its home."""
    until: float | None


class GraceOver(RequestControl, frozen=True):
    """reaper -> home: its time has passed. Also from one home to another whose place it takes; `at` is then
    infinity."""

    at: float


# --- inside a connection ----------------------------------------------------------------------------------------------


class NothingLeft(SingleControl, frozen=True):
    """A home -> itself: it holds nothing any more. Behind it nobody's `Resume` can wait to be answered."""
