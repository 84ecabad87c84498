"""Actor, Mailbox, Address: what every other file in this folder stands on.

Knows how a message waits and in which order it is handled. Knows no message of rota's by name, no socket, no model.

Three decisions make the rest easy to reason about:

- **A handler is a plain function.** `handle` cannot await, so a message is handled whole or not at all, whatever is
  cancelled when; work that takes time is done elsewhere and comes back as a message.
- **Nobody waits for a full lane.** `offer` says at once whether the message was taken, and the sender decides what
  that means (refuse, keep it back, say so). So no cycle of full mailboxes can deadlock.
- **What must not be lost never queues behind what may.** Control messages are kept by (type, key), the latest wins,
  and they overtake data; text joins the text that already waits in its slot.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import structlog
from msgspec import Struct

from protocol.messages import Control, Data, Merging

Clock = Callable[[], float]
"""Seconds, monotonic. Given from outside, so that the simulation can turn it."""

Inbox = TypeVar("Inbox")
InboxIn = TypeVar("InboxIn", contravariant=True)

log = structlog.get_logger()


class LaneStatistics(Struct, frozen=True):
    """One lane of a mailbox, for people who debug. `waited_s` is a sum over the `taken` messages."""

    depth: int
    high_water: int
    taken: int
    refused: int
    waited_s: float
    longest_wait_s: float


class _Lane:
    """The counters of one lane."""

    __slots__ = ("high_water", "longest_wait_s", "refused", "taken", "waited_s")

    def __init__(self) -> None:
        self.high_water = 0
        self.taken = 0
        self.refused = 0
        self.waited_s = 0.0
        self.longest_wait_s = 0.0

    def put(self, depth: int) -> None:
        if depth > self.high_water:
            self.high_water = depth

    def take(self, waited_s: float) -> None:
        self.taken += 1
        self.waited_s += waited_s
        if waited_s > self.longest_wait_s:
            self.longest_wait_s = waited_s

    def statistics(self, depth: int) -> LaneStatistics:
        return LaneStatistics(depth, self.high_water, self.taken, self.refused, self.waited_s, self.longest_wait_s)


class Tap:
    """Somebody hears a mailbox's messages, each as it is about to be handled. Shut, it costs a look at `open`."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = False

    def hear(self, message: object) -> None:
        """Called only while it is open. Must not raise, nor keep anybody waiting."""


SHUT = Tap()
"""Where nobody ever listens."""


class _Joins(Protocol):
    """A merging message: `a.join(b)` is both, `a` first."""

    def join(self, newer: object) -> object: ...


class Mailbox(Generic[Inbox]):
    """Where messages to one actor wait: control first, then data in order, then merged text.

    One task takes; anyone on the same event loop may put. Putting never waits. `capacity` bounds the data lane;
    the others are bounded by their keys. `tap`: who hears what is given to `each`'s handler.
    """

    def __init__(self, clock: Clock, capacity: int, tap: Tap = SHUT) -> None:
        self._clock = clock
        self._tap = tap
        self.capacity = capacity
        # Each since when it waits, and the message.
        self._control: OrderedDict[tuple[type, object], tuple[Any, ...]] = OrderedDict()
        self._data: deque[tuple[Any, ...]] = deque()
        self._slots: OrderedDict[tuple[type, object], tuple[Any, ...]] = OrderedDict()
        self._control_lane, self._data_lane, self._slots_lane = _Lane(), _Lane(), _Lane()
        self._wake: Callable[[], object] | None = None
        """Tells whoever waits for a message, once, that there is one."""
        self._taking = False

    def offer(self, message: Data) -> bool:
        """Put a data message at the end of its lane. False, and nothing put, when the lane is full."""
        if len(self._data) >= self.capacity:
            self._data_lane.refused += 1
            return False
        self._data.append((self._clock(), message))
        self._data_lane.put(len(self._data))
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()
        return True

    def tell(self, message: Control | Merging) -> None:
        """Put a control or merging message. Never refused: it replaces, or joins, the one that waits under its key."""
        key = (type(message), message.key)
        if isinstance(message, Control):
            # The newer one stands where it was said, behind what was said before it, and keeps the age of the older.
            replaced = self._control.pop(key, None)
            self._control[key] = (self._clock() if replaced is None else replaced[0], message)
            self._control_lane.put(len(self._control))
        elif key in self._slots:
            since, waiting = self._slots[key]
            self._slots[key] = (since, cast(_Joins, waiting).join(message))
        else:
            self._slots[key] = (self._clock(), message)
            self._slots_lane.put(len(self._slots))
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()

    async def take(self) -> Inbox:
        """The next message, waiting for one if need be. One taker at a time.

        Other tasks get a turn before every message: while it waits for one, or else for that alone. A cancelled `take`
        takes nothing: the message is removed only after the last await, and handed over in the same breath.
        """
        self._begin_taking()
        try:
            if self._control or self._data or self._slots:
                await asyncio.sleep(0)
            while not (self._control or self._data or self._slots):
                came = asyncio.Event()
                self._wake = came.set
                await came.wait()
        finally:
            self._end_taking()
        return self._pop()

    async def each(self, handle: Callable[[Inbox], None]) -> None:
        """Give every message to `handle`, until cancelled; raises what `handle` raises. One taker at a time.

        Every message is handled in a turn of the event loop of its own, and none after the cancel. No task is woken
        for it: that takes longer than most messages take to be handled.
        """
        self._begin_taking()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Exception] = loop.create_future()
        tap = self._tap

        def turn() -> None:
            if over.done():
                return
            try:
                if self._control or self._data or self._slots:
                    message = self._pop()
                    if tap.open:
                        tap.hear(message)
                    handle(message)
            except Exception as error:  # noqa: BLE001  passed on, to whoever awaits
                over.set_result(error)
                return
            if self._control or self._data or self._slots:
                come()
            else:
                self._wake = come

        # In a context of its own: that of whoever sends a message is not for whoever handles it.
        come = partial(loop.call_soon, turn, context=copy_context())
        come()
        try:
            error = await over
        finally:
            self._end_taking()
        raise error

    def _begin_taking(self) -> None:
        assert not self._taking, "a mailbox has one taker"
        self._taking = True

    def _end_taking(self) -> None:
        self._taking = False
        self._wake = None

    def _pop(self) -> Inbox:
        message: Inbox
        if self._control:
            lane, (since, message) = self._control_lane, self._control.popitem(last=False)[1]
        elif self._data:
            lane, (since, message) = self._data_lane, self._data.popleft()
        else:
            lane, (since, message) = self._slots_lane, self._slots.popitem(last=False)[1]
        lane.take(self._clock() - since)
        return message

    def clear(self) -> None:
        """Forget everything that waits: the actor that would have handled it starts anew."""
        self._control.clear()
        self._data.clear()
        self._slots.clear()

    @property
    def room(self) -> int:
        """How many data messages would be taken now."""
        return self.capacity - len(self._data)

    def statistics(self) -> dict[str, LaneStatistics]:
        """Depth, high-water mark and waits of each lane, by name: control, data, slots."""
        return {
            "control": self._control_lane.statistics(len(self._control)),
            "data": self._data_lane.statistics(len(self._data)),
            "slots": self._slots_lane.statistics(len(self._slots)),
        }


