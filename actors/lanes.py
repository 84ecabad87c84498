"""Whose turn it is on one socket: the lanes of a connection, as plain code.

Knows that a lane answers in the order it was asked, that lanes run side by side, and how many of each there may be.
A refusal has its place in the lane like any request, since nothing of the next request, its refusal included, may be
sent before the end of the one before. Knows nothing of what a request asks for, nor of frames.
"""

from collections import deque

from msgspec import Struct, structs

from protocol.errors import WireError, server_overloaded, websocket_stream_limit_reached
from protocol.messages import RequestId
from protocol.responses import ResponseCreate

Lane = str | None
"""A `stream_id`; None is the default lane."""

_RETRY_MS = 1000.0


class Run(Struct, frozen=True):
    """This request's turn has come: the lane is taken until `Lanes.ended`."""

    create: ResponseCreate
    received_at: float
    size: int
    """Of its frame, in bytes: about what it costs to keep it waiting."""


class Rejoin(Struct, frozen=True):
    """A response that was asked on another socket is to go on here, on its own lane, which is taken until
    `Lanes.ended`. `cancelled`: while it waited in its lane; its end is to be told all the same."""

    lane: Lane
    request: RequestId
    starting_after: int
    size: int
    cancelled: bool = False


class Withdraw(Struct, frozen=True):
    """Cancelled while it waited in its lane: its client is to be told now, in its turn."""

    create: ResponseCreate
    received_at: float
    size: int


class Refuse(Struct, frozen=True):
    """Never accepted: its client is to be told now, in its turn."""

    lane: Lane
    error: WireError


Turn = Run | Rejoin | Withdraw | Refuse


class _Line:
    """Those who wait on one lane."""

    __slots__ = ("requests", "running", "waiting")

    def __init__(self) -> None:
        self.running = False
        self.waiting: deque[Turn] = deque()
        self.requests = 0
        """How many of those that wait are not refusals."""


class Lanes:
    """All lanes of a socket. A lane exists while something runs or waits on it.

    While `running` of them run, the others wait, except whoever has a deadline and is first in its lane: whether it can
    be met is for admission to say, at once and not when it has passed, and nobody here keeps an eye on it.
    """

    def __init__(self, *, lanes: int, running: int, waiting_per_lane: int, waiting_bytes: int) -> None:
        self._most_lanes = lanes
        self._most_running = running
        self._most_waiting = waiting_per_lane
        self._most_bytes = waiting_bytes
        self._lines: dict[Lane, _Line] = {}
        self._ready: deque[Lane] = deque()
        self._running = 0
        self._bytes = 0
        """The sizes of all requests that wait, on whatever lane."""
        self.refusals = 0
        """Refusals that wait for the end of a response: the caller's to bound, because only closing helps."""

    def ask(self, create: ResponseCreate, received_at: float, size: int) -> None:
        """A request joins the end of its lane; over a limit, its refusal does."""
        self._join(create.stream_id, Run(create, received_at, size))

    def rejoin(self, turn: Rejoin) -> None:
        """The same for a response that goes on here."""
        self._join(turn.lane, turn)

    def _join(self, lane: Lane, turn: Run | Rejoin) -> None:
        line = self._lines.get(lane)
        size = turn.size
        if line is None and len(self._lines) >= self._most_lanes:
            self.refuse(lane, websocket_stream_limit_reached(self._most_lanes))
        elif line is not None and line.requests >= self._most_waiting:
            what = f"{line.requests:,} requests already wait on this lane, the most that may"
            self.refuse(lane, server_overloaded(what, _RETRY_MS))
        elif self._bytes + size > self._most_bytes:
            what = (
                f"This request has {size:,} bytes and {self._bytes:,} bytes of requests already wait on this "
                f"connection, of {self._most_bytes:,} that may"
            )
            self.refuse(lane, server_overloaded(what, _RETRY_MS))
        else:
            self._append(lane, turn).requests += 1
            self._bytes += size

    def refuse(self, lane: Lane, error: WireError) -> None:
        self._append(lane, Refuse(lane, error))
        self.refusals += 1

    def withdraw(self, lane: Lane) -> None:
        """What waits on this lane will not run. Each keeps its turn, to be told so."""
        line = self._lines.get(lane)
        if line is not None:
            line.waiting = deque(map(_withdrawn, line.waiting))

    def withdraw_all(self) -> None:
        for lane in self._lines:
            self.withdraw(lane)

    def next_turn(self) -> Turn | None:
        """Whose turn it is, lane after lane; None while every lane is taken or empty, or enough run."""
        for _ in range(len(self._ready)):
            lane = self._ready.popleft()
            line = self._lines[lane]
            turn = line.waiting[0]
            if self._running >= self._most_running and _can_wait(turn):
                self._ready.append(lane)
                continue
            line.waiting.popleft()
            match turn:
                case Run() | Rejoin():
                    line.requests -= 1
                    self._bytes -= turn.size
                    line.running = True
                    self._running += 1
                case Withdraw():
                    line.requests -= 1
                    self._bytes -= turn.size
                case Refuse():
                    self.refusals -= 1
            self._go_on(lane, line)
            return turn
        return None

    def ended(self, lane: Lane) -> None:
        """The running response of this lane has had its terminal event."""
        line = self._lines[lane]
        assert line.running, "nothing runs on that lane"
        line.running = False
        self._running -= 1
        self._go_on(lane, line)

    def clear(self) -> None:
        """Forget whoever waits; what runs stays."""
        self._ready.clear()
        self._lines = {lane: line for lane, line in self._lines.items() if line.running}
        for line in self._lines.values():
            line.waiting.clear()
            line.requests = 0
        self._bytes = 0
        self.refusals = 0

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def _append(self, lane: Lane, turn: Turn) -> _Line:
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = _Line()
        if not (line.running or line.waiting):
            self._ready.append(lane)
        line.waiting.append(turn)
        return line

    def _go_on(self, lane: Lane, line: _Line) -> None:
        if line.running:
            return
        if line.waiting:
            self._ready.append(lane)
        else:
            del self._lines[lane]


def _withdrawn(turn: Turn) -> Turn:
    match turn:
        case Run():
            return Withdraw(turn.create, turn.received_at, turn.size)
        case Rejoin():
            return structs.replace(turn, cancelled=True)
        case _:
            return turn


def _can_wait(turn: Turn) -> bool:
    """While enough run. Somebody with a deadline cannot."""
    return isinstance(turn, Rejoin) or (isinstance(turn, Run) and turn.create.deadline_ms is None)
