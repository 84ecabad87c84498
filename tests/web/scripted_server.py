"""A server that serves the page and says, on its WebSocket, exactly what a test tells it to say, when it is told to.

Speaks the events of the wire (design/WIRE.md) and knows their order. Generates nothing, decides nothing, waits for
nothing by the clock.
"""

import asyncio
import http
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from actors.pages import read_pages
from protocol.errors import ErrorCode, WireError

MODEL = "SmolLM2-135M-Instruct"
PATIENCE_S = 30.0
KEY_PREFIX = "openai-insecure-api-key."
Json = dict[str, Any]


class Answer:
    """One response, event by event: each method sends one or more events of the wire, numbered in order."""

    def __init__(self, send: Callable[[Json], Awaitable[None]], create: Json, response_id: str) -> None:
        self.create = create
        self.response_id = response_id
        self.send_event = send
        self.number = 0
        self._text = ""

    async def created(self, status: str = "in_progress") -> None:
        await self._send("response.created", response=self._response(status))

    async def queued(self, position: int, estimated_wait_ms: float | None) -> None:
        rota = {"position": position, "estimated_wait_ms": estimated_wait_ms}
        await self._send("response.queued", response=self._response("queued") | {"rota": rota})

    async def in_progress(self, prefilled_tokens: int | None = None, input_tokens: int | None = None) -> None:
        read = {"rota": {"input_tokens": input_tokens, "prefilled_tokens": prefilled_tokens}} if input_tokens else {}
        await self._send("response.in_progress", response=self._response("in_progress") | read)

    async def write(self, text: str) -> None:
        if not self._text:
            await self._send(
                "response.output_item.added", output_index=0, item=self._item("in_progress") | {"content": []}
            )
            await self._send("response.content_part.added", **self._at(), part=self._part(""))
        self._text += text
        await self._send("response.output_text.delta", **self._at(), delta=text, logprobs=[])

    async def begin(self, text: str) -> None:
        await self.created()
        await self.in_progress()
        await self.write(text)

    async def complete(self) -> None:
        await self._end("response.completed", "completed", "stop")

    async def forgotten(self) -> None:
        """The server does not know it any more."""
        await self.refuse("response_not_found", "The response is not known here. Ask again with response.create.")

    async def cut_off(self) -> None:
        await self._end(
            "response.incomplete", "incomplete", "length", incomplete_details={"reason": "max_output_tokens"}
        )

    async def cancelled(self) -> None:
        await self._end("response.incomplete", "cancelled", "cancelled")

    async def fail(self) -> None:
        message = f"The worker stopped after {len(self._text)} characters had been delivered. Send the request again."
        await self._fail("worker_failed", message)

    async def shut_down(self) -> None:
        message = "The server stopped before this answer was finished. Send the request again."
        await self._fail("shutting_down", message)

    async def refuse(self, code: ErrorCode, message: str, retry_after_ms: int | None = None) -> None:
        wire = WireError(code, message)
        error: Json = {"type": wire.type, "code": code, "message": message, "param": None}
        if retry_after_ms is not None:
            error |= {"headers": {"retry-after-ms": str(retry_after_ms)}, "retry_after_ms": retry_after_ms}
        await self.send_event({"type": "error", "status": wire.status, "error": error} | self._lane())

    async def _fail(self, error_code: ErrorCode, message: str) -> None:
        error = {"code": "server_error", "message": message}
        await self._end("response.failed", "failed", "failed", {"error_code": error_code}, error=error)

    async def _end(self, kind: str, status: str, reason: str, rota_more: Json | None = None, **more: Any) -> None:
        item_status = "completed" if status == "completed" else "incomplete"
        if self._text:
            await self._send("response.output_text.done", **self._at(), text=self._text, logprobs=[])
            await self._send("response.content_part.done", **self._at(), part=self._part(self._text))
            await self._send("response.output_item.done", output_index=0, item=self._item(item_status))
        rota = {
            "finish_reason": reason,
            "queue_ms": 0.4,
            "prefill_ms": 12.0,
            "ttft_ms": 55.0,
            "itl_ms": {"p50": 20.0, "p99": 31.0, "max": 33.0},
            "preemptions": 0,
            "paused_ms": 0.0,
            "delivered_chars": len(self._text),
        } | (rota_more or {})
        usage = {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        }
        output = [self._item(item_status)] if self._text else []
        response = self._response(status) | {"output": output, "usage": usage, "rota": rota} | more
        await self._send(kind, response=response)

    async def _send(self, kind: str, **fields: Any) -> None:
        await self.send_event({"type": kind, "sequence_number": self.number} | self._lane() | fields)
        self.number += 1

    def _lane(self) -> Json:
        return {"stream_id": self.create["stream_id"]} if "stream_id" in self.create else {}

    def _at(self) -> Json:
        return {"item_id": f"msg_{self.response_id}", "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": []}

    def _item(self, status: str) -> Json:
        part = self._part(self._text)
        return {
            "id": f"msg_{self.response_id}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [part],
        }

    def _response(self, status: str) -> Json:
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": 1732900000,
            "status": status,
            "model": MODEL,
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
        }


