"""How much one socket may ask for and leave unread. Knows numbers, and nothing of who keeps to them."""

from msgspec import Struct


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """How much one socket may ask for and leave unread."""

    lanes: int = 128
    running: int = 64
    """Responses at once; the rest wait in their lanes."""
    waiting_per_lane: int = 32
    waiting_bytes: int = 16 * 2**20
    """In the frames of all requests that wait in lanes."""
    messages_per_s: float = 200.0
    messages_at_once: int = 1_000
    """After a silence. Beyond that, requests are refused; a client that sends as many again is closed."""
    refusals: int = 1024
    """Refusals that wait to be told. A client that earns more than that is not listening, and is closed."""
    pause_chars: int = 16_384
    """Unsent text of one response from which on it gets no more time on the GPU, until that text is taken."""
    turn_bytes: int = 16 * 2**10
    """Frames of text that are made at once; the last may exceed it. Frames cannot be called back by a cancel."""
    unsent_bytes: int = 4 * 2**20
    """Frames that were added to others that waited for the socket. Text is not among them: it is not made into frames
    before there is room."""
    stall_s: float = 1.0
    """A frame that the socket has not taken for this long means that its reader has stopped."""
    close_s: float = 2.0
    """How long the last events may take to be sent before the socket is closed over them."""
