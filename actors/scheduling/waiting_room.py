"""Who has been accepted and is not in yet: the order among them, the bounds, and how long it will take.

Plain synchronous code: time comes in as an argument. Knows requests, clients and predicted work; knows no blocks, no
steps and no sockets.

Between clients it is fair by work (`fair.py`), first between keys and then between the sockets of a key; among the
requests of one client, whose first token is due soonest comes first. Requests whose first token can no longer be in
time stand aside: a tenth of the work let in is theirs, and all of it when nobody else waits. So a burst that makes some
late does not make everyone late after it.

While those inside have more to read than the policy wants to choose from, whoever has little to read comes in beside
them (`_fits_beside`): a long prompt keeps out other long ones, and nobody whom it would delay for many times his own.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from actors.scheduling.bounds import Bounds
from actors.scheduling.credits import Credits
from actors.scheduling.demand import Demand, weighed
from actors.scheduling.fair import VirtualCounters
from actors.scheduling.guests import Guest, Place
from actors.scheduling.key_places import KeyPlaces
from actors.scheduling.pace import Pace
from actors.scheduling.turns import LATE_SHARE, Client, Entry, Queues, Served, turns
from protocol.messages import CostsLearned, Credit, Enqueue, Released, RequestId

RESERVED = 16
"""One of so many places on the device, and at least one, is kept for other clients than the one that fills it."""
PLACES_KNOWN = 256
"""So far down the order of the room is worked out; whoever is behind is told to be last. And so many at most are found
to be late by the time it is their turn."""
MOVED_S, MOVED_SHARE = 0.5, 0.2
"""An estimate has changed when it is off by both."""


class WaitingRoom:
    """Those who wait, and the credits by which they are let in.

    `max_running`: how many the device runs at once, of which one client may not have all. (Where it runs only one, a
    second client waits for the end of the answer that runs, however long: to keep the one place would keep it idle.)
    `running_of`: of the keys that have a bound of their own, how many at once (`KeyPlaces`).
    """

    def __init__(
        self, bounds: Bounds, demand: Demand, max_running: int, running_of: Mapping[str, int] | None = None
    ) -> None:
        self._bounds = bounds
        self._demand = demand
        self._key_places = KeyPlaces(max_running, running_of)
        self._most_of_one = max(1, max_running - max(1, max_running // RESERVED))
        self._guests: dict[RequestId, Guest] = {}
        self._in_time: dict[Client, list[Entry[Guest]]] = {}
        self._late: dict[Client, list[Entry[Guest]]] = {}
        self._keys: VirtualCounters[str] = VirtualCounters()
        self._clients: dict[str, VirtualCounters[Client]] = {}
        """Of the sockets of each key, among themselves."""
        self._inside: dict[RequestId, tuple[Client, float]] = {}
        """Those let in, and what their client was charged."""
        self._work_s = 0.0
        self._work_of: dict[Client, float] = {}
        self._numbers = 0
        self._owed = 0.0
        self._credits = Credits()
        self._passed: Guest | None = None
        """Whose turn it would have been, if somebody smaller was named as next."""
        self._pace = Pace()
        self._open = True

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[Guest]:
        return iter(self._guests.values())

    def get(self, request: RequestId) -> Guest | None:
        return self._guests.get(request)

    def is_inside(self, request: RequestId) -> bool:
        """Whether it was let in and has not been released."""
        return request in self._inside

    @property
    def work_s(self) -> float:
        """Predicted seconds of the device for all who wait."""
        return self._work_s

    @property
    def can_tell(self) -> bool:
        """Whether there is anything to estimate a wait from."""
        return self._open and (self._demand.known or self._pace.known)

    def set_open(self, is_open: bool) -> None:
        """Shut, it lets nobody in, for who knows how long. Whoever waits has not been told what follows from that."""
        self._open = is_open
        self._pace.interrupt()
        for guest in self._guests.values():
            guest.told = None

    def learn(self, learned: CostsLearned) -> None:
        """What steps cost. Work is predicted when a request comes; of those who came too early, now."""
        knew = self._demand.known
        self._demand.learn(learned)
        if not knew:
            self._work_s, self._work_of = 0.0, {}
            for guest in self._guests.values():
                guest.work_s = self._demand.work_s(guest.enqueue, guest.cached)
                self._work_s += guest.work_s
                self._work_of[guest.client] = self._work_of.get(guest.client, 0.0) + guest.work_s

    def grant(self, credit: Credit) -> None:
        """The scheduler has room for more, or has at least read some of what it has."""
        self._credits.grant(credit)

    # --- coming ---

    def add(self, enqueue: Enqueue, now: float) -> Guest:
        """Give it a place, whatever the bounds."""
        self._numbers += 1
        cached = self._demand.cached_tokens(enqueue)
        guest = Guest(
            enqueue,
            now,
            self._numbers,
            cached,
            self._demand.work_s(enqueue, cached),
            self._demand.charge(enqueue, cached),
            enqueue.received_at + enqueue.ttft_target_s,
        )
        client = guest.client
        self._guests[enqueue.request] = guest
        heapq.heappush(self._in_time.setdefault(client, []), (guest.first_token_due, guest.number, guest))
        self._keys.arrive(client[0])
        self._clients.setdefault(client[0], VirtualCounters()).arrive(client)
        self._work_s += guest.work_s
        self._work_of[client] = self._work_of.get(client, 0.0) + guest.work_s
        return guest

    def overfull(self, guest: Guest) -> str | None:
        """Which bound of number or work `guest` is over, the room being as it is with it: a sentence, or None."""
        mine = self._clients[guest.client[0]].waiting(guest.client)
        full = self._bounds.overfull(len(self._guests), mine)
        if full is not None or len(self._guests) == 1:
            return full
        return self._bounds.overworked(self._work_s, self._work_of[guest.client], guest.work_s, first=mine == 1)

    def crowded(self, guest: Guest) -> str | None:
        """Whether more of its key wait than may, behind those that run: a sentence, or None."""
        key = guest.client[0]
        most = self._key_places.running_of(key)
        if most is None or self._keys.waiting(key) <= most:
            return None
        wait = "1 request of this key waits" if most == 1 else f"{most:,} requests of this key wait"
        return f"{wait} already, as many as it may have running"

    def remove(self, request: RequestId) -> Guest | None:
        """It waits no longer: cancelled, expired or refused."""
        guest = self._guests.get(request)
        if guest is not None:
            self._take_out(guest)
            self._keys.leave(guest.client[0])
            self._clients[guest.client[0]].leave(guest.client)
            self._tidy(guest.client[0])
        return guest

    # --- going in ---

    @property
    def may_let_in(self) -> bool:
        """Whether credits are left, in number and in tokens. In number is enough for those who fit beside a backlog."""
        return self._credits.places and self._credits.tokens

    def next(self, now: float) -> Guest | None:
        """Whose turn it is to be let in; None when nobody may be. `let_in` or `remove` comes next."""
        self._passed = None
        if not self._open or not self._credits.places:
            return None
        self._set_late_aside(now)
        first = self._first()
        if first is None or self._credits.tokens or self._fits_beside(first):
            return first
        other = self._first(self._fits_beside)
        if other is None or first.overtaken + other.charge > first.charge:
            return None  # nobody is overtaken by more than he is himself
        self._passed = first
        return other

    def _first(self, may: Callable[[Guest], bool] = lambda _: True) -> Guest | None:
        """In turn, of those who may: in time, or late when it is their tenth or nobody else is there."""
        in_time, late = self._first_of(self._in_time, may), self._first_of(self._late, may)
        if late is not None and (in_time is None or self._owed >= late.charge):
            return late
        return in_time

    def _fits_beside(self, guest: Guest) -> bool:
        """Whether it may come in though no credits in tokens are left: it is small beside what was let in too much.

        And its client has had no more work done than the one that filled the room. (That one itself adds no more than a
        quarter: under a policy that goes by arrival, whoever comes of another client has it all before him.)
        """
        filler, client = self._credits.filled_by, guest.client
        own = filler is None or client == filler
        if not self._credits.small_beside(guest, own):
            return False
        if filler is None or own:
            return True
        if client[0] != filler[0]:
            return filler[0] not in self._keys or self._keys.counter(client[0]) <= self._keys.counter(filler[0])
        counters = self._clients[client[0]]
        return filler not in counters or counters.counter(client) <= counters.counter(filler)

    def let_in(self, guest: Guest, now: float) -> None:
        """It goes to the scheduler."""
        client, charge = guest.client, guest.charge
        if not guest.late:
            self._owed += LATE_SHARE * guest.charge if self._late else 0.0
        else:
            self._owed = max(0.0, self._owed - guest.charge)
        self._take_out(guest)
        self._keys.begin(client[0], charge)
        self._clients[client[0]].begin(client, charge)
        self._inside[guest.enqueue.request] = (client, charge)
        self._demand.begins(guest.enqueue)
        if self._credits.use(guest) and self._passed is not None:
            self._passed.overtaken += guest.charge
        self._passed = None
        self._pace.count(guest, now)

    def released(self, released: Released) -> None:
        """The device is done with it: what it took in truth is what its client is charged."""
        inside = self._inside.pop(released.request, None)
        if inside is not None:
            client, charge = inside
            self._key_places.read(client[0], released.request)
            correction = weighed(released.computed_tokens, released.output_tokens) - charge
            self._keys.end(client[0], correction)
            self._clients[client[0]].end(client, correction)
            self._tidy(client[0])

    def _tidy(self, key: str) -> None:
        """A key of which nothing is here and which is not remembered needs no counters for its sockets either."""
        if key not in self._keys and self._clients[key].idle:
            del self._clients[key]

    @property
    def idle(self) -> bool:
        """Whether nobody waits, and nobody who was let in is still inside."""
        return self._keys.idle and not self._guests and not self._inside

    def _take_out(self, guest: Guest) -> None:
        client = guest.client
        del self._guests[guest.enqueue.request]
        queues = self._late if guest.late else self._in_time
        queue = queues[client]
        entry = (guest.first_token_due, guest.number, guest)
        if queue[0] == entry:
            heapq.heappop(queue)
        else:
            queue.remove(entry)
            heapq.heapify(queue)
        if not queue:
            del queues[client]
        self._work_s = self._work_s - guest.work_s if self._guests else 0.0
        self._work_of[client] -= guest.work_s
        if client not in self._in_time and client not in self._late:
            del self._work_of[client]

    def _set_late_aside(self, now: float) -> None:
        for client in list(self._in_time):
            queue = self._in_time[client]
            while queue:
                guest = queue[0][2]
                left_s = guest.first_token_due - now - self._demand.reserve_s
                if self.first_token_s(guest, 0.0, left_s) <= left_s:
                    break
                guest.late = True
                heapq.heappush(self._late.setdefault(client, []), heapq.heappop(queue))
            if not queue:
                del self._in_time[client]
        if not self._late:
            self._owed = 0.0

    def _first_of(self, queues: dict[Client, list[Entry[Guest]]], may: Callable[[Guest], bool]) -> Guest | None:
        """The first request of the client that is next, if any of these may have one more on the device."""
        candidates = [client for client, queue in queues.items() if self._may_begin(client) and may(queue[0][2])]
        due: dict[str, float] = {}
        for client in candidates:
            due[client[0]] = min(queues[client][0][0], due.get(client[0], math.inf))
        key = self._keys.least(due, due.__getitem__)
        if key is None:
            return None
        mine = [client for client in candidates if client[0] == key]
        first = self._clients[key].least(mine, lambda one: queues[one][0][0])
        return None if first is None else queues[first][0][2]

    def _may_begin(self, client: Client) -> bool:
        """Whether one more of it may be on the device, and one more of its key."""
        return self._key_places.may_begin(client[0], self._keys.running(client[0])) and self._client_may_begin(client)

    def _client_may_begin(self, client: Client) -> bool:
        return self._clients[client[0]].running(client) < self._most_of_one

    # --- those inside that nobody reads ---

    def set_unread(self, request: RequestId, unread: bool) -> None:
        """Of one that was let in: nobody reads it, or somebody does again."""
        if (inside := self._inside.get(request)) is not None:
            change = self._key_places.leave_unread if unread else self._key_places.read
            change(inside[0][0], request)

    def give_way(self) -> list[RequestId]:
        """Those of them whose places others of their keys need now. They stay until they are `released`."""
        if not self._open or not self._credits.places:
            return []
        return self._key_places.give_way(self._keys.running, self._somebody_may_begin)

    def _somebody_may_begin(self, key: str) -> bool:
        """Whether, as far as each client's own bound goes, anybody of the key who waits might come in."""
        waiting = (client for queues in (self._in_time, self._late) for client in queues)
        return any(client[0] == key and self._client_may_begin(client) for client in waiting)

    # --- how long it takes ---

    def spell_s(self, guest: Guest) -> float:
        """How long the room is held up by `guest` alone: when to try again, if only a little is missing."""
        return self._pace.wait_s(guest.charge, guest.work_s)

    def order(self, now: float) -> Iterator[Place]:
        """All who wait, in about the order in which they will be let in if nobody else comes.

        About: how long it takes is predicted, and so is who will be late by then and stand aside; and that a client
        has as many on the device as it may, or that somebody fits beside a backlog, lasts for who knows how long.
        """
        served = Served(self._keys.counter, lambda client: self._clients[client[0]].counter(client))
        demand = self._demand

        def is_late(guest: Guest, ahead: float, ahead_s: float) -> bool:
            left_s = guest.first_token_due - now - demand.reserve_s
            return left_s < math.inf and (
                self._pace.wait_s(ahead, ahead_s) + demand.prefill_s(guest.tokens, guest.cached) > left_s
            )

        order = turns(
            Queues(self._in_time, served),
            Queues(self._late, served),
            served,
            owed=self._owed,
            ahead=self._pace.usual_charge,
            ahead_s=self._pace.usual_work_s,
            is_late=is_late,
            most_late=PLACES_KNOWN,
        )
        for position, turn in enumerate(order, start=1):
            yield Place(turn.one, position, self._pace.wait_s(turn.ahead, turn.ahead_s))

    def places(self, now: float) -> Iterator[Place]:
        """The places of the first PLACES_KNOWN, and how long they wait."""
        return islice(self.order(now), PLACES_KNOWN)

    def place(self, guest: Guest, now: float) -> Place:
        """Of one. So far back that nobody has counted, it is the last place."""
        found = next((each for each in self.places(now) if each.guest is guest), None)
        if found is not None:
            return found
        charge = sum(each.charge for each in self._guests.values() if each is not guest)
        return Place(guest, len(self._guests), self._pace.wait_s(charge, self._work_s - guest.work_s))

    def moved(self, now: float) -> list[Place]:
        """Those whose place or estimate is no longer what they were told."""
        found = []
        for place in self.places(now):
            told = place.guest.told
            if told is not None:
                off = abs(place.wait_s - told[1])
                if told[0] == place.position and (off < MOVED_S or off < MOVED_SHARE * told[1]):
                    continue
            found.append(place)
        return found

    def first_token_s(self, guest: Guest, wait_s: float, hoped_s: float = math.inf) -> float:
        """Seconds from now until its first token, if it is let in after `wait_s`.

        When that is more than `hoped_s`, it is looked up whether more of its prompt may be in the cache by now.
        """
        takes = wait_s + self._demand.prefill_s(guest.tokens, guest.cached)
        if takes > hoped_s:
            guest.cached = self._demand.cached_tokens(guest.enqueue)
            takes = wait_s + self._demand.prefill_s(guest.tokens, guest.cached)
        return takes
