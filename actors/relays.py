"""The responses that are read on a connection though they are at home on another: the reader's end of a resume.

Knows which they are, on which lanes, what has come of them and waits for its turn, and who must be told when there is
room for more. Plain code: frames go out by `put`, the rest as messages, and when there is room is for the caller to
say. What is kept, and what was missed, is for `actors.home` to know.
"""

from collections.abc import Callable

from msgspec import Struct

from actors.home import Tell
from actors.lanes import Lane, Rejoin
from actors.resumables import Resumables
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    ConnectionId,
    ReaderLeft,
    RelayCancel,
    Relayed,
    RelayEnded,
    RelayTaken,
    RequestId,
    Resume,
)


class _Relay(Struct):
    lane: Lane
    home: ConnectionId
    visit: int
    after: int
    """The number of the last of its events that was put."""
    cancelled: bool = False


class Relays:
    """Each takes its lane from `begin` to its end, of which `end(lane, error)` is told: None, its terminal event.

    They are put in turn, `turn_bytes` at a time; the last may exceed it, and ends of responses are large. Of what comes
    before its turn no more than about `most_held` bytes are held: what exceeds that is let go, and asked for again.
    """

    def __init__(
        self,
        *,
        connection: ConnectionId,
        tenant: str,
        put: Callable[[list[bytes]], None],
        end: Callable[[Lane, WireError | None], None],
        resumables: Resumables,
        tell: Tell,
        turn_bytes: int,
        most_held: int,
    ) -> None:
        self._connection = connection
        self._tenant = tenant
        self._put = put
        self._end = end
        self._resumables = resumables
        self._tell = tell
        self._turn_bytes = turn_bytes
        self._most_held = most_held
        self._relays: dict[RequestId, _Relay] = {}
        self._visits = 0
        self._put_last: dict[RequestId, None] = {}
        """Those whose homes wait to hear that there is room again."""
        self._held: dict[RequestId, Relayed] = {}
        """What has come and was not put yet, next first."""
        self._held_bytes = 0
        self._let_go: dict[RequestId, None] = {}
        """Those of which something has come that was not held."""
        self._again: RequestId | None = None
        """The one of them that was asked for again, and has not come yet."""
        self._closing = False

    def __len__(self) -> int:
        return len(self._relays)

    @property
    def ready(self) -> bool:
        """There is something to do once there is room."""
        return bool(self._held or self._put_last) or (bool(self._let_go) and self._again is None)

    def begin(self, turn: Rejoin) -> None:
        """Its lane is free, and now its own."""
        berth = self._resumables.find(self._tenant, turn.request)
        if berth is None:
            self._end(turn.lane, errors.response_not_found(turn.request))
            return
        relay = self._relays[turn.request] = _Relay(turn.lane, berth.home, 0, turn.starting_after)
        self._visit(turn.request, relay)
        if turn.cancelled:
            self._cancel(turn.request, relay)

    def _visit(self, request: RequestId, relay: _Relay) -> None:
        self._visits += 1
        relay.visit = self._visits
        self._tell(relay.home, Resume(request, self._connection, relay.visit, relay.after))

    def hear(self, message: Relayed | RelayEnded) -> None:
        relay = self._relays.get(message.request)
        if relay is None or relay.visit != message.visit:
            return  # Of an earlier visit, or of one that was given up.
        if message.request == self._again:
            self._again = None
        if isinstance(message, RelayEnded):
            self._forget(message.request)
            self._end(relay.lane, message.error)
        elif self._closing:
            self._hand_on(message)
        else:
            self._hold(message)

    def _hold(self, message: Relayed) -> None:
        size = _size(message)
        if self._held and self._held_bytes + size > self._most_held:
            self._let_go[message.request] = None
        else:
            self._held[message.request] = message
            self._held_bytes += size

    def _hand_on(self, message: Relayed) -> None:
        relay = self._relays[message.request]
        self._put(list(message.frames))
        relay.after += len(message.frames)
        if message.last:
            self._forget(message.request)
            self._end(relay.lane, None)
        else:
            self._put_last[message.request] = None

    def _next(self) -> Relayed:
        message = self._held.pop(next(iter(self._held)))
        self._held_bytes -= _size(message)
        return message

    def _forget(self, request: RequestId) -> None:
        del self._relays[request]
        self._put_last.pop(request, None)
        self._let_go.pop(request, None)
        held = self._held.pop(request, None)
        if held is not None:
            self._held_bytes -= _size(held)

    def take(self) -> None:
        """There is room for more: put what has come, one after the other, a bounded amount."""
        for request in self._put_last:
            relay = self._relays[request]
            self._tell(relay.home, RelayTaken(request, self._connection, relay.visit))
        self._put_last.clear()
        left = self._turn_bytes
        while left > 0 and self._held:
            message = self._next()
            left -= _size(message)
            self._hand_on(message)
        if not self._held and self._let_go and self._again is None:
            self._again = next(iter(self._let_go))
            del self._let_go[self._again]
            self._visit(self._again, self._relays[self._again])

    def cancel(self, *, request: RequestId | None = None, lane: Lane = None) -> bool:
        """The one of that id, else the one on that lane, if it is here. Its end follows. Returns whether there was one
        that had not been cancelled."""
        found = [
            (one, relay)
            for one, relay in self._relays.items()
            if not relay.cancelled and (one == request or (request is None and relay.lane == lane))
        ]
        for one, relay in found:
            self._cancel(one, relay)
        return bool(found)

    def _cancel(self, request: RequestId, relay: _Relay) -> None:
        relay.cancelled = True
        self._tell(relay.home, RelayCancel(request, self._connection, relay.visit))

    def end_all(self, error: WireError | None) -> None:
        """The socket is about to be closed: what is held is told, and their ends follow at once."""
        self._closing = True
        while self._held:
            self._hand_on(self._next())
        # There is a gap in these: they stay at home, for whoever comes back for them.
        for request in [*self._let_go, *([] if self._again is None else [self._again])]:
            relay = self._relays[request]
            self._tell(relay.home, ReaderLeft(request, self._connection, relay.visit, lost=True))
            self._forget(request)
            self._end(relay.lane, error)
        for request, relay in self._relays.items():
            self._tell(relay.home, RelayCancel(request, self._connection, relay.visit, closing=True, error=error))

    def leave(self, *, lost: bool) -> None:
        """The socket is gone. `lost`: without a goodbye."""
        for request, relay in self._relays.items():
            self._tell(relay.home, ReaderLeft(request, self._connection, relay.visit, lost))
        self._relays.clear()
        for those in (self._held, self._put_last, self._let_go):
            those.clear()
        self._again, self._held_bytes = None, 0


def _size(message: Relayed) -> int:
    return sum(map(len, message.frames))
