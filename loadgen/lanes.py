"""Sockets that carry many requests at once, each on a lane of its own, and who gets which of them.

Knows `stream_id`, that a client's requests share its socket, and that whoever has no name gets an idle socket, opened
before it was needed. Knows nothing of when a request is due and what is asked.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from loadgen.answers import events, hear, record_drop, record_unreadable
from loadgen.client import NotOpened, connected
from loadgen.exchange import Exchange

SPARE = 16
"""Idle sockets kept open for requests to come."""
AT_A_TIME = 64
"""Sockets that are being opened at once: a listen backlog is often 100."""
MOST_SOCKETS = 960
"""Beyond them requests share: systems and servers have limits of their own."""


@dataclass(slots=True)
class _Asked:
    exchange: Exchange
    ended: asyncio.Event
    on_text: Callable[[], None] | None


class LaneSocket:
    """One open WebSocket, read all the time: every event is stamped when it arrives and told to its lane's request."""

    def __init__(self, connection: ClientConnection, number: int = 0, connect_ms: float | None = None) -> None:
        self.number = number
        self.connect_ms = connect_ms
        self._connection = connection
        self._asked: dict[str | None, _Asked] = {}
        self._reading = asyncio.create_task(self._read())
        self.usable = True

    @classmethod
    async def open(cls, url: str, key: str | None, number: int = 0) -> "LaneSocket":
        """Raises `NotOpened`."""
        began_s = time.perf_counter()
        connection = await connected(url, key)
        return cls(connection, number, (time.perf_counter() - began_s) * 1e3)

    def __len__(self) -> int:
        """How many requests are under way."""
        return len(self._asked)

    async def ask(self, lane: str, body: bytes, exchange: Exchange, on_text: Callable[[], None] | None = None) -> None:
        """Send one request, which names `lane` and is alone on it, and record its answer in `exchange`.

        Returns when the answer has ended, or cannot come any more. `on_text` is called at each non-empty delta. A
        cancel leaves what was recorded so far, as "unfinished"; what still comes for that lane is passed over.
        """
        asked = self._asked[lane] = _Asked(exchange, asyncio.Event(), on_text)
        exchange.outcome = "unfinished"
        exchange.sent_s = time.perf_counter()
        try:
            await self._connection.send(body, text=True)
            await asked.ended.wait()
        except ConnectionClosed as closed:
            if not asked.ended.is_set():
                record_drop(exchange, closed, time.perf_counter())
        finally:
            del self._asked[lane]

    async def close(self) -> None:
        """Close with 1000. What is under way is recorded as dropped."""
        await self._connection.close()
        await self._reading

    async def _read(self) -> None:
        receive = self._connection.recv
        now = time.perf_counter
        try:
            while True:
                frame = await receive(decode=False)
                arrived_s = now()
                event = events.decode(frame)
                asked = self._asked.get(event.stream_id)
                if asked is None or asked.ended.is_set():
                    continue
                if hear(asked.exchange, event, arrived_s, asked.on_text):
                    asked.ended.set()
        except ConnectionClosed as closed:
            for asked in self._still_running():
                record_drop(asked.exchange, closed, now())
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            for asked in self._still_running():
                record_unreadable(asked.exchange, unreadable, now())
            await self._connection.close()

    def _still_running(self) -> list[_Asked]:
        self.usable = False
        running = [asked for asked in self._asked.values() if not asked.ended.is_set()]
        for asked in running:
            asked.ended.set()
        return running


class Lane:
    """A lane of a socket that others use as well, asked as if it were a socket."""

    def __init__(self, socket: LaneSocket, name: str) -> None:
        self.socket = socket
        self._name = name

    @property
    def number(self) -> int:
        return self.socket.number

    def connect_ms_once(self) -> float | None:
        """How long the socket took to open; None when that has been told before, here or on another lane."""
        told, self.socket.connect_ms = self.socket.connect_ms, None
        return told

    async def ask(self, body: bytes, exchange: Exchange, on_text: Callable[[], None] | None = None) -> bool:
        """As `LaneSocket.ask`. Whether the socket can be asked again."""
        await self.socket.ask(self._name, body, exchange, on_text)
        return self.socket.usable


@dataclass(slots=True)
class Pool:
    """All sockets to one server. `of` gives out, `back` takes back, and a task keeps `SPARE` idle ones ahead."""

    url: str
    key: str | None
    most: int = MOST_SOCKETS
    opened: int = 0
    """So far, those included that are no more."""
    next_number: int = 0
    """Of the next socket."""
    _named: dict[str, LaneSocket] = field(default_factory=dict)
    _idle: list[LaneSocket] = field(default_factory=list)
    _open: set[LaneSocket] = field(default_factory=set)
    _opening: int = 0
    _refill: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def open_ahead(self, clients: Iterable[str], spare: int) -> None:
        """A socket for each of these named clients, and `spare` idle ones if they open. Raises `NotOpened`."""
        gate = asyncio.Semaphore(AT_A_TIME)

        async def attempt(client: str) -> NotOpened | None:
            async with gate:
                try:
                    self._named[client] = await self._new()
                except NotOpened as declined:
                    return declined
            return None

        for declined in await asyncio.gather(*map(attempt, clients)):
            if declined is not None:
                raise declined
        await self._fill(spare)

    async def of(self, client: str) -> LaneSocket:
        """The client's own socket; of nobody (""), an idle one or, with too many open, the least used.

        Raises `NotOpened`.
        """
        if client:
            socket = self._named.get(client)
            if socket is None or not socket.usable:
                socket = self._named[client] = await self._new()
            return socket
        while self._idle:
            socket = self._idle.pop()
            if socket.usable:
                self._look_ahead()
                return socket
            self._open.discard(socket)
        if len(self) + self._opening < self.most:
            return await self._new()
        shared = [socket for socket in self._open if socket.usable and socket not in self._named.values()]
        if not shared:
            raise NotOpened("too_many_sockets", f"{self.most:,} sockets are open, and none of them can be shared.")
        return min(shared, key=len)

    def back(self, client: str, socket: LaneSocket) -> None:
        """A request that `of` gave this socket to has ended on it."""
        if not socket.usable:
            self._open.discard(socket)
        elif not client and not len(socket) and socket not in self._idle:
            self._idle.append(socket)

    async def close(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.gather(self._refill, return_exceptions=True)
        await asyncio.gather(*(socket.close() for socket in self._open), return_exceptions=True)

    async def _new(self) -> LaneSocket:
        self._opening += 1
        number = self.next_number
        self.next_number += 1
        try:
            socket = await LaneSocket.open(self.url, self.key, number)
        finally:
            self._opening -= 1
        self.opened += 1
        self._open.add(socket)
        return socket

    def _look_ahead(self) -> None:
        if self._refill is None or self._refill.done():
            self._refill = asyncio.create_task(self._fill(SPARE))

    async def _fill(self, idle: int) -> None:
        while len(self._idle) < idle and len(self) + self._opening < self.most:
            try:
                self._idle.append(await self._new())
            except NotOpened:  # whoever needs it will be told
                return
