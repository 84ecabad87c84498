"""The gallery: whoever watches sees from here whose turn it is on the device.

It hears what actors say to one another (`gallery_taps.py`), asks the scheduler and admission for what nobody is told
(`Look`), and makes frames of both (`protocol/turns.py`): which steps are shown and whose time they were is
`gallery_steps.py`'s, what is known of each request `gallery_lives.py`'s. Knows watchers by number. Knows no socket, no
text and no token. While nobody watches there is no timer, no look, and its taps are shut.

Nobody ever waits for it. A watcher whose socket has not taken the last frame gets none, and is told later how many it
has missed and all that has changed since. When frames cost too much, they come less often.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, assert_never, cast

import msgspec
import structlog
from msgspec import Raw

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.directory import Directory
from actors.gallery_lives import Lives
from actors.gallery_steps import Steps
from actors.gallery_taps import Anew, HeardDone, HeardFailed, HeardStep, HeardTokens, Taps
from protocol.messages import (
    CloseConnection,
    ConnectionId,
    Ended,
    Enqueue,
    FrameTaken,
    Look,
    ModelReady,
    Refused,
    Released,
    RoomSeen,
    SchedulerSeen,
    Show,
    Started,
    Tick,
    WatcherCame,
    WatcherLeft,
    WorkerLost,
)
from protocol.turns import Frame, Hello, Pool, TurnStep

GalleryInbox = WatcherCame | WatcherLeft | FrameTaken | Tick | SchedulerSeen | RoomSeen | ModelReady | WorkerLost

TICK_S = 0.125
"""Between two frames, if anything happens."""
IDLE_S = 1.0
"""Between two frames while nothing does."""
LATE_S = 0.25
"""Whoever has not answered a look by then is starting anew: the frame goes without."""
SHARE = 0.02
"""Of the event loop's time: frames are as far apart as it takes for watching to need no more, up to `IDLE_S`."""

_encode = msgspec.json.encode

log = structlog.get_logger()


class _Watcher:
    __slots__ = ("fresh", "missed", "ready", "tenant", "upto")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.fresh = True
        """It has had no frame yet but the first, which says only what is served."""
        self.ready = False
        self.missed = 0
        self.upto = 0
        """The number of the last frame that it was sent."""


