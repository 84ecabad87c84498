"""One socket to a server, and what happened on it.

Knows the wire from the client's side (WIRE.md), on the default lane with one request at a time, and stamps every
event as it is received. Decodes only the fields a client of figures needs, so that measuring many sockets costs
little. Knows nothing of percentiles, prompts, or how many sockets there are.
"""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from loadgen.figures import Exchange

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
LARGEST_MODELS_LIST = 2**20

FINISHED = frozenset({"stop", "stop_text", "length", "prefilled"})
"""The finish reasons of an answer that ended as it was asked to."""


# -- what is read of an event; everything else is skipped without being built


class _TokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    input_tokens_details: _TokenDetails | None = None
    output_tokens: int | None = None


class _Rota(msgspec.Struct, frozen=True):
    finish_reason: str | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    preemptions: int | None = None
    error_code: str | None = None


class _Error(msgspec.Struct, frozen=True):
    code: str | None = None
    type: str | None = None
    message: str | None = None


class _IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str | None = None


class _Response(msgspec.Struct, frozen=True):
    status: str | None = None
    usage: _Usage | None = None
    rota: _Rota | None = None
    error: _Error | None = None
    incomplete_details: _IncompleteDetails | None = None


class Event(msgspec.Struct, frozen=True):
    type: str
    stream_id: str | None = None
    delta: str | None = None
    response: _Response | None = None
    error: _Error | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Error | None = None


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


events = msgspec.json.Decoder(Event)


class Unreachable(Exception):
    """No load can be put on the server at all. The message says why in a sentence, for the person who typed the URL."""


class NotOpened(Exception):
    """One socket did not open; others may. The message says why in a sentence.

    `code` is the server's own error code where it sent one, `http_STATUS` where it sent none, else `no_websocket`,
    `connect_timeout` or `no_connection`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _StraightConnect(connect):
    """`websockets.connect` that follows no redirect: a load goes where it was aimed, or nowhere."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def request_body(model: str, prompt: str, *, max_output_tokens: int, temperature: float, ignore_eos: bool) -> bytes:
    """One `response.create` frame. `ignore_eos` is rota's own field: left out when false, for servers without it."""
    body: dict[str, Any] = {
        "type": "response.create",
        "model": model,
        "input": prompt,
        "max_output_tokens": max_output_tokens,
        "temperature": temperature,
    }
    if ignore_eos:
        body["ignore_eos"] = True
    return msgspec.json.encode(body)


def first_model(url: str, key: str | None, timeout_s: float) -> str:
    """The first id that `GET /v1/models` lists, on the server behind `url`, whatever its scheme and path.

    Blocks, for at most about `timeout_s`. Raises `Unreachable` when there is no server, or no such list.
    """
    parts = urlsplit(url)
    where = urlunsplit(("https" if parts.scheme in ("wss", "https") else "http", parts.netloc, "/v1/models", "", ""))
    request = urllib.request.Request(where, headers=authorization(key))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    name_it = "Name the model with --model."
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            models = msgspec.json.decode(answer.read(LARGEST_MODELS_LIST), type=_Models)
    except urllib.error.HTTPError as refused:
        with refused:
            error = _error_of(refused.read(LARGEST_MODELS_LIST))
        said = error.message if error and error.message else f"HTTP {refused.code} {refused.reason}"
        raise Unreachable(f"{where} answers: {said} ({name_it})") from refused
    except msgspec.DecodeError as unreadable:
        raise Unreachable(f"{where} does not list models as OpenAI's API does. {name_it}") from unreadable
    except TimeoutError as silent:
        raise Unreachable(f"{where} did not answer within {timeout_s:g} s.") from silent
    except OSError as failed:  # URLError is one; what it wraps says more
        reason = failed.reason if isinstance(failed, urllib.error.URLError) else failed
        if isinstance(reason, TimeoutError):
            raise Unreachable(f"{where} did not answer within {timeout_s:g} s.") from failed
        raise Unreachable(nothing_at(url, reason)) from failed
    if not models.data:
        raise Unreachable(f"{where} lists no model. {name_it}")
    return models.data[0].id


async def connected(url: str, key: str | None) -> ClientConnection:
    """Connect, within `CONNECT_TIMEOUT_S`. Raises `NotOpened`.

    Proxies are not used: figures through a proxy would be the proxy's. Keepalive is the library's (20 s, 20 s),
    as in the official client, so a server that answers no ping for 40 s counts as a dropped socket here as it
    would there.
    """
    try:
        return await _StraightConnect(
            url,
            additional_headers=authorization(key),
            compression=None,
            proxy=None,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=None,
            max_queue=None,  # the client must read at once what comes, or it would time its own backpressure
        )
    except InvalidStatus as declined:
        response = declined.response
        error = _error_of(bytes(response.body or b""))
        code = error.code if error and error.code else f"http_{response.status_code}"
        said = error.message if error and error.message else f"HTTP {response.status_code} {response.reason_phrase}"
        raise NotOpened(code, f"{_shown(url)} answers: {said}") from declined
    except InvalidHandshake as garbled:  # not HTTP, a closed connection, or an upgrade that does not add up
        raise NotOpened("no_websocket", f"{_shown(url)} does not open a WebSocket: {garbled}.") from garbled
    except TimeoutError as silent:
        sentence = f"{_shown(url)} did not open a WebSocket within {CONNECT_TIMEOUT_S:g} s."
        raise NotOpened("connect_timeout", sentence) from silent
    except OSError as failed:
        raise NotOpened("no_connection", nothing_at(url, failed)) from failed


