"""A connection alone: a socket made of lists, and addresses that remember what was sent to them."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, cast

from actors.actor import Address, Mailbox
from actors.connection import Connection, ConnectionLimits
from actors.directory import ConnectionInbox
from actors.exchange import ToTokeniser
from actors.home import Resuming
from actors.metrics import Metrics
from actors.socket import SocketGone
from protocol.messages import (
    Accepted,
    Ask,
    Cancel,
    ConnectionClosed,
    Control,
    Data,
    Ended,
    FinishReason,
    Merging,
    SetPaused,
    Stats,
    Text,
    TextEnd,
    WatchConnection,
)
from tests.protocol.official import validate_event

Event = dict[str, Any]
OUTPUT = ["output_item.added", "content_part.added", "output_text.delta"]
DONE = ["output_text.done", "content_part.done", "output_item.done"]
"""The events around an answer's text, in the short names of `Rig.kinds`."""


class Recorder(Mailbox[Any]):
    """A mailbox that nobody empties. `full`: it refuses data."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, 1)
        self.messages: list[Any] = []
        self.full = False
        self._arrived = asyncio.Event()

    def offer(self, message: Data) -> bool:
        if not self.full:
            self.tell(message)
        return not self.full

    def tell(self, message: Control | Data | Merging) -> None:
        self.messages.append(message)
        self._arrived.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until what was sent here makes something so."""
        while not true():
            self._arrived.clear()
            await self._arrived.wait()

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


