"""In which order those who wait will be let in, worked out ahead if nobody else comes.

The rules are those of `waiting_room.py`, by the counters that `fair.py` keeps: this is what they will come to. Knows
guests, their clients and charges. Lets nobody in and changes nothing.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

Client = tuple[str, int]
"""Key name and socket."""

LATE_SHARE = 0.1
"""Of the work let in, for those whose first token is late already."""


class Waits(Protocol):
    """Of one who waits, what its turn depends on."""

    @property
    def client(self) -> Client: ...
    @property
    def charge(self) -> float: ...
    @property
    def work_s(self) -> float: ...
    @property
    def first_token_due(self) -> float: ...
    @property
    def number(self) -> int: ...


class Served:
    """What each key and each client will have been charged by then: looked up once, and counted on from there."""

    def __init__(self, of_key: Callable[[str], float], of_client: Callable[[Client], float]) -> None:
        self._of_key = of_key
        self._of_client = of_client
        self._keys: dict[str, float] = {}
        self._clients: dict[Client, float] = {}

    def key(self, key: str) -> float:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = self._of_key(key)
        return found

    def client(self, client: Client) -> float:
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = self._of_client(client)
        return found

    def charge(self, client: Client, charge: float) -> None:
        self._keys[client[0]] = self.key(client[0]) + charge
        self._clients[client] = self.client(client) + charge


One = TypeVar("One", bound=Waits)
Entry = tuple[float, int, One]
"""When its first token is due, its number, and itself."""


class Queues(Generic[One]):
    """Those in time, or the late: the client that was served least goes first, of the key that was.

    Every key and every client with somebody here is listed once. Counters only grow, so an entry that is no longer true
    is found when it comes up, and put back where it belongs.
    """

    def __init__(self, queues: Mapping[Client, list[Entry[One]]], served: Served) -> None:
        self._served = served
        self._queues = {client: list(queue) for client, queue in queues.items()}
        self.least_charge = min([one.charge for queue in queues.values() for _, _, one in queue], default=math.inf)
        """No one has less. Infinity: nobody has ever been here."""
        self._clients: dict[str, list[tuple[float, float, Client]]] = {}
        for client, queue in self._queues.items():
            entry = (served.client(client), queue[0][0], client)
            self._clients.setdefault(client[0], []).append(entry)
        self._keys: list[tuple[float, float, str]] = []
        for key, mine in self._clients.items():
            heapq.heapify(mine)
            self._keys.append((served.key(key), min([due for _, due, _ in mine]), key))
        heapq.heapify(self._keys)

    def first(self) -> One | None:
        while self._keys:
            counter, _, key = self._keys[0]
            mine = self._clients[key]
            queue = self._first_queue(mine)
            if queue is None:
                heapq.heappop(self._keys)
                del self._clients[key]
            elif counter < (now := self._served.key(key)):
                heapq.heapreplace(self._keys, (now, mine[0][1], key))
            else:
                return queue[0][2]
        return None

    def _first_queue(self, mine: list[tuple[float, float, Client]]) -> list[Entry[One]] | None:
        """Of one key's clients."""
        while mine:
            counter, due, client = mine[0]
            queue = self._queues[client]
            if not queue:
                heapq.heappop(mine)
                del self._queues[client]
            elif counter < (now := self._served.client(client)) or due != queue[0][0]:
                heapq.heapreplace(mine, (now, queue[0][0], client))
            else:
                return queue
        return None

    def take(self, one: One) -> Entry[One]:
        """`one` was the first."""
        return heapq.heappop(self._queues[one.client])

    def put(self, entry: Entry[One]) -> None:
        due, client = entry[0], entry[2].client
        self.least_charge = min(self.least_charge, entry[2].charge)
        if client in self._queues:
            heapq.heappush(self._queues[client], entry)
            return
        self._queues[client] = [entry]
        listed = (self._served.client(client), due, client)
        if client[0] in self._clients:
            heapq.heappush(self._clients[client[0]], listed)
        else:
            self._clients[client[0]] = [listed]
            heapq.heappush(self._keys, (self._served.key(client[0]), due, client[0]))


class Turn(Struct, Generic[One], frozen=True):
    """Whose it is, and what will have gone in before, as charged and in predicted seconds."""

    one: One
    ahead: float
    ahead_s: float


def turns(
    in_time: Queues[One],
    late: Queues[One],
    served: Served,
    *,
    owed: float,
    ahead: float,
    ahead_s: float,
    is_late: Callable[[One, float, float], bool],
    most_late: int,
) -> Iterator[Turn[One]]:
    """Everyone, first to last. `is_late`: whether it cannot be in time any more when so much has gone in before it.

    When so many as `most_late` have been found late, the others are taken to be in time: this is done again and again.
    """
    while True:
        first = in_time.first()
        while most_late and first is not None and is_late(first, ahead, ahead_s):
            most_late -= 1
            late.put(in_time.take(first))
            first = in_time.first()
        # Whose turn it is among the late is looked up only where it may be one of theirs.
        last = late.first() if first is None or owed >= late.least_charge else None
        if last is not None and (first is None or owed >= last.charge):
            one = last
            owed = max(0.0, owed - last.charge)
            late.take(last)
        elif first is not None:
            one = first
            owed = owed + LATE_SHARE * first.charge if late.least_charge < math.inf else 0.0
            in_time.take(first)
        else:
            return
        served.charge(one.client, one.charge)
        yield Turn(one, ahead, ahead_s)
        ahead += one.charge
        ahead_s += one.work_s
