"""People who do everything that a client can do to a server, at random by a seed, until they are told to stop.

Each act opens a socket of its own and leaves nothing behind. Knows no process and no metrics.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice, product
from random import Random
from string import ascii_lowercase
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.simulation.sockets import Response
from tests.soak.books import Account, Ledger

SILENCE_S = 120.0
"""A socket that owes an end and says nothing for so long is given up, and is a fault of the server."""
NONSENSE: tuple[str | bytes, ...] = (
    "{",
    "[]",
    "null",
    '{"type": 1}',
    '{"type": "nothing"}',
    '{"type": "response.create", "input": 7}',
    '{"type": "response.create", "input": "a", "temperature": -3}',
    '{"type": "response.create", "input": "a", "max_output_tokens": 1e99}',
    '{"type": "response.create", "input": "a", "model": "nobody"}',
    '{"type": "response.create", "input": "a", "previous_response_id": "resp_none"}',
    '{"type": "response.create", "input": "' + "long " * 4000 + '"}',
    b"\x00\xff",
)
NEW_WORDS = 12_000
"""The tokeniser's library remembers the first 10,000 words that each thread splits, outside of Python, and grows with
each until then: no test of whether memory is flat can begin before. An answer that a conversation goes on from is one.
"""
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET / HTTP/1.1\r\n",
    b"POST /v1/responses HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
    b"\r\n\r\n\r\n",
)
BAD_FRAMES = (b"\xc1\x00", b"\x91\x00", b"\x81\xfe\xff\xff", b"\x83\x81\x00\x00\x00\x00\x00", b"\x81\x05hello")
"""Reserved bits, an unmasked continuation of nothing, a length and no more, an unknown opcode, an unmasked text."""


class Socket:
    """A client's end, with the books of what was asked and answered."""

    def __init__(self, connection: ClientConnection, account: Account) -> None:
        self.connection = connection
        self.account = account

    async def say(self, body: object, lane: str | None = None, *, asks: bool = True) -> None:
        """Send; `asks`: it earns exactly one terminal event."""
        if asks:
            self.account.sent(lane)
        if isinstance(body, dict) and lane is not None:
            body = {**body, "stream_id": lane}
        await self.connection.send(json.dumps(body) if isinstance(body, dict) else body)  # type: ignore[arg-type]

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(SILENCE_S):
            return self.account.heard(await self.connection.recv())

    async def hear_all(self) -> None:
        """Until nothing is owed any more."""
        while self.account.owed > 0:
            await self.hear()

    async def hear_some(self, events: int) -> None:
        while self.account.owed > 0 and events > 0:
            await self.hear()
            events -= 1


