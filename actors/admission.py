"""Admission: the waiting room. Accepts, queues or refuses, and says who is next.

Owns the order and the bounds of waiting, in number and in time. Knows no blocks and no steps: the scheduler says by
credits how many may come in.
"""

from collections import OrderedDict
from typing import ClassVar, assert_never

from msgspec import Struct, structs

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.tombstones import Tombstones
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    Accepted,
    Cancel,
    CloseStream,
    Credit,
    Drain,
    Ended,
    Enqueue,
    Expire,
    FinishReason,
    Forget,
    Moved,
    Refused,
    Released,
    RequestId,
    Stats,
    Sweep,
    Watch,
)

AdmissionInbox = Enqueue | Cancel | Credit | Released | Expire | Sweep | Drain


class _Waiting(Struct):
    """One place in the waiting room."""

    enqueue: Enqueue
    since: float
    told_position: int


class Admission(Actor[AdmissionInbox]):
    """First come, first served, among at most `max_waiting` requests that wait at most `max_wait_s` each."""

    name: ClassVar[str] = "admission"
    fate: ClassVar[Fate] = Fate.WORKER

    def __init__(
        self,
        mailbox: Mailbox[AdmissionInbox],
        *,
        max_waiting: int,
        max_wait_s: float,
        scheduler: Address[Enqueue | Cancel | Expire],
        tokeniser: Address[Forget],
        detokeniser: Address[CloseStream],
        reaper: Address[Watch | Released],
        directory: Directory,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        super().__init__(mailbox)
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._scheduler = scheduler
        self._tokeniser = tokeniser
        self._detokeniser = detokeniser
        self._reaper = reaper
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._room: OrderedDict[RequestId, _Waiting] = OrderedDict()
        self._passed_on: set[RequestId] = set()
        self._tombstones = Tombstones()
        self._granted = 0
        self._handed_over = 0
        self._draining = False
        self._seconds_a_request: float | None = None
        self._last_handed_over_at = clock()

    def handle(self, message: AdmissionInbox) -> None:
        match message:
            case Enqueue():
                self._enqueue(message)
            case Cancel():
                self._cancel(message)
            case Credit():
                self._granted = max(self._granted, message.granted)
                self._let_in()
            case Released():
                self._passed_on.discard(message.request)
            case Expire():
                self._expire(message)
            case Sweep():
                self._tombstones.sweep(message.at)
            case Drain():
                self._draining = True
            case _:
                assert_never(message)
        self._metrics.count_queued(self.name, len(self._room))

    # --- in ---

    def _enqueue(self, enqueue: Enqueue) -> None:
        now = self._clock()
        if self._tombstones.rises(enqueue.request):
            self._leave(enqueue, "cancelled", now, cancelled_at=now)
            return
        refusal = self._refusal(enqueue, now)
        if refusal is not None:
            self._directory.tell(enqueue.connection, Refused(enqueue.request, refusal))
            self._release(enqueue, Released(enqueue.request, now))
            return
        straight = not self._room and self._credits > 0
        position = 0 if straight else len(self._room) + 1
        self._room[enqueue.request] = _Waiting(enqueue, now, position)
        self._reaper.tell(Watch(enqueue.request, now + self._max_wait_s, enqueue.deadline_at))
        accepted = Accepted(
            enqueue.request,
            input_tokens=len(enqueue.tokens) // 4,
            max_output_tokens=enqueue.max_output_tokens,
            at=now,
            position=position,
            estimated_wait_s=self._estimate(position),
        )
        self._directory.tell(enqueue.connection, accepted)
        if straight:
            self._let_in()

    def _refusal(self, enqueue: Enqueue, now: float) -> WireError | None:
        if self._draining:
            return errors.shutting_down()
        if enqueue.deadline_at is not None and now >= enqueue.deadline_at:
            deadline_ms = (enqueue.deadline_at - enqueue.received_at) * 1e3
            return errors.deadline_exceeded((now - enqueue.received_at) * 1e3, deadline_ms)
        if self._credits <= 0 and len(self._room) >= self._max_waiting:
            retry_after_ms = max(1000.0, (self._estimate(1) or 0.0) * 1e3)
            return errors.server_overloaded(f"All {self._max_waiting:,} places to wait are taken", retry_after_ms)
        return None

    @property
    def _credits(self) -> int:
        return self._granted - self._handed_over

    def _let_in(self) -> None:
        """Hand over as many as there are credits for, and tell the others their new place."""
        moved = False
        now = self._clock()
        while self._room and self._credits > 0:
            request, waiting = self._room.popitem(last=False)
            self._handed_over += 1
            self._passed_on.add(request)
            taken = self._scheduler.offer(structs.replace(waiting.enqueue, accepted_at=waiting.since))
            assert taken, "the scheduler's lane holds every request it gave a credit for"
            self._learn_pace(waiting, now)
            moved = True
        if moved:
            self._tell_places()

    def _learn_pace(self, waiting: _Waiting, now: float) -> None:
        """How long the waiting room takes for one request, smoothed: what a rough estimate can be made from."""
        took_s = now - self._last_handed_over_at
        self._last_handed_over_at = now
        if not waiting.told_position:
            return
        known = self._seconds_a_request
        self._seconds_a_request = took_s if known is None else 0.8 * known + 0.2 * took_s

    def _estimate(self, position: int) -> float | None:
        """Seconds until the request at `position` is let in; None while nothing has been learned."""
        return None if self._seconds_a_request is None else position * self._seconds_a_request

    def _tell_places(self) -> None:
        for position, waiting in enumerate(self._room.values(), start=1):
            if waiting.told_position != position:
                waiting.told_position = position
                moved = Moved(waiting.enqueue.request, position, self._estimate(position))
                self._directory.tell(waiting.enqueue.connection, moved)

    # --- out ---

    def _cancel(self, cancel: Cancel) -> None:
        now = self._clock()
        waiting = self._room.pop(cancel.request, None)
        if waiting is not None:
            self._leave(waiting.enqueue, "cancelled", now, since=waiting.since, cancelled_at=cancel.at)
            self._tell_places()
        elif cancel.request in self._passed_on:
            self._scheduler.tell(cancel)
        else:
            self._tombstones.bury(cancel.request, now)

    def _expire(self, expire: Expire) -> None:
        now = self._clock()
        waiting = self._room.pop(expire.request, None)
        if waiting is None:
            if expire.request in self._passed_on:
                self._scheduler.tell(expire)
            return
        enqueue = waiting.enqueue
        waited_ms = (now - waiting.since) * 1e3
        deadline_ms = None
        if not expire.waiting:
            assert enqueue.deadline_at is not None, "a deadline passed that was never set"
            deadline_ms = (enqueue.deadline_at - enqueue.received_at) * 1e3
        error = errors.deadline_exceeded(waited_ms, deadline_ms)
        self._leave(enqueue, "failed", now, since=waiting.since, error=error)
        self._tell_places()

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
