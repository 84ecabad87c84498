"""One socket to a server, and what happened on it.

Knows how a socket is opened and asked, on the default lane with one request at a time, and stamps every event as it is
received. What an event tells is in `answers`. Knows nothing of percentiles, prompts, or how many sockets there are.
"""

import asyncio
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State

from loadgen.answers import Error, events, hear, record_drop, record_unreadable
from loadgen.exchange import Exchange
from loadgen.no_way_in import about_the_key, nothing_at, perhaps_otherwise, shown
from loadgen.pace import Pace, sleep_until
from loadgen.slow_socket import slow_socket

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
PING_S = 20.0
LARGEST_MODELS_LIST = 2**20
GOING_AWAY = 1001
"""The close code of a page that is closed (RFC 6455, 7.4.1)."""
SLOW_QUEUE = 2
"""Frames that a slow reader's socket holds before it takes no more from the network."""


class _ErrorBody(msgspec.Struct, frozen=True):
    error: Error | None = None


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


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
        # A server that is busy would answer no better to a name.
        hint = about_the_key(refused.code, key) or ("" if refused.code in (429, 503) else f" ({name_it})")
        raise Unreachable(f"{where} answers: {said}{hint}") from refused
    except msgspec.DecodeError as unreadable:
        raise Unreachable(f"{where} does not list models as OpenAI's API does. {name_it}") from unreadable
    except TimeoutError as silent:
        raise Unreachable(f"{where} did not answer within {timeout_s:g} s.") from silent
    except OSError as failed:  # URLError is one; what it wraps says more
        reason = failed.reason if isinstance(failed, urllib.error.URLError) else failed
        if isinstance(reason, TimeoutError):
            raise Unreachable(f"{where} did not answer within {timeout_s:g} s.") from failed
        raise Unreachable(nothing_at(url, reason)) from failed
    except http.client.HTTPException as garbled:
        raise Unreachable(f"{where} does not speak HTTP.{perhaps_otherwise(url)}") from garbled
    if not models.data:
        raise Unreachable(f"{where} lists no model. {name_it}")
    return models.data[0].id