class Person:
    """One of them. `seed` says what it does, and when."""

    def __init__(self, port: int, seed: str, ledger: Ledger) -> None:
        self._port = port
        self._chance = Random(seed)
        self._ledger = ledger
        self._acts: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "chats": (6, self._chat),
            "cancels": (4, self._cancel),
            "blinks": (4, self._blink),
            "blinks and comes back": (4, self._come_back),
            "leaves in mid answer": (2, self._leave),
            "reads slowly": (2, self._read_slowly),
            "asks on many lanes": (2, self._many_lanes),
            "sends bad frames": (3, self._nonsense),
            "breaks the protocol": (2, self._break_protocol),
            "looks round": (2, self._look_round),
            "watches": (1, self._watch),
        }

    async def live(self, until: float) -> None:
        """Act after act, the last of which begins before `until` on the loop's clock."""
        loop = asyncio.get_running_loop()
        names = list(self._acts)
        weights = [weight for weight, _ in self._acts.values()]
        while loop.time() < until:
            [name] = self._chance.choices(names, weights)
            self._ledger.acts[name] += 1
            try:
                async with asyncio.timeout(2 * SILENCE_S):
                    await self._acts[name][1]()
            except (OSError, InvalidHandshake):
                self._ledger.acts["is not let in"] += 1
            except TimeoutError:
                self._ledger.fault(f"one who {name} was kept for over {2 * SILENCE_S:.0f} s")
            await asyncio.sleep(self._chance.uniform(0.0, 0.2))

    async def say_new_words(self) -> None:
        """`NEW_WORDS` of them, each a message, in prompts that are found to be too long once they are split: short ones
        for the event loop, and long ones for the thread beside it."""
        async with self._open("says new words") as socket:
            for at_once, output in ((25, 900), (300, 1)):
                words = map("".join, islice(product(ascii_lowercase, repeat=3), NEW_WORDS))
                while messages := [{"role": "user", "content": word} for word in islice(words, at_once)]:
                    await socket.say({"type": "response.create", "input": messages, "max_output_tokens": output})
                    await socket.hear_all()

    @asynccontextmanager
    async def _open(
        self, act: str, path: str = "/v1/responses", known: dict[str, Response] | None = None, **how: Any
    ) -> AsyncIterator[Socket]:
        how = {"compression": None, "proxy": None, "max_size": None, "open_timeout": 60, "close_timeout": 10, **how}
        connection = await connect(f"ws://127.0.0.1:{self._port}{path}", **how)
        account = Account(self._ledger, act, known)
        silent = False
        try:
            yield Socket(connection, account)
        except ConnectionClosed:
            pass
        except TimeoutError:
            silent = True
        finally:
            await connection.close()
            account.close(silent=silent)

    def _question(self, most: int = 40) -> dict[str, Any]:
        chance = self._chance
        question: dict[str, Any] = {
            "type": "response.create",
            "input": "x" * chance.choice((1, 10, 10, 60, 300, 700)) + str(chance.randrange(1000)),
            "max_output_tokens": chance.randint(1, most),
        }
        extras: tuple[tuple[float, str, object], ...] = (
            (0.3, "stop", [chance.choice(("a", "ab", "zz"))]),
            (0.2, "deadline_ms", chance.choice((1, 50, 500, 5000))),
            (0.3, "ignore_eos", True),
            (0.3, "targets", {"ttft_ms": 200, "itl_ms": 50}),
            (0.1, "generate", False),
        )
        return question | {field: value for share, field, value in extras if chance.random() < share}

    # --- acts ---

    async def _chat(self) -> None:
        async with self._open("chats") as socket:
            previous = None
            for _ in range(self._chance.randint(1, 4)):
                question = self._question()
                if previous is not None:
                    question["previous_response_id"] = previous
                await socket.say(question)
                await socket.hear_all()
                previous = socket.account.last_id

    async def _cancel(self) -> None:
        chance = self._chance
        async with self._open("cancels") as socket:
            for _ in range(chance.randint(1, 3)):
                await socket.say({**self._question(400), "ignore_eos": True}, "lane")
                await socket.hear_some(chance.choice((0, 1, 2, 10, 50)))
                running = socket.account.running
                cancel: dict[str, Any] = {"type": "response.cancel"}
                if running is not None and chance.random() < 0.5:
                    await socket.say({**cancel, "response_id": running.id}, asks=False)
                else:
                    await socket.say({**cancel, "stream_id": "lane"}, asks=False)
                await socket.hear_all()

    async def _blink(self) -> None:
        async with self._open("blinks") as socket:
            for lane in self._chance.sample((None, "a", "b"), self._chance.randint(1, 3)):
                await socket.say({**self._question(400), "ignore_eos": True}, lane)
            await socket.hear_some(self._chance.choice((0, 0, 1, 5, 40)))
            socket.connection.transport.abort()

    async def _come_back(self) -> None:
        """A response that may be resumed, of which the line is cut once or more, and sometimes for too long."""
        chance = self._chance
        known: dict[str, Response] = {}
        async with self._open("blinks and comes back", known=known) as socket:
            await socket.say({**self._question(400), "ignore_eos": True, "resumable": True}, "lane")
            await socket.hear_some(chance.choice((1, 2, 10, 40)))
            response = socket.account.running
            socket.connection.transport.abort()
        while response is not None:
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.1, 0.5, 3.0)))
            async with self._open("blinks and comes back", known=known) as socket:
                socket.account.take_over(response)
                resume = {"type": "response.resume", "response_id": response.id, "starting_after": response.events - 1}
                await socket.say(resume, "lane")
                await socket.hear_some(chance.choice((1, 10, 1000)))
                self._ledger.resumed += socket.account.resumed
                response = socket.account.running
                socket.connection.transport.abort()

    async def _leave(self) -> None:
        async with self._open("leaves in mid answer") as socket:
            await socket.say({**self._question(400), "ignore_eos": True})
            await socket.hear_some(self._chance.choice((0, 1, 5, 40)))

    async def _read_slowly(self) -> None:
        chance = self._chance
        async with self._open("reads slowly", max_queue=1) as socket:
            for lane in ("a", "b"):
                await socket.say({**self._question(300), "ignore_eos": True}, lane)
            while socket.account.owed > 0:
                await socket.hear()
                if chance.random() < 0.02:
                    await asyncio.sleep(chance.uniform(0.1, 1.5))

    async def _many_lanes(self) -> None:
        async with self._open("asks on many lanes") as socket:
            for number in range(self._chance.randint(3, 12)):
                await socket.say(self._question(20), f"lane{number % 6}")
            await socket.hear_all()

    async def _nonsense(self) -> None:
        chance = self._chance
        async with self._open("sends bad frames") as socket:
            for _ in range(chance.randint(1, 5)):
                await socket.say(chance.choice(NONSENSE))
                await socket.hear_all()
            await socket.say(self._question(5))
            await socket.hear_all()

    async def _break_protocol(self) -> None:
        """With bytes that are no HTTP, or with frames that are none once the socket is open."""
        chance = self._chance
        if chance.random() < 0.5:
            async with self._open("breaks the protocol") as socket:
                await socket.say({**self._question(100), "ignore_eos": True})
                await socket.hear_some(chance.choice((0, 3)))
                socket.connection.transport.write(chance.choice(BAD_FRAMES))
                await socket.hear_some(200)
            return
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(chance.choice(GARBAGE))
        await asyncio.sleep(chance.choice((0.0, 0.05, 0.5)))
        if chance.random() < 0.5:
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _look_round(self) -> None:
        path = self._chance.choice(("/", "/metrics", "/readyz", "/healthz", "/v1/models", "/turns", "/nothing"))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n\r\n".encode())
        if self._chance.random() < 0.8:
            await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _watch(self) -> None:
        async with self._open("watches", "/v1/turns") as socket:
            for _ in range(self._chance.choice((1, 5, 20))):
                async with asyncio.timeout(SILENCE_S):
                    await socket.connection.recv()
