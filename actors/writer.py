"""The way of frames to the socket: at once while it has room, else through a loop, which alone waits for the other end.

Knows how much is unsent and for how long the socket has hardly taken anything. Knows nothing of what the frames say.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from actors.actor import Clock
from actors.socket import Socket

PROGRESS_BYTES = 16 * 2**10
"""A socket that takes less than this, and not all there is, makes no progress: a trickle is no reader's pace, and would
keep an answer's place for as long as it pleases."""


class Writer:
    """`put` frames, in order; what the socket has no room for, `write` sends, in a task of its own.

    `on_idle` is called when all that had to wait has been handed to the socket, `on_stall` when the socket makes no
    progress or makes some again: `stalled_since` says which.
    """

    def __init__(
        self,
        socket: Socket,
        *,
        clock: Clock,
        stall_s: float,
        on_idle: Callable[[], None],
        on_stall: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._clock = clock
        self._stall_s = stall_s
        self._on_idle = on_idle
        self._on_stall = on_stall
        self._frames: deque[bytes] = deque()
        self._sending = False
        self._progress_at = 0.0
        """When it began to have something to wait for, or had last taken PROGRESS_BYTES."""
        self._taken_bytes = 0
        """Since then."""
        self._finishing = False
        self._dropped = False
        self._something = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.unsent_bytes = 0
        """In frames that wait, without the one that is being sent."""
        self._burst_bytes = 0
        """Those of them that were put in one go while nothing else waited. They are the first to be sent."""
        self.stalled_since: float | None = None
        """Since when it has taken less than PROGRESS_BYTES."""

    @property
    def idle(self) -> bool:
        """Everything has been handed to the socket."""
        return not self._frames and not self._sending

    @property
    def behind_bytes(self) -> int:
        """How far the reader has fallen behind: what was put though something else waited for it already.

        What was put in one go while nothing waited says nothing about the reader, however much it is.
        """
        return self.unsent_bytes - self._burst_bytes

    def put(self, frames: list[bytes]) -> None:
        if self._dropped:
            return
        if self.idle:
            frames = self._without_those_taken(frames)
            self._progress_at, self._taken_bytes = self._clock(), 0
        if not frames:
            return
        self._frames.extend(frames)
        added = sum(map(len, frames))
        self.unsent_bytes += added
        if not self._sending:  # `write` has had no turn since there was nothing to send
            self._burst_bytes += added
        self._something.set()
        if self._timer is None:
            self._look_again()

    def _without_those_taken(self, frames: list[bytes]) -> list[bytes]:
        """What is left after the socket has been given as much as it takes without anyone's waiting."""
        for number, frame in enumerate(frames):
            if not self._socket.offer(frame):
                return frames[number:]
        return []

    def finish(self) -> None:
        """`write` is to return once what waits has been sent."""
        self._finishing = True
        self._something.set()

    def drop(self) -> None:
        """Forget what waits, and whatever is still put."""
        self._dropped = True
        self._frames.clear()
        self.unsent_bytes = self._burst_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def write(self) -> None:
        """Send until told to `finish`. Raises `SocketGone`. A cancel leaves the socket fit for nothing but `close`."""
        while True:
            while self._frames:
                await self._send(self._frames.popleft())
            if self._finishing:
                return
            self._something.clear()
            self._on_idle()
            await self._something.wait()

    async def _send(self, frame: bytes) -> None:
        self.unsent_bytes = max(0, self.unsent_bytes - len(frame))
        self._burst_bytes = max(0, self._burst_bytes - len(frame))
        self._sending = True
        await self._socket.send(frame)
        self._sending = False
        self._taken_bytes += len(frame)
        if self._taken_bytes >= PROGRESS_BYTES or not self._frames:
            self._progress_at, self._taken_bytes = self._clock(), 0
            if self.stalled_since is not None:
                self.stalled_since = None
                self._on_stall()

    def _look_again(self) -> None:
        # One timer for as long as there is something to send, not one a frame: frames are many, stalls are few.
        self._timer = asyncio.get_running_loop().call_later(self._stall_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.idle or self._dropped:
            return
        if self.stalled_since is None and self._clock() - self._progress_at >= self._stall_s / 2:
            self.stalled_since = self._progress_at
            self._on_stall()
        self._look_again()
