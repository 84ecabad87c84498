"""The reaper: owns every clock. Deadlines, queue waits, idle and over-age sockets, the grace of responses whose socket
was lost, expiry of what is kept, drain; and it audits that nothing leaked.

Knows when things are due and whom to tell. Ends nothing itself: whoever holds a thing ends it.
"""

import asyncio
import heapq
from typing import ClassVar, assert_never

import structlog
from msgspec import Struct

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.directory import Directory
from actors.metrics import Metrics
from protocol import errors
from protocol.messages import (
    AuditReport,
    AuditRequest,
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
    Detached,
    Drain,
    Drained,
    Expire,
    GraceOver,
    Released,
    RequestId,
    Sweep,
    Tick,
    Watch,
    WatchConnection,
    WorkerLost,
)

ReaperInbox = Watch | Released | WatchConnection | ConnectionClosed | Detached | Drain | AuditReport | WorkerLost | Tick

log = structlog.get_logger()


class Patience(Struct, frozen=True):
    """How long the reaper lets things last, in seconds."""

    tick_s: float = 0.05
    sweep_s: float = 0.25
    audit_s: float = 5.0
    socket_idle_s: float = 3600.0
    """A socket on which nothing is asked and nothing runs."""
    socket_age_s: float = 3600.0
    """Any socket; 60 minutes as at OpenAI."""
    reader_stalled_s: float = 60.0
    """A reader that takes no more than a trickle (`writer.PROGRESS_BYTES`) though there is something for it."""


