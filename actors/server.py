"""The listening socket: WebSocket upgrades at `/v1/responses` and `/v1/turns`, and a few things over plain HTTP.

Knows who may come in (key, origin, how many, from where) and what each path answers. Refuses before the upgrade
whatever can be refused there, because that is the one moment when every client can read why. Knows nothing of what is
said on an open socket: that is `open_connection`'s and `open_watcher`'s.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from socket import SO_SNDBUF, SOL_SOCKET
from typing import cast

import msgspec
import structlog
from msgspec import Struct
from websockets.asyncio.server import Server as ListeningSocket
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from actors.crowd import Crowd, Watchers
from actors.door import Door, Doors
from actors.health import Health
from actors.http_answers import (
    RESPONSES,
    TURNS,
    WEBSOCKETS,
    answer,
    error_answer,
    explain_in_json,
    json_answer,
    not_allowed,
    speak_websocket,
    with_challenge,
)
from actors.keys import Keys
from actors.metrics import Metrics
from actors.origins import Origins, is_loopback
from actors.pages import read_pages
from actors.proxies import Proxies, Visitor
from actors.socket import Socket
from actors.sparing import Sparing
from actors.websocket import WebSocket
from protocol.errors import (
    WireError,
    authentication_failed,
    invalid_request,
    origin_not_allowed,
    server_overloaded,
    shutting_down,
    websocket_connection_limit_reached,
)

OpenConnection = Callable[[Socket, str], Awaitable[None]]
"""Given a fresh socket and its tenant; returns when nothing is left of either."""

_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_RETRY_MS = 1000.0
BACKLOG = 4096
"""Connections that wait in the system to be accepted, if it allows so many. One more tries again by itself, after a
second, then two, then four."""
_encode = msgspec.json.encode
log = structlog.get_logger()


class ServerSettings(Struct, frozen=True, kw_only=True):
    """What the person who starts rota decides about its doors.

    The keepalive notices a client that is gone without a word: within `ping_interval_s + ping_timeout_s`. It cannot
    notice one that is there and does not read, because a ping waits behind what that client has not read: the
    reaper's patience, from `WatchConnection.stalled_since`, is for those. Choose it shorter than what clients allow
    (the official one gives up after about 40 s without its own pong) if they are to learn why they were closed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Keys = Keys()
    """Whose owners' names are the tenants. None: everyone may come in, as the tenant ""."""
    origins: Sequence[str] = ()
    """Pages that may connect besides the server's own, such as `https://example.org`."""
    proxies: Proxies = Proxies()
    """Those that are believed about whom they pass on."""
    tls: ssl.SSLContext | None = None
    connections: int = 4096
    connections_per_address: int | None = None
    """Of IPv6: per /64. None: `crowd.MOST_OF_AN_ADDRESS`, and any number from this machine."""
    handshakes: int = 1024
    """Connections that have not said yet what they want. One more is closed without a word."""
    watchers: int = 16
    """Of them, at `/v1/turns`: each frame is sent to every one of them."""
    open_timeout_s: float = 10.0
    close_timeout_s: float = 2.0
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    max_frame_bytes: int = 2 * 2**20
    write_limit_bytes: int = 16 * 2**10
    """Unsent bytes in the process from which on a socket counts as full."""
    send_buffer_bytes: int = 64 * 2**10
    """The same in the kernel. Left to itself it grows to megabytes: minutes of text that a cancel cannot call back."""


