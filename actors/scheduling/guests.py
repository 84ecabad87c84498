"""One who waits to be let in, and where it stands.

Knows a request and what is predicted of it. Knows no order and no bounds: those are the waiting room's.
"""

from msgspec import Struct

from actors.scheduling.turns import Client
from protocol.messages import Enqueue


class Guest(Struct, eq=False):
    """One place in the waiting room."""

    enqueue: Enqueue
    since: float
    number: int
    cached: int
    """Tokens of its prompt that may be in the cache, when it was looked at last."""
    work_s: float
    """Predicted, of the device."""
    charge: float
    """What its client is charged when it goes in, in weighted tokens."""
    first_token_due: float
    late: bool = False
    overtaken: float = 0.0
    """Charges of those who came in beside a backlog, past this one whose turn it was."""
    told: tuple[int, float] | None = None
    """Place and estimate, as they were told last."""

    @property
    def client(self) -> Client:
        return self.enqueue.tenant, self.enqueue.connection

    @property
    def tokens(self) -> int:
        return len(self.enqueue.tokens) // 4


class Place(Struct, frozen=True):
    """Where one stands, from 1, and how many seconds until it is let in."""

    guest: Guest
    position: int
    wait_s: float
