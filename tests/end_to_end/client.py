"""A client of the wire, as strict as can be: every event is checked against OpenAI's own types, and for its place.

Knows the order of events on a lane (WIRE.md). Knows nothing of processes, and nothing of what an answer should say.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.end_to_end.server import Server
from tests.protocol.official import validate_event

Event = dict[str, Any]

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
SILENCE_S = 60.0
"""Nothing hangs silently: a lane that owes an event and says nothing for so long has failed."""

_AFTER_THE_TEXT = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


@dataclass(frozen=True)
class Answer:
    """All that was said of one request, from its first event to its terminal one."""

    events: tuple[Event, ...]

    @property
    def terminal(self) -> Event:
        return self.events[-1]

    @property
    def error(self) -> Event:
        """Of a refusal."""
        assert self.terminal["type"] == "error", self.terminal
        found: Event = self.terminal["error"]
        return found

    @property
    def response(self) -> Event:
        assert self.terminal["type"] != "error", self.terminal
        found: Event = self.terminal["response"]
        return found

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def reason(self) -> str:
        return str(self.response["rota"]["finish_reason"])

    @property
    def usage(self) -> Event:
        found: Event = self.response["usage"]
        return found

    @property
    def deltas(self) -> list[str]:
        return [event["delta"] for event in self.events if event["type"] == "response.output_text.delta"]

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def logprobs(self) -> list[Event]:
        deltas = [event for event in self.events if event["type"] == "response.output_text.delta"]
        return [entry for event in deltas for entry in event["logprobs"]]

    def check(self) -> "Answer":
        """The order of events, their numbers, and that every copy of the text is the same text."""
        kinds = [event["type"] for event in self.events]
        if kinds == ["error"]:
            return self
        assert kinds[0] == "response.created"
        assert kinds[-1] in TERMINAL - {"error"}
        assert [event["sequence_number"] for event in self.events] == list(range(len(kinds)))
        ids = {event["response"]["id"] for event in self.events if "response" in event}
        assert len(ids) == 1, f"events of {ids} on one lane at once"
        middle = [kind for kind in kinds[1:-1] if kind != "response.queued"]
        while middle[:1] == ["response.in_progress"]:
            middle.pop(0)
        self._check_progress()
        if middle:
            assert middle[:2] == ["response.output_item.added", "response.content_part.added"]
            assert middle[-3:] == _AFTER_THE_TEXT
            assert set(middle[2:-3]) <= {"response.output_text.delta"}
            by_kind = {event["type"]: event for event in self.events}
            assert by_kind["response.output_text.done"]["text"] == self.text
            assert by_kind["response.content_part.done"]["part"]["text"] == self.text
            [item] = self.response["output"]
            assert item == by_kind["response.output_item.done"]["item"]
            assert [part["text"] for part in item["content"]] == [self.text]
        else:
            assert self.response["output"] == []
        assert self.response["rota"]["delivered_chars"] == len(self.text)
        return self

    def _check_progress(self) -> None:
        """How much of the prompt is read only grows; what is told last is not yet, or was never, all of it."""
        told = [event["response"]["rota"] for event in self.events if event["type"] == "response.in_progress"]
        read = [rota["prefilled_tokens"] for rota in told]
        assert read == sorted(set(read)), f"the prompt was read like this: {read}"
        assert {rota["input_tokens"] for rota in told} <= {self.usage["input_tokens"]}
        assert all(tokens < self.usage["input_tokens"] for tokens in read)


class Lane:
    """One lane of a socket: ask, and hear the answer. For one reader at a time."""

    def __init__(self, client: "Client", name: str | None) -> None:
        self._client = client
        self.name = name
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._events: list[Event] = []

    async def create(self, text: object = None, **fields: object) -> None:
        """Send `response.create`: greedy, of the server's model, unless the fields say otherwise. None: left out."""
        body = {"type": "response.create", "model": self._client.model, "input": text, "temperature": 0, **fields}
        if self.name is not None:
            body["stream_id"] = self.name
        await self._client.send({name: value for name, value in body.items() if value is not None})

    async def cancel(self) -> None:
        """By lane: what runs on it and what waits."""
        await self._client.send({"type": "response.cancel"} | ({"stream_id": self.name} if self.name else {}))

    async def event(self) -> Event:
        """The next one on this lane. Raises EOFError when the socket has closed."""
        async with asyncio.timeout(SILENCE_S):
            event = await self.queue.get()
        if event is None:
            self.queue.put_nowait(None)
            raise EOFError(f"the socket was closed with {self._client.close_code}")
        self._events.append(event)
        return event

    async def until(self, kind: str, count: int = 1) -> Event:
        """Hear events up to the `count`th of this kind. Fails when the answer ends before."""
        while True:
            event = await self.event()
            if event["type"] == kind:
                count -= 1
                if not count:
                    return event
            assert event["type"] not in TERMINAL, f"it ended before {kind}: {event}"

    async def answer(self) -> Answer:
        """The whole of it, what was heard before included."""
        while not self._events or self._events[-1]["type"] not in TERMINAL:
            await self.event()
        answer, self._events = Answer(tuple(self._events)), []
        return answer.check()

    async def ask(self, text: object = None, **fields: object) -> Answer:
        await self.create(text, **fields)
        return await self.answer()


class Client(Lane):
    """A socket, and its default lane."""

    def __init__(self, connection: ClientConnection, model: str) -> None:
        super().__init__(self, None)
        self.connection = connection
        self.model = model
        self.heard: list[Event] = []
        self._lanes: dict[str | None, Lane] = {None: self}
        self._reader = asyncio.create_task(self._read())

    def lane(self, name: str) -> Lane:
        return self._lanes.setdefault(name, Lane(self, name))

    async def send(self, body: object) -> None:
        await self.connection.send(body if isinstance(body, str | bytes) else json.dumps(body))

    async def cancel_response(self, response_id: str) -> None:
        await self.send({"type": "response.cancel", "response_id": response_id})

    async def close(self) -> None:
        if not self._reader.done():
            await self.connection.close()
        await self._reader

    def vanish(self) -> None:
        """Break the connection without a word."""
        self.connection.transport.abort()

    async def closed(self) -> int:
        """Everything that was still said has been heard; returns the server's close code."""
        async with asyncio.timeout(SILENCE_S):
            await self._reader
        return self.close_code

    @property
    def close_code(self) -> int:
        return self.connection.close_code or 1006

    async def _read(self) -> None:
        try:
            while True:
                frame = await self.connection.recv(decode=False)
                validate_event(frame)
                event = json.loads(frame)
                self.heard.append(event)
                self.lane_of(event.get("stream_id")).queue.put_nowait(event)
        except ConnectionClosed:
            pass
        finally:
            for lane in self._lanes.values():
                lane.queue.put_nowait(None)

    def lane_of(self, name: str | None) -> Lane:
        return self if name is None else self.lane(name)


@asynccontextmanager
async def connected(server: Server, key: str = "any") -> AsyncIterator[Client]:
    """A socket to it, closed at the end. An event that was not valid fails the test here at the latest."""
    connection = await connect(
        server.url,
        additional_headers={"Authorization": f"Bearer {key}"},
        compression=None,
        proxy=None,
        max_size=None,
        max_queue=None,
        open_timeout=30,
        close_timeout=5,
    )
    client = Client(connection, server.model)
    try:
        yield client
    finally:
        await client.close()