class Server:
    """Owns the listening socket and counts who is in. `start`, then `stop_accepting`, then `close`."""

    def __init__(
        self,
        settings: ServerSettings,
        health: Health,
        metrics: Metrics,
        open_connection: OpenConnection,
        open_watcher: OpenConnection,
    ) -> None:
        self._settings = settings
        self._health = health
        self._metrics = metrics
        self._open_connection = open_connection
        self._open_watcher = open_watcher
        self._pages = read_pages()
        self._accepting = True
        self._crowd = Crowd(
            settings.connections, settings.connections_per_address, settings.handshakes, settings.proxies.trusts
        )
        self._doors = Doors(
            self._crowd, self._turn_away, settings.tls, settings.open_timeout_s, settings.close_timeout_s
        )
        self._origins = Origins(settings.origins, loopback_only=is_loopback(settings.host))
        self._watchers = Watchers(settings.watchers)
        self._refused = Sparing()
        self._serving: set[asyncio.Task[None]] = set()
        self._listening: ListeningSocket | None = None
        # At DEBUG the library writes every header it receives, keys among them.
        self._log = logging.getLogger("rota.websockets")
        self._log.setLevel(logging.WARNING)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be had."""
        settings = self._settings
        self._listening = await serve(
            self._serve_socket,
            settings.host,
            settings.port,
            create_connection=cast(type[ServerConnection], self._doors.open),
            select_subprotocol=_select_subprotocol,
            compression=None,
            process_request=self._process_request,
            process_response=explain_in_json,
            server_header="rota",
            open_timeout=settings.open_timeout_s,
            close_timeout=settings.close_timeout_s,
            ping_interval=settings.ping_interval_s,
            ping_timeout=settings.ping_timeout_s,
            max_size=settings.max_frame_bytes,
            write_limit=settings.write_limit_bytes,
            logger=self._log,
            backlog=BACKLOG,
        )
        for listening in self._listening.sockets:
            listening.setsockopt(SOL_SOCKET, SO_SNDBUF, settings.send_buffer_bytes)

    @property
    def port(self) -> int:
        """The port that is listened on: the one chosen by the system when the settings say 0."""
        assert self._listening is not None, "not started"
        return cast(int, self._listening.sockets[0].getsockname()[1])

    def stop_accepting(self) -> None:
        """Refuse new sockets from now on, in words; `/readyz` and the rest go on being answered."""
        self._accepting = False

    async def close(self) -> None:
        """Stop listening, close what is open with 1001, and wait for it; what does not end in time is cancelled."""
        self.stop_accepting()
        if self._listening is None:
            return
        self._listening.close()
        self._doors.close()
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=2 * self._settings.close_timeout_s)
            for task in late:
                task.cancel()
        await self._listening.wait_closed()

    # --- an open socket -----------------------------------------------------------------------------------------------

    async def _serve_socket(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Door)
        assert connection.request is not None, "upgraded without a request"
        tenant = self._tenant(connection.request.headers)
        assert tenant is not None, "upgraded without a key"
        address = connection.visitor.address
        connection.stop_knocking()
        task = asyncio.current_task()
        assert task is not None, "served outside a task"
        self._crowd.enter(address)
        self._serving.add(task)
        watches = connection.request.path.partition("?")[0] == TURNS
        if watches:
            self._watchers.enter(tenant)
        open_socket = self._open_watcher if watches else self._open_connection
        try:
            await open_socket(WebSocket(connection, self._settings.close_timeout_s), tenant)
        finally:
            if watches:
                self._watchers.leave(tenant)
            self._serving.discard(task)
            self._crowd.leave(address)

    # --- before the upgrade -------------------------------------------------------------------------------------------

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        assert isinstance(connection, Door)
        secure = connection.transport.get_extra_info("ssl_object") is not None
        connection.visitor = self._settings.proxies.visitor(connection.peer, request.headers, secure=secure)
        response = self._answer(connection, request)
        if response is not None and connection.method == "HEAD":
            response.body = b""
        return response

    def _answer(self, connection: Door, request: Request) -> Response | None:
        """What to answer over HTTP; None: upgrade."""
        path = request.path.partition("?")[0]
        match connection.method:
            case "GET":
                if path in WEBSOCKETS:
                    return self._refuse_upgrade(connection, request, path)
                return self._get(path, request.headers)
            case "HEAD":
                if path in WEBSOCKETS:
                    return speak_websocket(HTTPStatus.UPGRADE_REQUIRED, f"HEAD {path}", path)
                return self._get(path, request.headers)
            case "OPTIONS":
                return self._preflight(request.headers)
            case method:
                return not_allowed(method, path)

    def _refuse_upgrade(self, connection: Door, request: Request, path: str) -> Response | None:
        headers = request.headers
        settings, visitor = self._settings, connection.visitor
        if "upgrade" not in (token.strip().lower() for token in ",".join(headers.get_all("Connection")).split(",")):
            return speak_websocket(HTTPStatus.UPGRADE_REQUIRED, f"GET {path} without an upgrade", path)
        origin = ",".join(headers.get_all("Origin"))
        host = ",".join(headers.get_all("Host"))
        if origin and not self._origins.allowed(origin, visitor.scheme, host, proxied=visitor.proxied):
            return self._decline(visitor, origin_not_allowed(origin))
        tenant = self._tenant(headers)
        if tenant is None:
            return with_challenge(self._decline(visitor, authentication_failed()))
        if self._health.draining or not self._accepting:
            return self._decline(visitor, shutting_down())
        if self._health.model is None:
            return self._decline(visitor, self._not_yet())
        crowded = self._crowd.limit_reached(visitor.address)
        if crowded is not None:
            return self._decline(visitor, websocket_connection_limit_reached(crowded, _RETRY_MS))
        if path == TURNS and self._watchers.full(tenant):
            what = f"All places to watch from that this key may have, of {settings.watchers:,}, are taken"
            if not tenant:
                what = f"{settings.watchers:,} watch already, the most that this server shows its turns to"
            return self._decline(visitor, server_overloaded(what, _RETRY_MS))
        return None

    def _turn_away(self) -> None:
        """Too many have not said yet what they want."""
        self._metrics.connections_refused.labels("websocket_connection_limit_reached").inc()

    def _decline(self, visitor: Visitor, error: WireError) -> Response:
        """A browser's page is not shown why, so whoever runs the server is told."""
        self._metrics.connections_refused.labels(error.code).inc()
        times = self._refused.count(error.code, asyncio.get_running_loop().time())
        if times is not None:
            log.warning("door.refused", code=error.code, address=visitor.address, why=error.message, times=times)
        return error_answer(error)

    def _tenant(self, headers: Headers) -> str | None:
        """Whose key was sent; "" when none is needed, None when none fits."""
        return self._settings.keys.whose(_key_given(headers))

    # --- plain HTTP ---------------------------------------------------------------------------------------------------

    def _get(self, path: str, headers: Headers) -> Response:
        match path:
            case "/healthz":
                return json_answer(HTTPStatus.OK, _encode({"status": "alive"}))
            case "/readyz":
                return self._readyz()
            case "/metrics":
                kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Cache-Control": "no-store"}
                return answer(HTTPStatus.OK, kind, self._metrics.exposition())
            case "/v1/models":
                return self._with_cors(self._models(headers), headers)
            case _:
                return self._page(path, headers)

    def _readyz(self) -> Response:
        if self._health.accepting and self._accepting:
            return json_answer(HTTPStatus.OK, _encode({"status": "ready"}))
        reason = self._health.explanation or "The server is shutting down."
        return json_answer(HTTPStatus.SERVICE_UNAVAILABLE, _encode({"status": "not ready", "reason": reason}))

    def _models(self, headers: Headers) -> Response:
        if self._tenant(headers) is None:
            return with_challenge(error_answer(authentication_failed()))
        if self._health.draining or not self._accepting:
            return error_answer(shutting_down())
        model = self._health.model
        if model is None:
            return error_answer(self._not_yet())
        created = int(self._health.started_unix)
        card = {"id": model.name, "object": "model", "created": created, "owned_by": "rota"}
        return json_answer(HTTPStatus.OK, _encode({"object": "list", "data": [card]}))

    def _not_yet(self) -> WireError:
        return server_overloaded(self._health.reason.rstrip("."), _RETRY_MS)

    def _page(self, path: str, headers: Headers) -> Response:
        page = self._pages.get(path)
        if page is None:
            what = path if len(path) <= 80 else f"{path[:80]}…"
            sentence = (
                f"There is nothing at '{what}'. The chat is at / and /embed, whose turn it is at /turns, the models at "
                f"/v1/models, the WebSocket at {RESPONSES}, the metrics at /metrics, and how the server is at /healthz "
                "and /readyz."
            )
            return error_answer(invalid_request(sentence), HTTPStatus.NOT_FOUND)
        if page.is_known(",".join(headers.get_all("If-None-Match"))):
            return answer(HTTPStatus.NOT_MODIFIED, {**page.headers}, b"")
        return answer(HTTPStatus.OK, *page.encoded(",".join(headers.get_all("Accept-Encoding"))))

    def _preflight(self, headers: Headers) -> Response:
        """A browser asks whether a page from elsewhere may send its key to `/v1/models`."""
        response = answer(HTTPStatus.NO_CONTENT, {"Allow": "GET, HEAD, OPTIONS"}, b"")
        return self._with_cors(response, headers)

    def _with_cors(self, response: Response, headers: Headers) -> Response:
        response.headers["Vary"] = "Origin"
        origin = ",".join(headers.get_all("Origin"))
        if origin and self._origins.listed(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Headers"] = "Authorization"
            response.headers["Access-Control-Allow-Methods"] = "GET, HEAD"
        return response


# --- reading a request -----------------------------------------------------------------------------------------------


def _select_subprotocol(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    # The key rides in a subprotocol of its own, which must not be echoed.
    return Subprotocol("responses") if "responses" in offered else None


def _key_given(headers: Headers) -> str:
    scheme, _, key = ",".join(headers.get_all("Authorization")).partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    for offered in ",".join(headers.get_all("Sec-WebSocket-Protocol")).split(","):
        if offered.strip().startswith(_KEY_SUBPROTOCOL):
            return offered.strip().removeprefix(_KEY_SUBPROTOCOL)
    return ""
