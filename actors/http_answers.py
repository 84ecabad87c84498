"""What the server answers over plain HTTP, and what it says where only a WebSocket is spoken.

Knows the library's `Response`, and the errors of `protocol/errors.py` as HTTP says them. Knows nobody who asks.
"""

import math
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from protocol.errors import WireError, invalid_request
from protocol.events import http_error_body, retry_headers

RESPONSES = "/v1/responses"
TURNS = "/v1/turns"
WEBSOCKETS = {
    RESPONSES: (
        f"rota answers over a WebSocket only, so {{what}} has no answer. Open a WebSocket at {RESPONSES} "
        "and send response.create (with the openai package: client.responses.connect())."
    ),
    TURNS: (
        f"rota shows whose turn it is over a WebSocket only, so {{what}} has no answer. Open a WebSocket at "
        f"{TURNS} and listen; the page at /turns draws what it says."
    ),
}
"""The paths at which sockets are opened, and what is said to whoever asks there for anything else."""


def answer(status: HTTPStatus, headers: Mapping[str, str], body: bytes) -> Response:
    framing = {"Date": formatdate(usegmt=True), "Connection": "close"}
    if status is not HTTPStatus.NO_CONTENT and status is not HTTPStatus.NOT_MODIFIED:
        framing["Content-Length"] = str(len(body))
    return Response(status.value, status.phrase, Headers({**headers, **framing}), body)


def json_answer(status: HTTPStatus, body: bytes) -> Response:
    headers = {
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return answer(status, headers, body)


def error_answer(error: WireError, status: HTTPStatus | None = None) -> Response:
    """`status` only where HTTP has a better word than the error's own."""
    response = json_answer(HTTPStatus(error.status) if status is None else status, http_error_body(error))
    response.headers.update(retry_headers(error))
    if error.retry_after_ms is not None:  # the standard's own header has whole seconds (RFC 9110, 10.2.3)
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_ms / 1000))
    return response


def with_challenge(response: Response) -> Response:
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def not_allowed(method: str, path: str) -> Response:
    if path in WEBSOCKETS:
        response = speak_websocket(HTTPStatus.METHOD_NOT_ALLOWED, f"{method[:16]} {path}", path)
    else:
        sentence = f"{method[:16]} is not allowed here; rota answers GET, and speaks over the WebSocket at {RESPONSES}."
        response = error_answer(invalid_request(sentence), HTTPStatus.METHOD_NOT_ALLOWED)
    response.headers["Allow"] = "GET, HEAD, OPTIONS"
    return response


def speak_websocket(status: HTTPStatus, what: str, path: str) -> Response:
    """Where only a WebSocket is answered. `what` was asked at `path`, one of `WEBSOCKETS`."""
    response = error_answer(invalid_request(WEBSOCKETS[path].format(what=what)), status)
    response.headers["Upgrade"] = "websocket"
    return response


def explain_in_json(_: ServerConnection, __: Request, response: Response) -> Response | None:
    """The library explains a faulty handshake in plain text; clients of this API read JSON."""
    if response.status_code < 400 or response.headers["Content-Type"] == "application/json":
        return None
    sentence = response.body.decode(errors="replace").partition("\n")[0]
    return error_answer(invalid_request(sentence), HTTPStatus(response.status_code))
