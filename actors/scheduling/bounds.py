"""How much may wait to be let in, and how much of that may be one client's.

Plain numbers. Knows no request, no order and no time.
"""

from msgspec import Struct

LARGEST_PART = 8.0
"""A client may take a place only while it holds at most so many times what is left: the room is never all one's own.

(The dynamic threshold of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches",
1998.)
"""


class Bounds(Struct, frozen=True):
    """How much the waiting room holds: in number, in predicted work, and in predicted wait (both in seconds)."""

    places: int
    work_s: float
    wait_s: float

    def overfull(self, waiting: int, mine: int) -> str | None:
        """Whether too many wait, the newest, of whose client `mine` do, among them: a sentence, or None."""
        free = self.places - waiting
        if free < 0:
            return self._all_taken()
        if mine - 1 > LARGEST_PART * (free + 1):
            return f"{mine - 1:,} of {self.places:,} places to wait are taken by this client, the most it may have"
        return None

    def _all_taken(self) -> str:
        match self.places:
            case 0:
                return "There is no place to wait in"
            case 1:
                return "The one place to wait is taken"
            case places:
                return f"All {places:,} places to wait are taken"

    def overworked(self, work_s: float, my_work_s: float, new_s: float, *, first: bool) -> str | None:
        """Whether too much work waits, of which the newest is `new_s`, and `my_work_s` its client's: a sentence, or
        None. `first`: it is all that its client has waiting."""
        free_s = self.work_s - work_s
        if free_s < 0:
            return f"About {work_s - new_s:,.0f} s of work are waiting, and this is {new_s:,.0f} s more"
        if not first and my_work_s > LARGEST_PART * (free_s + new_s):
            return f"About {my_work_s - new_s:,.0f} s of work of this client are waiting, the most it may have"
        return None
