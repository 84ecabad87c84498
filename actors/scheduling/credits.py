"""What the scheduler has granted, what has been let in of it, and who comes in beside when nothing is left.

Plain counters. Knows tokens and clients; knows no order and no fairness between keys, which come in as arguments.
"""

from actors.scheduling.guests import Guest
from actors.scheduling.turns import Client
from protocol.messages import Credit

SMALL = 4
"""So many times its own prompt, and no less, is what one waits for that comes in beside it."""


class Credits:
    """Requests and prompt tokens that may be let in, as running totals.

    The last one let in may go over in tokens: it has filled the room. From then on only who is small comes in, until
    as much has been read.
    """

    def __init__(self) -> None:
        self._granted = Credit(0, 0)
        self._let_in = 0
        self._let_in_tokens = 0
        self.filled_by: Client | None = None
        """Whose request it was after which no credits in tokens were left."""
        self._beside = 0
        """Tokens let in without such credits, less what has been read since: about what is unread of those prompts."""

    def grant(self, credit: Credit) -> None:
        """The scheduler has room for more, or has at least read some of what it has."""
        before = self._granted
        self._granted = Credit(max(before.granted, credit.granted), max(before.tokens, credit.tokens))
        self._beside = max(0, self._beside - (self._granted.tokens - before.tokens))
        if self._overdrawn < 0:
            self.filled_by, self._beside = None, 0

    @property
    def places(self) -> bool:
        """Whether one more may come, as far as their number goes."""
        return self._let_in < self._granted.granted

    @property
    def tokens(self) -> bool:
        """Whether credits in tokens are left."""
        return self._overdrawn < 0

    @property
    def _overdrawn(self) -> int:
        """By how many tokens more has been let in than there were credits for. Below 0: credits are left."""
        return self._let_in_tokens - self._granted.tokens

    def small_beside(self, guest: Guest, own: bool) -> bool:
        """Whether its prompt is small compared with what was let in too much, those beside left out.

        So however many come in, the next one may if it is smaller still, and together they are less than what they came
        in beside. `own`: it is of the client that filled the room, and adds no more than a quarter.
        """
        too_much, unread = self._overdrawn - self._beside, max(1, guest.tokens - guest.cached)
        if own:
            return SMALL * (self._beside + unread) <= too_much
        return self._beside + SMALL * unread <= too_much

    def use(self, guest: Guest) -> bool:
        """It is let in. True: it came in beside."""
        beside = not self.tokens
        self._let_in += 1
        self._let_in_tokens += guest.tokens
        if beside:
            self._beside += guest.tokens
        elif not self.tokens:
            self.filled_by = guest.client
        return beside