class Socket:
    """One open WebSocket. One request at a time: `ask` returns when the answer has ended, or cannot come any more."""

    def __init__(self, connection: ClientConnection, number: int = 0) -> None:
        self._connection = connection
        self.number = number

    @classmethod
    async def open(cls, url: str, key: str | None, number: int = 0) -> "Socket":
        """As `connected`."""
        return cls(await connected(url, key), number)

    async def ask(self, body: bytes, exchange: Exchange, on_text: Callable[[], None] | None = None) -> bool:
        """Send one request, record its answer in `exchange`, and say whether the socket can be asked again.

        `on_text` is called at each non-empty delta. A cancel leaves what was recorded so far, as "unfinished", and an
        answer on its way: the socket is then fit only to be closed.
        """
        receive = self._connection.recv
        now = time.perf_counter
        exchange.outcome = "unfinished"
        exchange.sent_s = now()
        try:
            await self._connection.send(body, text=True)
            while True:
                frame = await receive(decode=False)
                arrived_s = now()
                if hear(exchange, events.decode(frame), arrived_s, on_text):
                    return True
        except ConnectionClosed as closed:
            record_drop(exchange, closed, now())
            return False
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            record_unreadable(exchange, unreadable, now())
            return False

    async def close(self) -> None:
        """Close with 1000, waiting at most about `CLOSE_TIMEOUT_S` for the server. Closing twice does nothing."""
        await self._connection.close()

    def abort(self) -> None:
        """Drop the connection without a word."""
        self._connection.transport.abort()


class Askable(Protocol):
    """A `Socket`, or what another API has in its place (`completions.ChatSocket`)."""

    number: int

    async def ask(self, body: bytes, exchange: Exchange, on_text: Callable[[], None] | None = None) -> bool: ...
    async def close(self) -> None: ...
    def abort(self) -> None: ...


Open = Callable[[str, str | None, int], Awaitable[Askable]]
"""Given a URL, a key and the socket's number. Raises `NotOpened`."""


async def open_sockets(
    url: str, key: str | None, count: int, open_one: Open = Socket.open
) -> list[Askable | NotOpened]:
    """Open `count` sockets, at most 64 of them at a time: a listen backlog is often 100."""
    gate = asyncio.Semaphore(64)

    async def attempt(number: int) -> Askable | NotOpened:
        async with gate:
            try:
                return await open_one(url, key, number)
            except NotOpened as declined:
                return declined

    tasks = [asyncio.create_task(attempt(number)) for number in range(count)]
    try:
        return await asyncio.gather(*tasks)
    except asyncio.CancelledError:  # leave no socket behind
        for task in tasks:
            task.cancel()
        for opened in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(opened, BaseException):
                opened.abort()
        raise


def hear(exchange: Exchange, event: Event, arrived_s: float, on_text: Callable[[], None] | None = None) -> bool:
    """Record an event of this request's answer. True: it was the last."""
    match event.type:
        case "response.output_text.delta":
            if event.delta:
                exchange.texts_s.append(arrived_s)
                if on_text is not None:
                    on_text()
        case "response.created":
            exchange.created = True
        case "response.completed" | "response.incomplete" | "response.failed":
            exchange.ended_s = arrived_s
            _record_end(exchange, event)
            return True
        case "error":
            exchange.ended_s = arrived_s
            error = event.error or _Error()
            # Before `created` it refuses the request; after it there is a response, which has broken off.
            exchange.outcome = "failed" if exchange.created else "refused"
            exchange.code = error.code or error.type
            exchange.message = error.message
            return True
    return False


def record_drop(exchange: Exchange, closed: ConnectionClosed, at_s: float) -> None:
    """Its socket is gone."""
    exchange.ended_s = at_s
    exchange.outcome = "dropped"
    # Without a close frame the socket simply broke: 1006, the code the protocol reserves for that.
    exchange.code = f"closed_{closed.rcvd.code if closed.rcvd else 1006}"
    exchange.message = closed.rcvd.reason if closed.rcvd else None


def record_unreadable(exchange: Exchange, error: Exception, at_s: float) -> None:
    """The server sent something that is no event."""
    exchange.ended_s = at_s
    exchange.outcome = "failed"
    exchange.code = "unreadable_event"
    exchange.message = str(error)


def _record_end(exchange: Exchange, event: Event) -> None:
    response = event.response or _Response()
    rota = response.rota or _Rota()
    usage = response.usage or _Usage()
    exchange.status = response.status or event.type.removeprefix("response.")
    exchange.finish_reason = rota.finish_reason
    exchange.input_tokens = usage.input_tokens
    exchange.cached_tokens = usage.input_tokens_details.cached_tokens if usage.input_tokens_details else None
    exchange.output_tokens = usage.output_tokens
    exchange.queue_ms = rota.queue_ms
    exchange.prefill_ms = rota.prefill_ms
    exchange.server_ttft_ms = rota.ttft_ms
    exchange.preemptions = rota.preemptions or 0
    cut_at_limit = response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    if event.type == "response.completed" or rota.finish_reason in FINISHED or cut_at_limit:
        exchange.outcome = "finished"
        return
    exchange.outcome = "failed"
    error = response.error or _Error()
    exchange.code = rota.error_code or rota.finish_reason or error.code or exchange.status
    exchange.message = error.message


def authorization(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _error_of(body: bytes) -> _Error | None:
    """The `error` object of an HTTP answer's JSON body, if that is what the body is."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return None


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def nothing_at(url: str, reason: object) -> str:
    if isinstance(reason, ConnectionRefusedError) and urlsplit(url).scheme in ("http", "https"):
        return (
            f"Nothing answers at {_shown(url)}: is the server running? Another server: rota load HOST:PORT --api chat."
        )
    if isinstance(reason, ConnectionRefusedError):
        return f"Nothing answers at {_shown(url)}: is `rota serve` running there? Another server: rota load HOST:PORT."
    return f"Cannot reach {_shown(url)}: {reason}."