class Reaper(Actor[ReaperInbox]):
    """Ticks every `tick_s`, which is how exact its clocks are."""

    name: ClassVar[str] = "reaper"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(
        self,
        mailbox: Mailbox[ReaperInbox],
        *,
        patience: Patience,
        admission: Address[Expire | Sweep],
        scheduler: Address[Sweep | AuditRequest],
        executor: Address[Sweep],
        tokeniser: Address[Sweep],
        engine: Address[Drained],
        directory: Directory,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        super().__init__(mailbox)
        self._patience = patience
        self._admission = admission
        self._scheduler = scheduler
        self._sweep_too = (executor, tokeniser)
        self._engine = engine
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._alive: dict[RequestId, Watch] = {}
        self._due: list[tuple[float, RequestId, bool]] = []
        self._connections: dict[ConnectionId, WatchConnection] = {}
        self._closing: set[ConnectionId] = set()
        self._detached: dict[RequestId, Detached] = {}
        self._next_sweep_at = 0.0
        self._next_audit_at = 0.0
        self._drain_until: float | None = None
        self._drained = False
        self._unknown_last_time: frozenset[RequestId] = frozenset()

    @property
    def alive(self) -> int:
        """Requests accepted and not released."""
        return len(self._alive)

    async def run(self) -> None:
        """Handle messages, and tick."""
        await self.run_beside(self._tick_for_ever())

    async def _tick_for_ever(self) -> None:
        while True:
            due = self._clock() + self._patience.tick_s
            await asyncio.sleep(self._patience.tick_s)
            now = self._clock()
            self._metrics.loop_lag.observe(max(0.0, now - due))
            self.address.tell(Tick(now))

    def lose(self, message: ReaperInbox, error: Exception) -> None:
        """It goes on with what it knows. Of who is here, who has gone, and that all is to end, it takes note all the
        same: nobody will say it again."""
        match message:
            case WatchConnection():
                self._connections[message.connection] = message
            case ConnectionClosed():
                self._connections.pop(message.connection, None)
            case Released():
                self._alive.pop(message.request, None)
            case Watch():
                self._alive[message.request] = message
            case WorkerLost():
                self._forget_requests()
            case Drain():
                self._drain_until = message.until
            case Detached(until=float(until)):
                # Nor would anybody give it up.
                self._directory.tell(message.connection, GraceOver(message.request, until))
            case _:
                pass

    def handle(self, message: ReaperInbox) -> None:
        match message:
            case Watch():
                self._watch(message)
            case Released():
                self._alive.pop(message.request, None)
            case WatchConnection():
                self._connections[message.connection] = message
                if self._drained:
                    self._say_goodbye(message.connection)
            case ConnectionClosed():
                self._connections.pop(message.connection, None)
                self._closing.discard(message.connection)
            case Detached():
                if message.until is None:
                    self._detached.pop(message.request, None)
                else:
                    self._detached[message.request] = message
            case Drain():
                self._drain_until = message.until
            case AuditReport():
                self._check(message)
            case WorkerLost():
                self._forget_requests()
            case Tick():
                self._tick(message.at)
            case _:
                assert_never(message)

    def _watch(self, watch: Watch) -> None:
        self._alive[watch.request] = watch
        heapq.heappush(self._due, (watch.wait_until, watch.request, True))
        if watch.deadline_at is not None:
            heapq.heappush(self._due, (watch.deadline_at, watch.request, False))

    def _forget_requests(self) -> None:
        """The three started anew: whatever they held is gone, and nobody is left to release it."""
        self._alive.clear()
        self._due.clear()

    # --- every tick ---

    def _tick(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, request, waiting = heapq.heappop(self._due)
            if request in self._alive:
                self._admission.tell(Expire(request, now, waiting))
        if now >= self._next_sweep_at:
            self._next_sweep_at = now + self._patience.sweep_s
            self._sweep(now)
        if now >= self._next_audit_at:
            self._next_audit_at = now + self._patience.audit_s
            self._scheduler.tell(AuditRequest(now))
        if self._drain_until is not None and not self._drained:
            self._drain(now, self._drain_until)

    def _sweep(self, now: float) -> None:
        sweep = Sweep(now)
        for address in (self._admission, self._scheduler, *self._sweep_too):
            address.tell(sweep)
        for detached in list(self._detached.values()):
            if detached.until is not None and detached.until <= now:
                del self._detached[detached.request]
                self._directory.tell(detached.connection, GraceOver(detached.request, now))
        for watch in list(self._connections.values()):
            verdict = self._verdict(watch, now)
            if verdict is not None and watch.connection not in self._closing:
                self._closing.add(watch.connection)
                self._directory.tell(watch.connection, verdict)

    def _verdict(self, watch: WatchConnection, now: float) -> CloseConnection | None:
        """Why this socket should be closed, if it should."""
        patience = self._patience
        if watch.stalled_since is not None and now - watch.stalled_since > patience.reader_stalled_s:
            return CloseConnection(
                watch.connection, 1008, f"too little was read for {errors.long_time(patience.reader_stalled_s)}"
            )
        if now - watch.opened_at > patience.socket_age_s:
            return CloseConnection(
                watch.connection,
                1001,
                f"a connection lasts {errors.long_time(patience.socket_age_s)}",
                errors.websocket_connection_expired(patience.socket_age_s),
                keeps=True,
            )
        if not watch.busy and now - watch.active_at > patience.socket_idle_s:
            return CloseConnection(watch.connection, 1000, f"idle for {errors.long_time(patience.socket_idle_s)}")
        return None

    def _drain(self, now: float, until: float) -> None:
        """Done when nothing is left, or when the time is over: then whoever still waits or runs is told."""
        if self._alive and now < until:
            return
        for connection in self._connections:
            self._say_goodbye(connection)
        self._drained = True
        self._engine.tell(Drained(now))

    def _say_goodbye(self, connection: ConnectionId) -> None:
        error = errors.stopped_in_the_middle()
        self._directory.tell(connection, CloseConnection(connection, 1001, "the server is shutting down", error))

    # --- nothing may leak ---

    def _check(self, report: AuditReport) -> None:
        """Blocks add up, and whatever holds blocks is a request somebody still waits for.

        A request may be known to one side only while its last message is under way: it counts as leaked when two
        audits in a row agree.
        """
        if report.free + report.cached + report.used != report.total:
            log.error("audit.blocks", **{name: getattr(report, name) for name in ("free", "cached", "used", "total")})
        unknown = frozenset(report.requests) - self._alive.keys()
        leaked = unknown & self._unknown_last_time
        if leaked:
            log.error("audit.requests", leaked=sorted(leaked))
        if report.used and not report.requests and not self._alive:
            log.error("audit.used", used=report.used)
        self._unknown_last_time = unknown
