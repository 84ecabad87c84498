"""Admission: the waiting room. Accepts, queues or refuses, and says who is next.

A thin shell around `scheduling/waiting_room.py`, which owns the order and the bounds: it turns messages into calls and
what comes of them into messages. Knows no blocks and no steps: the scheduler says by credits how many may come in.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, assert_never

from msgspec import structs

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.scheduling.allowances import Allowances
from actors.scheduling.bounds import Bounds
from actors.scheduling.demand import Demand
from actors.scheduling.guests import Guest, Place
from actors.scheduling.seen import seen_guests
from actors.scheduling.waiting_room import WaitingRoom
from actors.tombstones import Tombstones
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    Accepted,
    Cancel,
    CloseStream,
    CostsLearned,
    Credit,
    Drain,
    Ended,
    Enqueue,
    Expire,
    FinishReason,
    Forget,
    GiveWay,
    Look,
    ModelReady,
    Moved,
    Refused,
    Released,
    RoomSeen,
    Stats,
    Sweep,
    Unread,
    Watch,
    WorkerLost,
)

AdmissionInbox = (
    Enqueue
    | Cancel
    | Credit
    | CostsLearned
    | Unread
    | Released
    | ModelReady
    | WorkerLost
    | Expire
    | Sweep
    | Drain
    | Look
)


class Admission(Actor[AdmissionInbox]):
    """Fair between clients, within bounds of number, work and wait (`scheduling/waiting_room.py`).

    `tell_every_s`: at most so often does everyone who waits hear of a new place. `gallery`: who looks, if anybody does.
    `allowances` and `running_of`: the bounds of single keys, by name.

    While there is no worker everybody waits, and hears of a place without an estimate. `has_worker`: whether there is
    one from the beginning.
    """

    name: ClassVar[str] = "admission"
    fate: ClassVar[Fate] = Fate.WORKER

    def __init__(
        self,
        mailbox: Mailbox[AdmissionInbox],
        *,
        bounds: Bounds,
        max_running: int,
        chunk_tokens: int,
        scheduler: Address[Enqueue | Cancel | Expire | GiveWay],
        tokeniser: Address[Forget],
        detokeniser: Address[CloseStream],
        reaper: Address[Watch | Released],
        directory: Directory,
        metrics: Metrics,
        clock: Clock,
        tell_every_s: float = 0.25,
        gallery: Address[RoomSeen] | None = None,
        allowances: Allowances | None = None,
        running_of: Mapping[str, int] | None = None,
        has_worker: bool = False,
    ) -> None:
        super().__init__(mailbox)
        self._bounds = bounds
        self._scheduler = scheduler
        self._tokeniser = tokeniser
        self._detokeniser = detokeniser
        self._reaper = reaper
        self._gallery = gallery
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._tell_every_s = tell_every_s
        self._room = WaitingRoom(bounds, Demand(chunk_tokens, max_running), max_running, running_of)
        self._room.set_open(has_worker)
        self._allowances = allowances if allowances is not None else Allowances()
        self._tombstones = Tombstones()
        self._draining = False
        self._told_at = -math.inf
        self._has_moved = False

    def handle(self, message: AdmissionInbox) -> None:
        match message:
            case Enqueue():
                self._enqueue(message)
            case Cancel():
                self._cancel(message)
            case Credit():
                self._room.grant(message)
                self._let_in()
            case CostsLearned():
                self._room.learn(message)
            case Unread():
                self._room.set_unread(message.request, message.unread)
                self._let_in()
            case Released():
                self._room.released(message)
                self._let_in()
            case ModelReady():
                self._room.set_open(True)
                self._let_in()
                self._tell_all_anew()
            case WorkerLost():
                self._room.set_open(False)
                self._tell_all_anew()
            case Expire():
                self._expire(message)
            case Sweep():
                self._tombstones.sweep(message.at)
                self._has_moved = len(self._room) > 0
            case Drain():
                self._draining = True
            case Look():
                assert self._gallery is not None, "looked at by nobody"
                self._gallery.tell(RoomSeen(message.at, seen_guests(self._room, can_tell=self._room.can_tell)))
                return
            case _:
                assert_never(message)
        for request in self._room.give_way():
            self._scheduler.tell(GiveWay(request))
        self._tell_places()
        self._metrics.count_queued(self.name, len(self._room))
        self._metrics.waiting_work.set(self._room.work_s)

    # --- in ---

    def _enqueue(self, enqueue: Enqueue) -> None:
        now = self._clock()
        if self._tombstones.rises(enqueue.request):
            self._leave(enqueue, "cancelled", now, cancelled_at=now)
            return
        if self._draining:
            self._refuse(enqueue, errors.shutting_down(), now)
            return
        too_often = self._allowances.refusal(enqueue.tenant, now)
        if too_often is not None:
            self._refuse(enqueue, too_often, now)
            return
        guest = self._room.add(enqueue, now)
        straight = self._room.next(now) is guest
        place = None if straight else self._room.place(guest, now)
        refusal = self._refusal(guest, place, now)
        if refusal is not None:
            self._room.remove(enqueue.request)
            self._refuse(enqueue, refusal, now)
            return
        self._allowances.count(enqueue.tenant, now)
        guest.told = (0, 0.0) if place is None else (place.position, place.wait_s)
        self._reaper.tell(Watch(enqueue.request, now + self._bounds.wait_s, enqueue.deadline_at))
        accepted = Accepted(
            enqueue.request,
            input_tokens=guest.tokens,
            max_output_tokens=enqueue.max_output_tokens,
            at=now,
            position=guest.told[0],
            estimated_wait_s=None if place is None else self._estimate(place),
        )
        self._directory.tell(enqueue.connection, accepted)
        if straight:
            self._let_in()

    def _refusal(self, guest: Guest, place: Place | None, now: float) -> WireError | None:
        """Why `guest`, who is in the room already, has to go again. `place` None: it need not wait."""
        wait_s = 0.0 if place is None else place.wait_s
        if place is not None:
            crowded = self._room.crowded(guest)
            if crowded is not None:
                return errors.rate_limit_exceeded(crowded, max(1000.0, self._room.spell_s(guest) * 1e3))
            full = self._room.overfull(guest)
            if full is not None:
                return errors.server_overloaded(full, max(1000.0, self._room.spell_s(guest) * 1e3))
            if wait_s > self._bounds.wait_s and len(self._room) > 1:
                return errors.server_overloaded(
                    f"The wait would be about {errors.duration(wait_s * 1e3)}, "
                    f"and nobody is let to wait longer than {errors.duration(self._bounds.wait_s * 1e3)}",
                    max(1000.0, (wait_s - self._bounds.wait_s) * 1e3),
                )
        return self._too_late(guest, wait_s, now)

    def _too_late(self, guest: Guest, wait_s: float, now: float) -> WireError | None:
        """Whether its deadline cannot be met any more, if it is let in after `wait_s`."""
        enqueue = guest.enqueue
        if enqueue.deadline_at is None:
            return None
        deadline_ms = (enqueue.deadline_at - enqueue.received_at) * 1e3
        if now >= enqueue.deadline_at:
            return errors.deadline_exceeded((now - enqueue.received_at) * 1e3, deadline_ms)
        first_token_at = now + self._room.first_token_s(guest, wait_s, enqueue.deadline_at - now)
        if first_token_at > enqueue.deadline_at:
            alone = self._room.first_token_s(guest, 0.0) * 1e3 > deadline_ms
            return errors.deadline_unreachable((first_token_at - enqueue.received_at) * 1e3, deadline_ms, alone=alone)
        return None

    def _estimate(self, place: Place) -> float | None:
        return place.wait_s if self._room.can_tell else None

    def _refuse(self, enqueue: Enqueue, error: WireError, now: float) -> None:
        self._directory.tell(enqueue.connection, Refused(enqueue.request, error))
        self._release(enqueue, Released(enqueue.request, now))

    def _let_in(self) -> None:
        """As many as there are credits for, each only if somebody still wants it and there is time."""
        now = self._clock()
        while (guest := self._room.next(now)) is not None:
            enqueue = guest.enqueue
            if guest.told is None or guest.told[0] > 0:
                self._has_moved = True
                if enqueue.connection not in self._directory:
                    self._room.remove(enqueue.request)
                    self._leave(enqueue, "cancelled", now, since=guest.since, cancelled_at=now)
                    continue
                too_late = self._too_late(guest, 0.0, now)
                if too_late is not None:
                    self._room.remove(enqueue.request)
                    self._leave(enqueue, "failed", now, since=guest.since, error=too_late)
                    continue
            self._room.let_in(guest, now)
            taken = self._scheduler.offer(structs.replace(enqueue, accepted_at=guest.since))
            assert taken, "the scheduler's lane holds every request it gave a credit for"

    def _tell_all_anew(self) -> None:
        """There is an estimate now, or none any more."""
        self._told_at, self._has_moved = -math.inf, len(self._room) > 0

    def _tell_places(self) -> None:
        """Everyone whose place or estimate has changed, but not all of them at every change."""
        now = self._clock()
        if not self._has_moved or now - self._told_at < self._tell_every_s:
            return
        self._told_at, self._has_moved = now, False
        for place in self._room.moved(now):
            place.guest.told = (place.position, place.wait_s)
            moved = Moved(place.guest.enqueue.request, place.position, self._estimate(place))
            self._directory.tell(place.guest.enqueue.connection, moved)

    # --- out ---

    def _cancel(self, cancel: Cancel) -> None:
        now = self._clock()
        guest = self._room.remove(cancel.request)
        if guest is not None:
            self._leave(guest.enqueue, "cancelled", now, since=guest.since, cancelled_at=cancel.at)
            self._has_moved = True
        elif self._room.is_inside(cancel.request):
            self._scheduler.tell(cancel)
        else:
            self._tombstones.bury(cancel.request, now)

    def _expire(self, expire: Expire) -> None:
        now = self._clock()
        guest = self._room.remove(expire.request)
        if guest is None:
            if self._room.is_inside(expire.request):
                self._scheduler.tell(expire)
            return
        enqueue = guest.enqueue
        waited_ms = (now - guest.since) * 1e3
        deadline_ms = None
        if not expire.waiting:
            assert enqueue.deadline_at is not None, "a deadline passed that was never set"
            deadline_ms = (enqueue.deadline_at - enqueue.received_at) * 1e3
        error = errors.deadline_exceeded(waited_ms, deadline_ms)
        self._leave(enqueue, "failed", now, since=guest.since, error=error)
        self._has_moved = True

    def _leave(
        self,
        enqueue: Enqueue,
        reason: FinishReason,
        now: float,
        *,
        since: float | None = None,
        error: WireError | None = None,
        cancelled_at: float | None = None,
    ) -> None:
        """End a request that the scheduler never saw."""
        stats = Stats(queued_s=0.0 if since is None else now - since)
        self._directory.tell(enqueue.connection, Ended(enqueue.request, reason, stats, error))
        self._release(enqueue, Released(enqueue.request, now, cancelled_at))

    def _release(self, enqueue: Enqueue, released: Released) -> None:
        if released.cancelled_at is not None:
            self._metrics.release.observe(released.at - released.cancelled_at)
        self._tokeniser.tell(Forget(enqueue.request))
        self._detokeniser.tell(CloseStream(enqueue.request))
        self._directory.tell(enqueue.connection, released)
        self._reaper.tell(released)
