"""The scheduler's way to the detokeniser: what goes there, step by step, and how much of it is still under way.

Knows `Tokens` by their numbers. Knows no sequence and no step's content.
"""

from actors.actor import Address, Clock
from protocol.messages import CloseStream, FinishReason, RequestId, TokenRow, Tokens


class TokenLane:
    """At most `most` steps' tokens are under way, those of steps that still run among them: so it is never full."""

    def __init__(self, detokeniser: Address[Tokens | CloseStream], clock: Clock, most: int) -> None:
        self._detokeniser = detokeniser
        self._clock = clock
        self._most = most
        self._sent = 0
        self._taken = 0
        self._ends: list[tuple[RequestId, FinishReason]] = []

    @property
    def all_taken(self) -> bool:
        """Everything that was sent has been turned into text."""
        return self._taken == self._sent

    @property
    def owes_ends(self) -> bool:
        return bool(self._ends)

    def has_room(self, steps_in_flight: int) -> bool:
        """Whether one more `Tokens` can be sent beside those that the steps in flight will bring."""
        return self._sent - self._taken + steps_in_flight < self._most

    def end(self, request: RequestId, reason: FinishReason) -> None:
        """It ends without a token: that goes with the next that is sent, for it must not overtake those before it."""
        self._ends.append((request, reason))

    def send(self, rows: tuple[TokenRow, ...]) -> None:
        self._sent += 1
        taken = self._detokeniser.offer(Tokens(self._sent, self._clock(), rows, tuple(self._ends)))
        assert taken, "the detokeniser's lane holds every step whose tokens may be under way"
        self._ends.clear()

    def take(self, step: int) -> None:
        """Every `Tokens` up to this has been turned into text."""
        # More than was sent: it is about the scheduler that was here before this one.
        if step <= self._sent:
            self._taken = max(self._taken, step)
