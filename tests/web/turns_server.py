"""A server that serves the pages and feeds `/v1/turns` exactly what a test tells it to, when it is told to.

Beside that it takes what the page asks on `/v1/responses`, as the scripted server of the chat page does. To look at the
page by hand: `python -m tests.web.turns_server`, which plays a made-up engine on a free port until it is interrupted.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from uuid import uuid4

import msgspec
from msgspec import structs
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State

from actors.pages import read_pages
from protocol.turns import Frame, Hello
from tests.web.scripted_server import KEY_PREFIX, PATIENCE_S, Answer, Socket, raw_reply, reply, select_subprotocol
from tests.web.turns_play import HELLO, Play, crowd

_encode = msgspec.json.encode


class Watcher:
    """One WebSocket to `/v1/turns`, from the server's side."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection

    async def say(self, *frames: Hello | Frame) -> None:
        for frame in frames:
            await self.connection.send(_encode(frame).decode())

    async def drop(self) -> None:
        """Cuts the line without a word."""
        self.connection.transport.abort()
        await self.connection.wait_closed()


class TurnsServer:
    """Listens on a free port of loopback. What is public may be changed at any time by a test."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.up = True
        self.refusal: tuple[int, str] | None = None
        """Why `/v1/turns` refuses an upgrade, as a GET without one is told: an HTTP status and a sentence."""
        self.origin = ""
        self._pages = read_pages()
        self._watchers: asyncio.Queue[Watcher] = asyncio.Queue()
        self._sockets: asyncio.Queue[Socket] = asyncio.Queue()
        self._ids: asyncio.Queue[str] = asyncio.Queue()
        for number in range(1, 100):
            self._ids.put_nowait(f"resp_{number}")

    async def watcher(self, patience_s: float | None = PATIENCE_S) -> Watcher:
        """The next WebSocket the page opens to watch."""
        async with asyncio.timeout(patience_s):
            return await self._watchers.get()

    async def socket(self, patience_s: float | None = PATIENCE_S) -> Socket:
        """The next WebSocket the page opens to ask."""
        async with asyncio.timeout(patience_s):
            return await self._sockets.get()

    async def handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path == "/v1/turns":
            self._watchers.put_nowait(Watcher(connection))
            with contextlib.suppress(ConnectionClosed):
                async for frame in connection:
                    raise AssertionError(f"A watcher says nothing; this one said {frame!r}.")
            return
        socket = Socket(connection, self._ids)
        self._sockets.put_nowait(socket)
        await socket.read_all()

    def respond(self, _connection: ServerConnection, request: Request) -> Response | None:
        if request.path in ("/v1/turns", "/v1/responses", "/v1/models"):
            refusal = self._refusal(request)
            if refusal is not None:
                return refusal
            if request.path == "/v1/models":
                return reply(200, {"object": "list", "data": [{"id": HELLO.model, "object": "model"}]})
            if request.path == "/v1/turns" and self.refusal is not None:
                status, sentence = self.refusal
                plain = "Upgrade" not in request.headers
                return reply(status, {"error": {"message": sentence}} if plain else {})
            return None
        page = self._pages.get(request.path)
        if page is None:
            return reply(404, {"error": {"message": f"Nothing is served at {request.path}."}})
        return raw_reply(200, page.body, page.headers)

    def _refusal(self, request: Request) -> Response | None:
        if not self.up:
            return reply(503, {"error": {"code": "shutting_down", "message": "The server is starting."}})
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        given = [name.strip().removeprefix(KEY_PREFIX) for name in offered if KEY_PREFIX in name]
        given.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.key is not None and self.key not in given:
            return reply(401, {"error": {"code": "authentication_failed", "message": "A key is needed."}})
        return None


@asynccontextmanager
async def running(port: int = 0) -> AsyncIterator[TurnsServer]:
    server = TurnsServer()
    async with serve(
        server.handle, "127.0.0.1", port, process_request=server.respond, select_subprotocol=select_subprotocol
    ) as listening:
        server.origin = f"http://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}"
        yield server


def minute(until: float, *, seed: int = 7, seconds: float = 60.0, every_s: float = 0.7) -> list[Hello | Frame]:
    """A hello and a busy minute that ends at that time."""
    play = Play(until - seconds, seed=seed)
    return [structs.replace(HELLO, at=play.now), *crowd(play, until, every_s=every_s)]


# --- by hand ----------------------------------------------------------------------------------------------------------


class _Stage:
    """A play in real time for whoever watches, with whom the page itself asks for."""

    def __init__(self, server: TurnsServer) -> None:
        self._server = server
        self._play = Play(time.time())
        self._watchers: list[Watcher] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self._begin(self._let_in_watchers())
        self._begin(self._let_in_customers())
        self._begin(self._crowd())
        while True:
            await asyncio.sleep(0.1)
            for frame in self._play.frames(time.time()):
                for watcher in list(self._watchers):
                    try:
                        await watcher.say(frame)
                    except ConnectionClosed:
                        self._watchers.remove(watcher)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_in_watchers(self) -> None:
        while True:
            watcher = await self._server.watcher(None)
            await watcher.say(structs.replace(HELLO, at=time.time()))
            self._watchers.append(watcher)

    async def _let_in_customers(self) -> None:
        while True:
            self._begin(self._serve(await self._server.socket(None)))

    async def _crowd(self) -> None:
        while True:
            for number in range(20):
                self._play.ask(4_000 if number % 9 == 4 else 80 + 20 * number, 40 + 6 * number)
                await asyncio.sleep(1.1)

    async def _serve(self, socket: Socket) -> None:
        numbers: dict[str, int] = {}
        while socket.connection.state is State.OPEN:
            try:
                frame = await socket.receive()
            except TimeoutError:
                continue
            if frame["type"] == "response.cancel":
                self._play.cancel(numbers[frame.get("response_id") or frame["stream_id"]])
                continue
            answer = Answer(socket.send, frame, f"resp_{uuid4().hex}")
            words = len(json.dumps(frame["input"]).split())
            number = self._play.ask(words, frame["max_output_tokens"], response_id=answer.response_id)
            numbers[answer.response_id] = numbers[frame["stream_id"]] = number
            self._begin(self._answer(answer, number))

    async def _answer(self, answer: Answer, number: int) -> None:
        told = 0
        with contextlib.suppress(ConnectionClosed):
            await answer.created()
            await answer.in_progress()
            while (written := self._play.written(number)) >= 0:
                if written > told:
                    await answer.write("The Maple is a fine laptop. " if told == 0 else "word " * (written - told))
                    told = written
                await asyncio.sleep(0.1)
            await answer.cut_off()


async def _by_hand() -> None:
    async with running() as server:
        print(f"{server.origin}/turns", flush=True)
        await _Stage(server).run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_by_hand())