class Gallery(Actor[GalleryInbox]):
    """Makes frames of what it hears and sees, for as long as there are watchers.

    `tell_ids`: whether those who need no key are told the ids of responses. They may all continue one another's.
    """

    name: ClassVar[str] = "gallery"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(
        self,
        mailbox: Mailbox[GalleryInbox],
        *,
        taps: Taps,
        policy: str,
        max_running: int,
        tell_ids: bool,
        scheduler: Address[Look],
        admission: Address[Look],
        directory: Directory,
        clock: Clock,
        unix_clock: Callable[[], float],
    ) -> None:
        super().__init__(mailbox)
        self._taps = taps
        self._policy = policy
        self._max_running = max_running
        self._tell_ids = tell_ids
        self._scheduler = scheduler
        self._admission = admission
        self._directory = directory
        self._clock = clock
        self._unix_s = unix_clock() - clock()
        self._model: ModelReady | None = None
        self._worker_up = False
        self._watchers: dict[ConnectionId, _Watcher] = {}
        self._watched = asyncio.Event()
        self._forget()

    def _forget(self) -> None:
        """All that was heard and seen: whoever comes next sees nothing of it."""
        self._lives = Lives()
        self._steps = Steps()
        self._coefficients: tuple[float, ...] = ()
        self._pool: Pool | None = None
        self._pool_changed = 0
        self._worker_shown = self._worker_up
        self._news = False
        """Something was heard since the last look."""
        self._looked_at: float | None = None
        """When those were asked who have not all answered yet."""
        self._scheduler_seen: SchedulerSeen | None = None
        self._room_seen: RoomSeen | None = None
        self._due_at = self._sent_at = 0.0
        self._spent_s = 0.0
        """On watching, since the last frame was made."""

    # --- life ---

    async def run(self) -> None:
        """Handle messages; and tick, while somebody watches."""
        await self.run_beside(self._tick_while_watched())

    async def _tick_while_watched(self) -> None:
        while True:
            await self._watched.wait()
            await asyncio.sleep(TICK_S)
            self.address.tell(Tick(self._clock()))

    def handle(self, message: GalleryInbox) -> None:
        began = self._clock()
        match message:
            case Tick():
                self._tick(message.at)
            case SchedulerSeen():
                if message.at == self._looked_at:
                    self._scheduler_seen = message
                    self._look_round()
            case RoomSeen():
                if message.at == self._looked_at:
                    self._room_seen = message
                    self._look_round()
            case FrameTaken():
                self._taken(message)
            case WatcherCame():
                self._came(message)
            case WatcherLeft():
                self._left(message.connection)
            case ModelReady():
                self._model = message
                self._worker_up = True
            case WorkerLost():
                self._worker_up = False
            case _:
                assert_never(message)
        self._spent_s += self._clock() - began

    def lose(self, message: GalleryInbox, error: Exception) -> None:
        """Nobody watches any more, and the engine goes on: whoever comes next finds the gallery as new."""
        came = [message.connection] if isinstance(message, WatcherCame) else []
        for connection in dict.fromkeys([*self._watchers, *came]):
            self._directory.tell(connection, CloseConnection(connection, 1011, "internal error"))
            self._left(connection)

    # --- who watches ---

    def _came(self, came: WatcherCame) -> None:
        model = self._model
        assert model is not None, "a watcher was let in before there was a model"
        if not self._watchers:
            self._forget()
            self._taps.open()
            self._watched.set()
        self._watchers[came.connection] = _Watcher(came.tenant)
        hello = Hello(
            round(self._clock() + self._unix_s, 6),
            model.name,
            self._policy,
            model.device,
            model.kernels,
            model.max_context,
            model.blocks,
            model.block_size,
            self._max_running,
        )
        self._directory.tell(came.connection, Show(came.connection, _encode(hello)))

    def _left(self, connection: ConnectionId) -> None:
        self._watchers.pop(connection, None)
        if not self._watchers:
            if self._taps.lost:
                log.warning("gallery.missed", messages=self._taps.lost)
            self._watched.clear()
            self._taps.shut()
            self._forget()

    def _taken(self, taken: FrameTaken) -> None:
        watcher = self._watchers.get(taken.connection)
        if watcher is None:
            return
        watcher.ready = True
        watchers = self._watchers.values()
        # Whoever is new is shown at once what there is, unless others would miss that for the frame they are taking.
        if self._looked_at is None and any(one.fresh for one in watchers) and all(one.ready for one in watchers):
            self._look(self._clock())

    # --- hearing and looking ---

    def _tick(self, now: float) -> None:
        if not self._watchers:
            return
        self._listen()
        if self._looked_at is not None:
            if now - self._looked_at >= LATE_S:
                self._show(all_answered=False)
        elif now >= self._due_at and (self._news or now - self._sent_at >= IDLE_S or self._owes):
            self._look(now)

    @property
    def _owes(self) -> bool:
        """Whether anybody is to be told something, though nothing may have happened."""
        behind = any(one.ready and (one.fresh or one.missed) for one in self._watchers.values())
        return behind or self._worker_up is not self._worker_shown

    def _look(self, now: float) -> None:
        self._looked_at = now
        self._news = False
        self._scheduler_seen = self._room_seen = None
        self._scheduler.tell(Look(now))
        self._admission.tell(Look(now))

    def _look_round(self) -> None:
        if self._scheduler_seen is not None and self._room_seen is not None:
            self._listen()
            self._show(all_answered=True)

    def _listen(self) -> None:
        lives, steps = self._lives, self._steps
        for at, message in self._taps.take():
            self._news = True
            match message:
                case HeardStep():
                    steps.begin(message, at)
                case HeardDone():
                    steps.end(message, at)
                case HeardFailed():
                    steps.fail(message)
                case HeardTokens():
                    lives.tokens(message)
                case Enqueue():
                    lives.enqueued(message, at)
                case Started():
                    lives.started(message)
                case Ended():
                    lives.ended(message, at)
                case Refused():
                    lives.refused(message, at)
                case Released():
                    lives.released(message, at)
                case WorkerLost():
                    steps.lose()
                case Anew():
                    steps.lose()
                    lives.lost(at)
                case _:
                    raise AssertionError(f"nobody said what a {type(message).__name__} means to whoever watches")

    # --- showing ---

    def _show(self, *, all_answered: bool) -> None:
        """Make a frame of all that was heard and seen, for everyone who has room for it."""
        now, lives = self._clock(), self._lives
        if self._scheduler_seen is not None:
            self._see_scheduler(self._scheduler_seen, now)
        if self._room_seen is not None:
            lives.see(self._room_seen.requests, now)
        lives.settle(self._looked_at if all_answered else None)
        self._looked_at = None
        self._due_at = now + max(TICK_S / 2, min(IDLE_S, self._spent_s / SHARE))
        self._spent_s = 0.0
        steps, left_out = self._steps.take(self._coefficients, lives.drawn, self._unix_s)
        happened = steps or left_out[0] or lives.has_changed or self._pool_changed == lives.frame
        if happened or self._owes or now - self._sent_at >= IDLE_S:
            self._send(now, steps, left_out)

    def _see_scheduler(self, seen: SchedulerSeen, now: float) -> None:
        self._lives.see(seen.requests, now)
        self._coefficients = seen.coefficients
        pool = Pool(seen.free, seen.cached, seen.used, seen.total, self._lives.held(seen.requests))
        if pool != self._pool:
            self._pool, self._pool_changed = pool, self._lives.frame

    def _send(self, now: float, steps: tuple[TurnStep, ...], left_out: tuple[int, float]) -> None:
        lives = self._lives
        self._sent_at = now
        self._worker_shown = self._worker_up
        # Most of a frame is the same for everyone: it is encoded once.
        shown_steps = cast(Any, Raw(_encode(steps) if any(one.ready for one in self._watchers.values()) else b"[]"))
        frames: dict[tuple[object, ...], bytes] = {}
        for connection, watcher in list(self._watchers.items()):
            if watcher.fresh:
                watcher.upto = lives.frame - 1
            if not watcher.ready:
                watcher.missed += not watcher.fresh
                continue
            if lives.forgotten_in > watcher.upto:
                self._directory.tell(connection, CloseConnection(connection, 1008, "too much was left unread"))
                self._left(connection)
                continue
            kind = (watcher.tenant, watcher.upto, watcher.fresh, watcher.missed)
            if kind not in frames:
                frame = Frame(
                    round(now + self._unix_s, 6),
                    shown_steps,
                    left_out,
                    self._lives_for(watcher),
                    self._pool if watcher.fresh or self._pool_changed > watcher.upto else None,
                    self._worker_up,
                    watcher.missed,
                )
                frames[kind] = _encode(frame)
            self._directory.tell(connection, Show(connection, frames[kind]))
            watcher.ready = watcher.fresh = False
            watcher.upto, watcher.missed = lives.frame, 0
        lives.next_frame()

    def _lives_for(self, watcher: _Watcher) -> Any:
        lives, may_know = self._lives, bool(watcher.tenant) or self._tell_ids
        return tuple(
            lives.life(request, self._unix_s, with_id=may_know and tenant == watcher.tenant)
            for request, tenant in lives.changed_since(watcher.upto, all_living=watcher.fresh)
        )
