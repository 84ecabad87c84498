"""A WebSocket server that answers each request as a test's script says, in threads of its own.

Knows the shapes of rota's events (WIRE.md) and nothing of rota. Runs beside any event loop.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

Body = dict[str, Any]
Script = Callable[[ServerConnection, Body], None]
"""Called with the socket and the decoded `response.create`, in the socket's thread."""

ROTA: Body = {"finish_reason": "length", "queue_ms": 41.0, "prefill_ms": 12.0, "ttft_ms": 55.0, "preemptions": 0}


class ScriptedServer:
    """What the server was asked, and how it answers HTTP."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self.requests: list[Body] = []
        self.upgrades: list[Headers] = []
        self.sockets: list[ServerConnection] = []
        """All that have been opened."""
        self.models: tuple[int, str] = (200, json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}))
        """Status and body of `GET /v1/models`."""
        self.decline: Callable[[int], tuple[int, str] | None] = lambda upgrade: None
        """Given which upgrade it is, from 0: None, or the status and body to decline it with."""
        self.redirect_to: str | None = None
        """Answer every HTTP request with a redirect to this URL."""
        self._lock = threading.Lock()
        self._opened = threading.Condition(self._lock)

    def until_open(self, sockets: int) -> None:
        """Returns when so many have been opened. Raises TimeoutError: within 10 s there were not."""
        with self._opened:
            if not self._opened.wait_for(lambda: len(self.sockets) >= sockets, 10.0):
                raise TimeoutError(f"only {len(self.sockets)} of {sockets} sockets were opened")

    def on_http(self, connection: ServerConnection, request: Request) -> Response | None:
        if self.redirect_to is not None:
            response = connection.respond(307, "")
            response.headers["Location"] = self.redirect_to
            return response
        if request.path == "/v1/models":
            return connection.respond(*self.models)
        if request.path != "/v1/responses":
            return connection.respond(404, "{}")
        with self._lock:
            self.upgrades.append(request.headers)
            number = len(self.upgrades) - 1
        declined = self.decline(number)
        return None if declined is None else connection.respond(*declined)

    def on_socket(self, connection: ServerConnection) -> None:
        with self._opened:
            self.sockets.append(connection)
            self._opened.notify_all()
        try:
            for frame in connection:
                request = json.loads(frame)
                with self._lock:
                    self.requests.append(request)
                self.script(connection, request)
        except ConnectionClosed:
            pass  # the script, or the client, closed it


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    """A server on a free port of loopback, until the block ends."""
    scripted = ScriptedServer(script)
    with serve(scripted.on_socket, "127.0.0.1", 0, process_request=scripted.on_http, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.socket.getsockname()[:2]
        scripted.url = f"ws://{host}:{port}/v1/responses"
        try:
            yield scripted
        finally:
            server.shutdown()
            thread.join()


# -- the events


def response(status: str, **more: Any) -> Body:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1732900000,
        "status": status,
        "model": "m",
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        **more,
    }


def usage(output_tokens: int, input_tokens: int = 9, cached_tokens: int = 0) -> Body:
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


def delta(text: str) -> Body:
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return {"type": "response.output_text.delta", "sequence_number": 5, **where, "delta": text, "logprobs": []}


def refusal(code: str, message: str, status: int = 429) -> Body:
    error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
    return {"type": "error", "status": status, "error": error}


def say(connection: ServerConnection, *events: Body) -> None:
    for event in events:
        connection.send(json.dumps(event))


def begin(connection: ServerConnection, *texts: str) -> None:
    """The opening events, and these deltas."""
    say(
        connection,
        {"type": "response.created", "sequence_number": 0, "response": response("queued")},
        {
            "type": "response.queued",
            "sequence_number": 1,
            "response": response("queued", rota={"position": 1, "estimated_wait_ms": 40.0}),
        },
        {"type": "response.in_progress", "sequence_number": 2, "response": response("in_progress")},
        {
            "type": "response.content_part.added",
            "sequence_number": 4,
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "part": {"type": "output_text", "text": "", "annotations": []},
        },
        *map(delta, texts),
    )


def end(connection: ServerConnection, kind: str = "incomplete", **more: Any) -> None:
    """The terminal event `response.KIND`: by default, three tokens cut at the output limit."""
    body = {"status": kind, "usage": usage(3), "rota": ROTA, **more}
    if kind == "incomplete":
        body.setdefault("incomplete_details", {"reason": "max_output_tokens"})
    status = body.pop("status")
    say(connection, {"type": f"response.{kind}", "sequence_number": 11, "response": response(status, **body)})


def answer(connection: ServerConnection, request: Body) -> None:
    """A script: three chunks, the empty one between them not counted, and the output limit."""
    begin(connection, "Hello", "", " ✓", ".")
    end(connection)


def wait_for_the_client(connection: ServerConnection) -> None:
    """Say nothing more, until the client closes the socket."""
    connection.recv()
