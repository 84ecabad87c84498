"""How many are at the doors: in all, of each address, those who have not said yet what they want, and those who watch.

Knows limits and counts. Knows no sockets and no keys: an address or a tenant is what it is told.
"""

from collections import Counter
from collections.abc import Callable

from actors.origins import is_loopback
from actors.proxies import neighbourhood

MOST_OF_AN_ADDRESS = 256
"""Unless it is set. Of this machine's own address any number: whoever is on it can do worse."""
LARGEST_PART = 8
"""One of so many who have not said yet what they want may be of one address."""


class Crowd:
    """Whoever `knocks` has opened a connection and asked for nothing yet; whoever `enters` has an open socket.

    `of_an_address`: None is `MOST_OF_AN_ADDRESS`. `trusts`: those who knock for many others, proxies.
    """

    def __init__(self, most: int, of_an_address: int | None, knocking: int, trusts: Callable[[str], bool]) -> None:
        self._most = most
        self._of_an_address = of_an_address
        self._most_knocking = knocking
        self._trusts = trusts
        self._inside: Counter[str] = Counter()
        self._knocking: Counter[str] = Counter()

    def knock(self, peer: str) -> bool:
        """False, and it is not counted, when too many do."""
        whose = neighbourhood(peer)
        if self._knocking.total() >= self._most_knocking:
            return False
        may_be_many = is_loopback(whose) or self._trusts(peer)
        if not may_be_many and self._knocking[whose] >= max(1, self._most_knocking // LARGEST_PART):
            return False
        self._knocking[whose] += 1
        return True

    def knocked(self, peer: str) -> None:
        """It has been let in, or has gone."""
        _less(self._knocking, neighbourhood(peer))

    def limit_reached(self, address: str) -> str | None:
        """What keeps one more of this address out, in a sentence without its full stop; None: nothing."""
        if self._inside.total() >= self._most:
            return f"{_connections(self._most)} open, the most this server takes"
        whose = neighbourhood(address)
        most = self._of_an_address
        if most is None and not is_loopback(whose):
            most = MOST_OF_AN_ADDRESS
        if most is None or self._inside[whose] < most:
            return None
        return f"{_connections(most, ' from your address')} open, the most one address may have"

    def enter(self, address: str) -> None:
        self._inside[neighbourhood(address)] += 1

    def leave(self, address: str) -> None:
        _less(self._inside, neighbourhood(address))


class Watchers:
    """Whoever watches, of `most` at once. No key may have more places than are left free, so that none can take them
    all from the others; the tenant "", who needs no key, is everyone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._watching: Counter[str] = Counter()

    def full(self, tenant: str) -> bool:
        """There is no place for one more of this tenant."""
        free = self._most - self._watching.total()
        return free <= (self._watching[tenant] if tenant else 0)

    def enter(self, tenant: str) -> None:
        self._watching[tenant] += 1

    def leave(self, tenant: str) -> None:
        _less(self._watching, tenant)


def _connections(count: int, whose: str = "") -> str:
    return f"1 connection{whose} is" if count == 1 else f"{count:,} connections{whose} are"


def _less(counts: Counter[str], whose: str) -> None:
    counts[whose] -= 1
    if not counts[whose]:
        del counts[whose]
