"""The socket of `rota chat`: asks one question at a time, stops an answer, and opens anew when the connection is gone.

Knows the order of events on the default lane. Knows nothing of conversations, nor of what is shown.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from loadgen.chat_wire import Answer, Event, cancel, events
from loadgen.client import connected

STOP_PATIENCE_S = 5.0
"""How long a server may take to end an answer that it was told to stop. Then its socket is closed: that ends it too."""

Heard = Callable[[Event], None]


class Session:
    """A socket that is opened when it is needed, and stays open between questions."""

    def __init__(self, url: str, key: str | None, stop_patience_s: float = STOP_PATIENCE_S) -> None:
        self._url, self._key = url, key
        self._stop_patience_s = stop_patience_s
        self._connection: ClientConnection | None = None

    async def open(self) -> None:
        """Connect, unless it is connected. Raises `NotOpened`."""
        if self._connection is None:
            self._connection = await connected(self._url, self._key)

    async def ask(self, body: bytes, stop: asyncio.Event, heard: Heard) -> Answer:
        """Send a `response.create` and listen to its end, which is also a refusal, a lost connection or a stop.

        Once `stop` is set the answer is cancelled; if it is set before there is a connection, nothing is sent. `heard`
        is called for every event, after the answer has taken it in. Raises `NotOpened` when there is no connection to
        be had. A cancel of this task drops the connection, and with it the answer.
        """
        answer = Answer()
        stopping: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as patience:
                stopping = asyncio.create_task(self._stop(answer, stop, patience))
                await self._ask(answer, body, heard)
        except TimeoutError:
            self._drop()
        except asyncio.CancelledError:
            self._drop()
            raise
        finally:
            if stopping is not None:
                stopping.cancel()
        return answer

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _ask(self, answer: Answer, body: bytes, heard: Heard) -> None:
        was_open = self._connection is not None
        try:
            await self._listen(answer, body, heard)
        except ConnectionClosed:
            self._connection = None
            if not was_open or answer.begun.is_set():
                answer.break_off("connection_lost", "The connection was lost. The next question opens a new one.")
                return
            # It was lost while nobody spoke: the question has reached nobody.
            await self._ask(answer, body, heard)
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            self._drop()
            answer.break_off("unreadable_event", f"The server sent what is no event: {unreadable}.")

    async def _listen(self, answer: Answer, body: bytes, heard: Heard) -> None:
        await self.open()
        assert self._connection is not None
        answer.mark_sent()
        await self._connection.send(body, text=True)
        while True:
            event = events.decode(await self._connection.recv(decode=False))
            last = answer.hear(event)
            heard(event)
            if last:
                return

    async def _stop(self, answer: Answer, stop: asyncio.Event, patience: asyncio.Timeout) -> None:
        await stop.wait()
        answer.stopped = True
        now_s = asyncio.get_running_loop().time()
        patience.reschedule(now_s if answer.sent_s is None else now_s + self._stop_patience_s)
        await answer.begun.wait()
        assert answer.id is not None
        if self._connection is not None:
            with contextlib.suppress(ConnectionClosed):  # whoever listens hears of it
                await self._connection.send(cancel(answer.id), text=True)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None
