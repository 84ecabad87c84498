"""A mailbox that remembers, of every message, who sent it, how long it waited and how long it took to be handled.

Knows mailboxes and what is kept of a message until a thread makes a line of it (`trace_lines.py`, `trace_writer.py`).
Knows no message by name and no file. Whoever does not trace makes plain mailboxes, and pays for none of this.

Nothing here calls back into the event loop: the same engine does the same with and without a trace.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, cast

from msgspec import Struct

from actors.actor import SHUT, Clock, Inbox, Mailbox, Tap
from protocol.messages import Control, Data, Merging

MOST_RECORDS = 200_000
"""That wait for the thread. With what they hold of the messages, some 100 MB; what comes on top of them is counted."""


class Record(Struct, gc=False):
    """A message that was handled, and how it came. Times are the engine's.

    Thousands live until the thread has been at them, and the garbage collector would look at each of them again and
    again; nothing in a message refers back to what holds it.
    """

    message: Any
    sender: str
    """The actor whose handler sent it; "" when no handler did."""
    to: str
    lane: str
    sent_at: float
    taken_at: float
    handled_at: float | None
    """When its handler returned. None: nobody says when."""


class Tracer:
    """What was handled and is not written yet, oldest first, and who is at work now.

    The loop appends to `records`, one other thread takes from its left; both are atomic, so there is no lock and no
    hand-over. `clock` is the engine's, `unix_clock` tells the Unix time in seconds; it is asked once.
    """

    def __init__(self, clock: Clock, unix_clock: Callable[[], float], most: int = MOST_RECORDS) -> None:
        self.clock = clock
        self.unix_s = unix_clock() - clock()
        """What is added to the engine's times to make them Unix times."""
        self.most = most
        self.records: deque[Record] = deque()
        self.lost = 0
        """Messages that found no room, so far. Only the loop counts here."""
        self.unwritten = 0
        """Messages that no file would take, so far. Only the thread counts here."""
        self.running = ""
        """The actor whose handler runs now; "" while none does."""

    def record(self, record: Record) -> None:
        if len(self.records) < self.most:
            self.records.append(record)
        else:
            self.lost += 1

    def stop(self) -> None:
        """Nobody will take the records any more: keep none."""
        self.most = 0
        self.records.clear()


class TracedMailbox(Mailbox[Inbox], Generic[Inbox]):
    """A mailbox whose every message is recorded when its handler has returned or raised.

    What waits has its sender beside it. Of one that replaced another that is the newer's; of joined text, the first's.
    So putting and popping stand here again, as in `Mailbox` but for that: many messages pass here, and this is as
    little as each can be charged. (`tests/actors/test_actor.py` holds both to the same law.)
    """

    def __init__(self, clock: Clock, capacity: int, name: str, tracer: Tracer, tap: Tap = SHUT) -> None:
        super().__init__(clock, capacity, tap)
        self._name = name
        self._tracer = tracer
        # Of the message that was taken last:
        self._sender = ""
        self._lane = ""
        self._sent_at = 0.0
        self._taken_at = 0.0

    def offer(self, message: Data) -> bool:
        if len(self._data) >= self.capacity:
            self._data_lane.refused += 1
            return False
        self._data.append((self._clock(), message, self._tracer.running))
        self._data_lane.put(len(self._data))
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()
        return True

    def tell(self, message: Control | Merging) -> None:
        key = (type(message), message.key)
        sender = self._tracer.running
        if isinstance(message, Control):
            replaced = self._control.pop(key, None)
            self._control[key] = (self._clock() if replaced is None else replaced[0], message, sender)
            self._control_lane.put(len(self._control))
        elif key in self._slots:
            since, waiting, first = self._slots[key]
            self._slots[key] = (since, waiting.join(message), first)
        else:
            self._slots[key] = (self._clock(), message, sender)
            self._slots_lane.put(len(self._slots))
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()

    async def take(self) -> Inbox:
        message = await super().take()
        self._tracer.record(self._record(message, None))
        return message

    async def each(self, handle: Callable[[Inbox], None]) -> None:
        tracer, name, clock = self._tracer, self._name, self._clock

        def traced(message: Inbox) -> None:
            tracer.running = name
            try:
                handle(message)
            finally:
                tracer.running = ""
                tracer.record(self._record(message, clock()))

        await super().each(traced)

    def _record(self, message: Inbox, handled_at: float | None) -> Record:
        return Record(message, self._sender, self._name, self._lane, self._sent_at, self._taken_at, handled_at)

    def _pop(self) -> Inbox:
        message: Inbox
        if self._control:
            lane, self._lane, entry = self._control_lane, "control", self._control.popitem(last=False)[1]
        elif self._data:
            lane, self._lane, entry = self._data_lane, "data", self._data.popleft()
        else:
            lane, self._lane, entry = self._slots_lane, "slots", self._slots.popitem(last=False)[1]
        self._sent_at, message, self._sender = entry
        self._taken_at = self._clock()
        lane.take(self._taken_at - self._sent_at)
        return message


def mailboxes(
    clock: Clock, tracer: Tracer | None, tap_at: Callable[[str], Tap] = lambda _: SHUT
) -> Callable[[str, int], Mailbox[Any]]:
    """What makes the mailbox of an actor, from its name (`scheduler`, `connection 12`) and the bound of its data lane.

    Without a tracer they are plain ones, as if there were no traces. `tap_at` gives the tap at each, by its name.
    """
    if tracer is None:
        return lambda name, capacity: Mailbox(clock, capacity, tap_at(name))
    return lambda name, capacity: cast(Mailbox[Any], TracedMailbox(clock, capacity, name, tracer, tap_at(name)))