class Address(Generic[InboxIn]):
    """The right to send an actor the messages of its inbox, and nothing else of it."""

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: Mailbox[object]) -> None:
        self._mailbox = mailbox

    def offer(self, message: InboxIn) -> bool:
        """Send a data message. False when the lane is full: the sender must do something about it."""
        assert isinstance(message, Data), f"{type(message).__name__} does not travel in the data lane"
        return self._mailbox.offer(message)

    def tell(self, message: InboxIn) -> None:
        """Send a control or merging message; it is always taken."""
        assert isinstance(message, (Control, Merging)), f"{type(message).__name__} may be refused: offer it"
        self._mailbox.tell(message)


class Fate(Enum):
    """What ends when a handler raises. There are two, no more."""

    OWN = "this request or socket"
    WORKER = "the worker: admission, scheduler and executor start anew, the sockets live on"


class Actor(ABC, Generic[Inbox]):
    """Private state, a mailbox, and a handler that is given one message at a time.

    Subclasses name their `fate`. Those whose fate is their own also say in `lose` how the request or socket that the
    message was about is ended; a `lose` that raises is a defect of the engine and ends the actor.
    """

    name: ClassVar[str]
    fate: ClassVar[Fate]

    def __init__(self, mailbox: Mailbox[Inbox]) -> None:
        self._mailbox = mailbox

    @property
    def address(self) -> Address[Inbox]:
        return Address(cast(Mailbox[object], self._mailbox))

    @property
    def mailbox(self) -> Mailbox[Inbox]:
        return self._mailbox

    @abstractmethod
    def handle(self, message: Inbox) -> None:
        """Act on one message. Plain code: no await, nothing that holds the event loop for over about 2 ms."""

    def lose(self, message: Inbox, error: Exception) -> None:
        """End what `message` was about, after `handle` raised `error` on it. For actors whose fate is their own."""
        raise error

    async def run(self) -> None:
        """Handle messages until cancelled. Raises what `handle` raised when the fate is the worker's."""
        await self._mailbox.each(self._handle_or_lose)

    async def run_beside(self, ticks: Coroutine[Any, Any, None]) -> None:
        """Handle messages beside `ticks`, which tells this actor what time it is; when one of them ends, so does the
        other. Raises what either raised."""
        # No TaskGroup: it would cancel them in another order in every run, and a simulation must be repeatable.
        tasks = [
            asyncio.create_task(self._mailbox.each(self._handle_or_lose), name=f"{self.name} handler"),
            asyncio.create_task(ticks, name=f"{self.name} ticks"),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _handle_or_lose(self, message: Inbox) -> None:
        try:
            self.handle(message)
        except Exception as error:
            log.exception("actor.failed", actor=self.name, message=type(message).__name__)
            if self.fate is Fate.WORKER:
                raise
            self.lose(message, error)