async def connected(url: str, key: str | None, *, slow: bool = False, silent: bool = False) -> ClientConnection:
    """Connect, within `CONNECT_TIMEOUT_S`. Raises `NotOpened`.

    `slow`: whoever receives takes its time, and next to nothing is held for it meanwhile. `silent`: no pings of our
    own; neither has a slow reader any, because the answer would stand in line behind all that it has not read.

    Proxies are not used: figures through a proxy would be the proxy's. Keepalive is the library's (20 s, 20 s),
    as in the official client, so a server that answers no ping for 40 s counts as a dropped socket here as it
    would there.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            given: dict[str, Any] = {"sock": await slow_socket(*host_and_port(url))} if slow else {}
        return await _StraightConnect(
            url,
            additional_headers=authorization(key),
            compression=None,
            proxy=None,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=None,
            # Else the client must read at once what comes, or it would time its own backpressure.
            max_queue=SLOW_QUEUE if slow else None,
            ping_interval=None if slow or silent else PING_S,
            **given,
        )
    except InvalidStatus as declined:
        response = declined.response
        error = _error_of(bytes(response.body or b""))
        code = error.code if error and error.code else f"http_{response.status_code}"
        said = error.message if error and error.message else f"HTTP {response.status_code} {response.reason_phrase}"
        hint = about_the_key(response.status_code, key)
        raise NotOpened(code, f"{shown(url)} answers: {said}{hint}") from declined
    except InvalidHandshake as garbled:  # not HTTP, a closed connection, or an upgrade that does not add up
        sentence = f"{shown(url)} does not open a WebSocket: {garbled}.{perhaps_otherwise(url)}"
        raise NotOpened("no_websocket", sentence) from garbled
    except TimeoutError as silent:
        sentence = f"{shown(url)} did not open a WebSocket within {CONNECT_TIMEOUT_S:g} s."
        raise NotOpened("connect_timeout", sentence) from silent
    except OSError as failed:
        raise NotOpened("no_connection", nothing_at(url, failed)) from failed


class Socket:
    """One open WebSocket. One request at a time: `ask` returns when the answer has ended, or cannot come any more."""

    def __init__(
        self,
        connection: ClientConnection,
        number: int = 0,
        *,
        connect_ms: float | None = None,
        reads_per_s: float | None = None,
    ) -> None:
        """`reads_per_s`: takes no more pieces of text than that, once the first has come."""
        self._connection = connection
        self._reads_per_s = reads_per_s
        self.number = number
        self._connect_ms = connect_ms

    @classmethod
    async def open(
        cls, url: str, key: str | None, number: int = 0, *, reads_per_s: float | None = None, silent: bool = False
    ) -> "Socket":
        """As `connected`."""
        began_s = time.perf_counter()
        connection = await connected(url, key, slow=reads_per_s is not None, silent=silent)
        return cls(connection, number, connect_ms=(time.perf_counter() - began_s) * 1e3, reads_per_s=reads_per_s)

    @property
    def is_open(self) -> bool:
        return self._connection.state is State.OPEN

    def connect_ms_once(self) -> float | None:
        """As `Askable.connect_ms_once`."""
        told, self._connect_ms = self._connect_ms, None
        return told

    async def ask(self, body: bytes, exchange: Exchange, on_text: Callable[[], None] | None = None) -> bool:
        """Send one request, record its answer in `exchange`, and say whether the socket can be asked again.

        `on_text` is called at each non-empty delta. A cancel, or what `on_text` raises, leaves what was recorded so
        far, as "unfinished", and an answer on its way: the socket is then fit only to be closed.
        """
        receive = self._connection.recv
        now = time.perf_counter
        pace = None if self._reads_per_s is None else Pace(self._reads_per_s)
        exchange.outcome = "unfinished"
        exchange.sent_s = now()
        try:
            await self._connection.send(body, text=True)
            while True:
                frame = await receive(decode=False)
                arrived_s = now()
                event = events.decode(frame)
                if hear(exchange, event, arrived_s, on_text):
                    return True
                if pace is not None and event.delta:
                    await sleep_until(pace.next(arrived_s))
        except ConnectionClosed as closed:
            record_drop(exchange, closed, now())
            return False
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            record_unreadable(exchange, unreadable, now())
            return False

    async def close(self) -> None:
        """Close with 1000, waiting at most about `CLOSE_TIMEOUT_S` for the server. Closing twice does nothing."""
        await self._connection.close()

    async def leave(self) -> None:
        """Close as a page does that is closed: whatever is under way is left, without a word about it."""
        await self._connection.close(GOING_AWAY)

    def abort(self) -> None:
        """Drop the connection without a word."""
        self._connection.transport.abort()


class Askable(Protocol):
    """A `Socket`, or what stands in its place: another API's (`completions.ChatSocket`), or a lane (`lanes.Lane`)."""

    @property
    def number(self) -> int: ...

    def connect_ms_once(self) -> float | None:
        """How long it took to open; None when that has been told before."""

    async def ask(self, body: bytes, exchange: Exchange, on_text: Callable[[], None] | None = None) -> bool: ...


class OwnSocket(Askable, Protocol):
    """An `Askable` that belongs to one person, who may close it."""

    @property
    def is_open(self) -> bool: ...
    async def close(self) -> None: ...
    async def leave(self) -> None: ...


class Open(Protocol):
    """Opens a socket. Raises `NotOpened`."""

    def __call__(
        self, url: str, key: str | None, number: int = 0, *, reads_per_s: float | None = None, silent: bool = False
    ) -> Awaitable[OwnSocket]: ...


def authorization(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _error_of(body: bytes) -> Error | None:
    """The `error` object of an HTTP answer's JSON body, if that is what the body is."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return None


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme in ("wss", "https") else 80)