class FakeSocket:
    """`room` cleared: a reader that has stopped. `leave`: the other end is gone, whatever it has not read."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | str] = asyncio.Queue()
        self.frames: list[bytes] = []
        self.room = asyncio.Event()
        self.room.set()
        self.left: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.closed: list[tuple[int, str]] = []

    def leave(self, code: int = 1006) -> None:
        if not self.left.done():
            self.left.set_result(code)

    async def recv(self) -> bytes | str:
        receiving = asyncio.ensure_future(self.incoming.get())
        await asyncio.wait((receiving, self.left), return_when=asyncio.FIRST_COMPLETED)
        if self.left.done():
            receiving.cancel()
            raise SocketGone(self.left.result())
        return receiving.result()

    def offer(self, frame: bytes) -> bool:
        if not self.room.is_set() or self.left.done():
            return False
        self.frames.append(frame)
        return True

    async def send(self, frame: bytes) -> None:
        waiting = asyncio.ensure_future(self.room.wait())
        try:
            await asyncio.wait((waiting, self.left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self.left.done():
            raise SocketGone(self.left.result())
        self.frames.append(frame)

    async def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))
        self.leave(code)


class Rig:
    """One connection being served, and everything around it in the test's hands."""

    def __init__(
        self,
        *,
        capacity: int = 64,
        tenant: str = "shop",
        connection: int = 7,
        resuming: Resuming | None = None,
        **limits: Any,
    ) -> None:
        self.now = 100.0
        self.socket = FakeSocket()
        self.tokeniser, self.scheduler, self.reaper = Recorder(), Recorder(), Recorder()
        self.metrics = Metrics()
        self.mailbox: Mailbox[ConnectionInbox] = Mailbox(lambda: self.now, capacity)
        ids = itertools.count(1)
        self.connection = Connection(
            self.mailbox,
            connection=connection,
            socket=self.socket,
            tenant=tenant,
            model="m",
            tokeniser=cast(Address[ToTokeniser], Address(self.tokeniser)),
            scheduler=cast(Address[SetPaused], Address(self.scheduler)),
            reaper=cast(Address[WatchConnection | ConnectionClosed], Address(self.reaper)),
            clock=lambda: self.now,
            unix_clock=lambda: 1_732_900_000.5,
            new_id=lambda: f"{next(ids):x}" if connection == 7 else f"{connection:x}{next(ids):04x}",
            metrics=self.metrics,
            limits=ConnectionLimits(**{"stall_s": 0.01, "close_s": 0.05, **limits}),
            resuming=resuming,
        )
        self.serving = asyncio.create_task(self._live())
        self.stays: bool | None = None
        """Whether it has outlived its socket; None while it has not lost it."""
        self._events: list[Event] = []

    async def _live(self) -> None:
        self.stays = await self.connection.serve()
        if self.stays:  # not in a task of its own: `serving` is all of its life
            await self.connection.stay()

    # --- the client ---

    def send(self, **fields: Any) -> None:
        self.socket.incoming.put_nowait(json.dumps(fields))

    def create(self, lane: str | None = None, **fields: Any) -> None:
        named = {} if lane is None else {"stream_id": lane}
        self.send(type="response.create", model="m", input="Say hello.", **named, **fields)

    @property
    def events(self) -> list[Event]:
        """Every event so far, each looked at by the official client's types once: tests ask for them many times."""
        for frame in self.socket.frames[len(self._events) :]:
            validate_event(frame)
            self._events.append(json.loads(frame))
        return list(self._events)

    def kinds(self, lane: str | None = None) -> list[str]:
        """What was said on a lane, in the short names of the events; `error:CODE` for a refusal."""
        return [
            f"error:{event['error']['code']}" if event["type"] == "error" else event["type"].removeprefix("response.")
            for event in self.events
            if event.get("stream_id") == lane
        ]

    def text(self, lane: str | None = None) -> str:
        return "".join(
            event["delta"]
            for event in self.events
            if event["type"] == "response.output_text.delta" and event.get("stream_id") == lane
        )

    # --- the engine ---

    @property
    def asks(self) -> list[Ask]:
        return self.tokeniser.of(Ask)

    @property
    def cancels(self) -> list[Cancel]:
        return self.tokeniser.of(Cancel)

    def tell(self, message: Control | Merging) -> None:
        self.mailbox.tell(message)

    async def asked(self, lane: str | None = None, **fields: Any) -> str:
        """Ask, and the id under which the tokeniser was asked."""
        known = len(self.asks)
        self.create(lane, **fields)
        await self.until(lambda: len(self.asks) > known)
        return self.asks[-1].request

    async def running(self, lane: str | None = None, **fields: Any) -> str:
        """Ask, and have it accepted."""
        request = await self.asked(lane, **fields)
        self.tell(Accepted(request, 9, 64, self.now))
        await self.until(lambda: "created" in self.kinds(lane))
        return request

    async def say(self, request: str, text: str, *times: float) -> None:
        self.tell(Text(request, text, times))
        await self.settle()

    def end(self, request: str, reason: FinishReason = "stop", tokens: int = 3, text: str = "") -> None:
        self.tell(Text(request, text, (), (), TextEnd(reason, tokens)))
        self.tell(Ended(request, reason, Stats(queued_s=0.041, prefill_s=0.012, first_token_at=self.now)))

    # --- waiting ---

    async def until(self, true: Callable[[], bool]) -> None:
        """Let everyone else work until something is so."""
        async with asyncio.timeout(5):
            while not true():  # noqa: ASYNC110  what is waited for is anyone's doing, so there is no one event
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everyone else work until nothing is left to handle or to send."""
        quiet = 0
        async with asyncio.timeout(5):
            while quiet < 12:
                before = (len(self.socket.frames), self.socket.incoming.qsize(), self._handled())
                await asyncio.sleep(0)
                after = (len(self.socket.frames), self.socket.incoming.qsize(), self._handled())
                quiet = quiet + 1 if before == after else 0

    def _handled(self) -> tuple[int, ...]:
        lanes = self.mailbox.statistics().values()
        return (*(lane.depth for lane in lanes), *(lane.taken for lane in lanes))

    async def leave(self) -> None:
        """The end of a test: the client goes, the engine lets go of all it was asked."""
        self.socket.leave()
        for ask in self.asks:
            self.tell(Ended(ask.request, "cancelled", Stats()))
        await self.until(lambda: self.stays is not None or self.serving.done())
        if self.stays:
            self.serving.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(self.serving, return_exceptions=True)


MakeRig = Callable[..., Rig]
