"""Who of many clients is next: fair by the work done for each.

Every client has a counter of the work that was done for it, and whoever has the least is next. This is the virtual
token counter of Sheng et al., "Fairness in Serving Large Language Models" (2024), in its variant that charges a
predicted answer when a request begins and corrects it when it ends. A client that comes, or comes back, starts no lower
than the last one that was next did, so that nobody saves up turns by being away: the virtual time of start-time fair
queueing (Goyal et al., 1996), which also keeps the place of those who ask again only when they have been answered.

Knows clients by name and work as a number. Knows no requests, no time, no reason why anybody waits.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

MOST_AWAY = 1024
"""Clients that are away and remembered, at most."""

Client = TypeVar("Client", bound=Hashable)


class VirtualCounters(Generic[Client]):
    """A counter for each client that waits or has something running, or had more than its share not long ago.

    Whoever is away is forgotten once all others have had as much.
    """

    def __init__(self) -> None:
        self._counters: dict[Client, float] = {}
        self._waiting: dict[Client, int] = {}
        self._running: dict[Client, int] = {}
        self._away: dict[Client, None] = {}
        """Those that have nothing here, and more behind them than the others; who left first comes first."""
        self._floor = 0.0
        """The counter, before its charge, of the last one that was next: nobody who waits has less."""

    def __contains__(self, client: Client) -> bool:
        return client in self._counters

    @property
    def idle(self) -> bool:
        """Whether nobody waits and nothing runs."""
        return not self._waiting and not self._running

    def counter(self, client: Client) -> float:
        return self._counters[client]

    def running(self, client: Client) -> int:
        """How many of its requests have begun and not ended."""
        return self._running.get(client, 0)

    def waiting(self, client: Client) -> int:
        return self._waiting.get(client, 0)

    def arrive(self, client: Client) -> None:
        """One more request of it waits."""
        self._counters[client] = max(self._counters.get(client, 0.0), self._floor)
        self._away.pop(client, None)
        self._waiting[client] = self._waiting.get(client, 0) + 1

    def leave(self, client: Client) -> None:
        """One that waited has gone without having begun."""
        self._less(self._waiting, client)
        self._goes(client)

    def begin(self, client: Client, work: float) -> None:
        """One that waited begins, and will take about `work`."""
        if self._counters[client] > self._floor:
            self._floor = self._counters[client]
            for other in [other for other in self._away if self._counters[other] <= self._floor]:
                self._forget(other)
        self._counters[client] += work
        self._less(self._waiting, client)
        self._running[client] = self._running.get(client, 0) + 1

    def end(self, client: Client, correction: float) -> None:
        """One that had begun has ended, and took that much more (or less) than was charged."""
        self._counters[client] += correction
        self._less(self._running, client)
        self._goes(client)

    def least(self, clients: Iterable[Client], tie: Callable[[Client], float]) -> Client | None:
        """Whoever has the least counter; among equals, the least `tie`. None: there are no `clients`."""
        return min(clients, key=lambda one: (self._counters[one], tie(one)), default=None)

    @staticmethod
    def _less(counts: dict[Client, int], client: Client) -> None:
        counts[client] -= 1
        if not counts[client]:
            del counts[client]

    def _goes(self, client: Client) -> None:
        """Perhaps it has nothing here any more."""
        if client in self._waiting or client in self._running:
            return
        self._away[client] = None
        if self._counters[client] <= self._floor:
            self._forget(client)
        elif len(self._away) > MOST_AWAY:
            self._forget(next(iter(self._away)))

    def _forget(self, client: Client) -> None:
        del self._away[client]
        del self._counters[client]
