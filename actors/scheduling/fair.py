"""Who of many clients is next: fair by the work done for each.

Every client has a counter of the work that was done for it, and whoever has the least is next. A client that comes, or
comes back, starts at the least counter of those who wait, so that nobody saves up turns by being away. This is the
virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (2024), in its variant that charges a
predicted answer when a request begins and corrects it when it ends.

Knows clients by name and work as a number. Knows no requests, no time, no reason why anybody waits.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Client = TypeVar("Client", bound=Hashable)


class VirtualCounters(Generic[Client]):
    """A counter for each client that waits or has something running; the others are forgotten."""

    def __init__(self) -> None:
        self._counters: dict[Client, float] = {}
        self._waiting: dict[Client, int] = {}
        self._running: dict[Client, int] = {}
        self._floor = 0.0
        """What a client starts at when nobody else waits: the counter of the last one that was next."""

    def __contains__(self, client: Client) -> bool:
        return client in self._counters

    def counter(self, client: Client) -> float:
        return self._counters[client]

    def running(self, client: Client) -> int:
        """How many of its requests have begun and not ended."""
        return self._running.get(client, 0)

    def waiting(self, client: Client) -> int:
        return self._waiting.get(client, 0)

    def arrive(self, client: Client) -> None:
        """One more request of it waits."""
        if client not in self._waiting:
            least = min((self._counters[other] for other in self._waiting), default=self._floor)
            self._counters[client] = max(self._counters.get(client, 0.0), least)
        self._waiting[client] = self._waiting.get(client, 0) + 1

    def leave(self, client: Client) -> None:
        """One that waited has gone without having begun."""
        self._less(self._waiting, client)
        self._forget(client)

    def begin(self, client: Client, work: float) -> None:
        """One that waited begins, and will take about `work`."""
        self._floor = max(self._floor, self._counters[client])
        self._counters[client] += work
        self._less(self._waiting, client)
        self._running[client] = self._running.get(client, 0) + 1

    def end(self, client: Client, correction: float) -> None:
        """One that had begun has ended, and took that much more (or less) than was charged."""
        self._counters[client] += correction
        self._less(self._running, client)
        self._forget(client)

    def least(self, clients: Iterable[Client], tie: Callable[[Client], float]) -> Client | None:
        """Whoever has the least counter; among equals, the least `tie`. None: there are no `clients`."""
        return min(clients, key=lambda one: (self._counters[one], tie(one)), default=None)

    @staticmethod
    def _less(counts: dict[Client, int], client: Client) -> None:
        counts[client] -= 1
        if not counts[client]:
            del counts[client]

    def _forget(self, client: Client) -> None:
        if client not in self._waiting and client not in self._running:
            del self._counters[client]
