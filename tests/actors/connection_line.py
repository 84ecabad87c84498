"""Connections that know of one another: a response may go on upon another of them."""

from typing import Any

from actors.home import Resuming
from actors.resumables import Resumables, Room
from protocol.messages import ConnectionClosed, Detached, GraceOver, Started
from tests.actors.connection_rig import MakeRig, Rig

GRACE_S = 30.0


class Line:
    """Connections that know of one another, and a clock for all."""

    def __init__(
        self, make_rig: MakeRig, *, per_key: int = 64, per_key_bytes: int = 1 << 30, grace_s: float = GRACE_S
    ) -> None:
        self._make_rig = make_rig
        self.rigs: dict[int, Rig] = {}
        self.resumables = Resumables(per_key=Room(per_key, per_key_bytes))
        self.watched: list[Detached] = []
        self.resuming = Resuming(self.resumables, self._tell, self.watched.append, grace_s)

    def _tell(self, connection: int, message: Any) -> None:
        rig = self.rigs.get(connection)
        if rig is not None and not rig.serving.done():
            rig.tell(message)

    def connect(self, **options: Any) -> Rig:
        number = len(self.rigs) + 1
        rig = self.rigs[number] = self._make_rig(connection=number, resuming=self.resuming, **options)
        return rig

    async def settle(self) -> None:
        for _ in range(3):
            for rig in self.rigs.values():
                await rig.settle()

    async def begun(self, text: str = "One, two", **options: Any) -> tuple[Rig, str]:
        """A connection, and a resumable response on it of which this much has been told."""
        rig = self.connect(**options)
        request = await rig.running("a", resumable=True)
        rig.tell(Started(request, rig.now))
        for word in text.split(" "):
            await rig.say(request, word, rig.now)
        return rig, request

    async def lost(self, rig: Rig, code: int = 1006) -> None:
        rig.socket.leave(code)
        await rig.until(lambda: bool(rig.reaper.of(ConnectionClosed)))
        await self.settle()

    async def resumed(self, request: str, after: int | None, lane: str = "a", **options: Any) -> Rig:
        """A new connection on which this response is to go on."""
        rig = self.connect(**options)
        named = {} if after is None else {"starting_after": after}
        rig.send(type="response.resume", response_id=request, stream_id=lane, **named)
        await self.settle()
        return rig

    def out_of_grace(self, rig: Rig, request: str) -> None:
        """Nobody has come back for it."""
        rig.tell(GraceOver(request, rig.now + GRACE_S))