class Socket:
    """One WebSocket the page has opened, from the server's side."""

    def __init__(self, connection: ServerConnection, ids: asyncio.Queue[str]) -> None:
        self.connection = connection
        self._received: asyncio.Queue[Json] = asyncio.Queue()
        self._ids = ids

    async def receive(self) -> Json:
        """The next frame from the page."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._received.get()

    async def asked(self) -> Answer:
        """The next frame from the page, which must be a question, and the answer to script for it."""
        frame = await self.receive()
        assert frame["type"] == "response.create", frame
        return Answer(self.send, frame, self._ids.get_nowait())

    async def asked_to_resume(self, answer: Answer) -> None:
        """The next frame from the page, which must want to go on with this answer after all it was told. It does."""
        told = {"response_id": answer.response_id, "starting_after": answer.number - 1}
        assert await self.receive() == {"type": "response.resume", "stream_id": answer.create["stream_id"], **told}
        answer.send_event = self.send

    async def send(self, event: Json) -> None:
        await self.connection.send(json.dumps(event))

    async def drop(self) -> None:
        """Cuts the line without a word."""
        self.connection.transport.abort()
        await self.connection.wait_closed()

    async def close_code(self) -> int | None:
        """The close code the page sent, once it has closed the socket."""
        async with asyncio.timeout(PATIENCE_S):
            await self.connection.wait_closed()
        return self.connection.protocol.close_rcvd.code if self.connection.protocol.close_rcvd else None

    async def read_all(self) -> None:
        try:
            async for frame in self.connection:
                self._received.put_nowait(json.loads(frame))
        except ConnectionClosed:
            pass  # `close_code` and `drop` are how a test asks about the end


class ScriptedServer:
    """Listens on a free port of loopback. What is no underscore's may be changed at any time by a test."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.up = True
        self._pages = read_pages()
        self.origin = ""
        self.allowed_origin = ""
        """A page from elsewhere that may ask for the models."""
        self.host_page = ""
        """What is served at `/host`."""
        self.host_policy = self._pages["/"].headers["Content-Security-Policy"]
        """The policy of that."""
        self.hear: Callable[[Request], None] = lambda request: None
        """Called with every request."""
        self._sockets: asyncio.Queue[Socket] = asyncio.Queue()
        self._ids: asyncio.Queue[str] = asyncio.Queue()
        for number in range(1, 100):
            self._ids.put_nowait(f"resp_{number}")

    async def socket(self) -> Socket:
        """The next WebSocket the page opens."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._sockets.get()

    async def handle(self, connection: ServerConnection) -> None:
        socket = Socket(connection, self._ids)
        self._sockets.put_nowait(socket)
        await socket.read_all()

    def respond(self, _connection: ServerConnection, request: Request) -> Response | None:
        self.hear(request)
        if request.path == "/v1/responses":
            offered = request.headers.get("Sec-WebSocket-Protocol", "")
            given = [name.strip().removeprefix(KEY_PREFIX) for name in offered.split(",") if KEY_PREFIX in name]
            return None if self.up and self._key_fits(given[0] if given else None) else self._refusal()
        if request.path == "/v1/models":
            given_key = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not self.up or not self._key_fits(given_key):
                return self._refusal()
            models = reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "rota"}]})
            models.headers["Access-Control-Allow-Origin"] = self.allowed_origin or self.origin
            return models
        if request.path == "/host":
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": self.host_policy}
            return raw_reply(200, self.host_page.encode(), headers)
        page = self._pages.get(request.path)
        if page is None:
            return reply(404, {"error": {"message": f"Nothing is served at {request.path}."}})
        return raw_reply(200, page.body, page.headers)

    def _key_fits(self, given: str | None) -> bool:
        return self.key is None or given == self.key

    def _refusal(self) -> Response:
        if not self.up:
            return reply(503, {"error": {"code": "shutting_down", "message": "The server is starting."}})
        return reply(401, {"error": {"code": "authentication_failed", "message": "A key is needed."}})


def reply(status: int, body: Json) -> Response:
    return raw_reply(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def raw_reply(status: int, body: bytes, headers: dict[str, str]) -> Response:
    all_headers = Headers(headers | {"Content-Length": str(len(body)), "Connection": "close"})
    return Response(status, http.HTTPStatus(status).phrase, all_headers, body)


def select_subprotocol(_connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol("responses") if "responses" in offered else None


@asynccontextmanager
async def running() -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer()
    listening: Server
    async with serve(
        scripted.handle, "127.0.0.1", 0, process_request=scripted.respond, select_subprotocol=select_subprotocol
    ) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        scripted.origin = f"http://127.0.0.1:{port}"
        yield scripted
