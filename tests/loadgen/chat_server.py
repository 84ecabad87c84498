"""A chat completions server that answers each request as a test's script says, on the test's own event loop.

Knows the shapes of OpenAI's chunks and how HTTP/1.1 frames them. Knows nothing of the client.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Body = dict[str, Any]

MODELS = {"object": "list", "data": [{"id": "m", "object": "model"}]}


class Answer:
    """What a script writes with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def plain(self, status: int, body: object, *headers: str) -> None:
        """A whole answer with a Content-Length."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(text)}", *headers, "", ""]
        self.raw("\r\n".join(head).encode() + text)

    def begin(self, *headers: str) -> None:
        """The head of a chunked stream."""
        head = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "Transfer-Encoding: chunked", *headers, "", ""]
        self.raw("\r\n".join(head).encode())

    def piece(self, data: bytes) -> None:
        """One HTTP chunk."""
        self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def text(self, *texts: str) -> None:
        """An event for each, in a chunk of its own."""
        for text in texts:
            self.piece(event(chunk({"content": text})))

    def finish(self, reason: str | None = "length", usage: Body | None = None) -> None:
        """The finish reason, the usage if there is one, [DONE], and the end of the body."""
        self.piece(event(chunk({}, reason)))
        if usage is not None:
            self.piece(event({"object": "chat.completion.chunk", "choices": [], "usage": usage}))
        self.piece(b"data: [DONE]\n\n")
        self.raw(b"0\r\n\r\n")


Script = Callable[[Answer, Body], Awaitable[None]]


class ChatServer:
    """What the server was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self.requests: list[Body] = []
        self.heads: list[str] = []
        self.connections = 0
        self.health = [200]
        """What `GET /health` answers, one after another and the last for ever."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = Answer(reader, writer)
        try:
            first = True
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if head.startswith("GET /v1/models "):
                    answer.plain(200, MODELS)
                    continue
                if head.startswith("GET /health "):
                    answer.plain(self.health.pop(0) if len(self.health) > 1 else self.health[0], {})
                    continue
                self.connections += first
                first = False
                self.heads.append(head)
                length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
                body = json.loads(await reader.readexactly(int(length.partition(":")[2])))
                self.requests.append(body)
                await self.script(answer, body)
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closed it
        finally:
            writer.close()


@asynccontextmanager
async def chat_server(script: Script) -> AsyncIterator[ChatServer]:
    """A server on a free port of loopback, until the block ends."""
    scripted = ChatServer(script)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    scripted.url = f"http://{host}:{port}/v1/chat/completions"
    try:
        yield scripted
    finally:
        server.close()


# -- the events


def chunk(delta: Body, finish_reason: str | None = None) -> Body:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def event(data: Body) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def usage(output_tokens: int, cached_tokens: int | None = None) -> Body:
    details = None if cached_tokens is None else {"cached_tokens": cached_tokens}
    return {
        "prompt_tokens": 9,
        "completion_tokens": output_tokens,
        "total_tokens": 9 + output_tokens,
        "prompt_tokens_details": details,
    }


async def answer(to: Answer, request: Body) -> None:
    """A script: a role, three chunks of text with an empty one between them, and the output limit."""
    to.begin()
    to.piece(event(chunk({"role": "assistant", "content": ""})))
    to.text("Hello", "", " ✓", ".")
    to.finish("length", usage(5, 2))
