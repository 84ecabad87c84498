"""One connection to a server that speaks OpenAI's chat completions over HTTP, and what happened on it.

Knows `POST /v1/chat/completions` with `stream: true`, as vLLM, llama.cpp's server and `transformers serve` answer it,
and records it in the same `Exchange` as a WebSocket's answer. A chunk of text is stamped when it is received and may
hold several tokens: tokens are counted from `usage`, and as chunks only where there is none. Knows no percentiles.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loadgen.answers import record_unreadable
from loadgen.client import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    NotOpened,
    authorization,
    host_and_port,
)
from loadgen.exchange import Exchange
from loadgen.http1 import EventStream, Garbled, Head, pieces, read_head
from loadgen.no_way_in import nothing_at
from loadgen.pace import Pace, sleep_until
from loadgen.slow_socket import BUFFER, slow_socket

LARGEST_REFUSAL = 2**20
"""Bytes that are read of an answer that is no stream."""
_DONE = b"[DONE]"
_STATUS = {"stop": "completed", "length": "incomplete"}
"""By finish reason: what the Responses API calls an answer that ended so."""


# -- what is read of a chunk; everything else is skipped without being built


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct, frozen=True):
    """`code` is a word with OpenAI and often only the HTTP status elsewhere; `type` is then the word."""

    message: str | None = None
    type: str | None = None
    code: str | int | None = None

    @property
    def word(self) -> str | None:
        return self.code if isinstance(self.code, str) and not self.code.isdigit() else self.type


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    """The body of an HTTP error: OpenAI's, a bare error object, or FastAPI's."""

    error: _Error | str | None = None
    message: str | None = None
    type: str | None = None
    code: str | int | None = None
    detail: Any = None


_chunks = msgspec.json.Decoder(_Chunk)
_refusals = msgspec.json.Decoder(_Refusal)


class ChatSocket:
    """One connection, kept alive from answer to answer. One request at a time.

    A server may close it after a whole answer; the next request then opens another, and its time to first token holds
    that too.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        connect_ms: float | None = None,
        reads_per_s: float | None = None,
    ) -> None:
        self.number = number
        self._connect_ms = connect_ms
        self._url = url
        self._reads_per_s = reads_per_s
        self._reader, self._writer = reader, writer
        self._reusable = True
        self._answered = False
        """Whether this connection, or one before it, has carried an answer: only then is another opened for it."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        fields = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            **authorization(key),
        }
        self._head = "".join([f"POST {target} HTTP/1.1\r\n", *(f"{name}: {fields[name]}\r\n" for name in fields)])

    @classmethod
    async def open(
        cls, url: str, key: str | None, number: int = 0, *, reads_per_s: float | None = None, silent: bool = False
    ) -> "ChatSocket":
        """Connect to the http or https `url`, within `CONNECT_TIMEOUT_S`. Raises `NotOpened`.

        `reads_per_s`: takes no more chunks of text than that, once the first has come, and next to nothing is held for
        it meanwhile. HTTP is always `silent`.
        """
        began_s = time.perf_counter()
        reader, writer = await _connected(url, slow=reads_per_s is not None)
        connect_ms = (time.perf_counter() - began_s) * 1e3
        return cls(url, key, number, reader, writer, connect_ms=connect_ms, reads_per_s=reads_per_s)

    @property
    def is_open(self) -> bool:
        return not (self._writer.is_closing() or self._reader.at_eof())

    def connect_ms_once(self) -> float | None:
        """How long it took to open; None when that has been told before."""
        told, self._connect_ms = self._connect_ms, None
        return told

    async def ask(self, body: bytes, exchange: Exchange, on_text: Callable[[], None] | None = None) -> bool:
        """Send one request, record its answer in `exchange`, and say whether there can be another on this socket.

        `on_text` is called at each chunk that holds text. A cancel, or what `on_text` raises, leaves what was recorded
        so far, as "unfinished", and an answer on its way: the socket is then fit only to be closed.
        """
        exchange.outcome = "unfinished"
        exchange.sent_s = time.perf_counter()
        try:
            head = await self._send(body)
            exchange.first_byte_s = time.perf_counter()
            if head.status == 200:
                whole = await self._listen(head, exchange, on_text)
            else:
                _record_refusal(exchange, head, await self._text(head))
                whole = True
        except (asyncio.IncompleteReadError, OSError, NotOpened) as gone:
            if exchange.ended_s is None:  # else the answer was complete, and only its last bytes are missing
                _record_drop(exchange, gone)
            return False
        except (Garbled, msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            record_unreadable(exchange, unreadable, time.perf_counter())
            return False
        self._reusable = whole and head.kept_alive
        return True

    async def _send(self, body: bytes) -> Head:
        """Send a request and read the head of its answer.

        A server may close a connection that it has kept alive just when the next request is on its way. So a request
        that finds it closed, without a byte of an answer, is sent again, once, on a new one (RFC 9112, 9.3.1).
        """
        request = f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        if self._reusable and self._answered and not self._reader.at_eof():
            try:
                return await self._exchange(request)
            except (asyncio.IncompleteReadError, OSError) as gone:
                if isinstance(gone, asyncio.IncompleteReadError) and gone.partial:
                    raise
        if self._answered or self._reader.at_eof():
            self._writer.close()
            self._reader, self._writer = await _connected(self._url, slow=self._reads_per_s is not None)
        return await self._exchange(request)

    async def _exchange(self, request: bytes) -> Head:
        self._reusable = False  # until the answer has been read to its end
        self._writer.write(request)
        await self._writer.drain()
        head = await read_head(self._reader)
        self._answered = True
        return head

    async def close(self) -> None:
        """Close, waiting at most `CLOSE_TIMEOUT_S`. Closing twice does nothing."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()

    async def leave(self) -> None:
        """Close as a page does that is closed."""
        self.abort()

    def abort(self) -> None:
        """Drop the connection without a word."""
        self._writer.transport.abort()

    async def _listen(self, head: Head, exchange: Exchange, on_text: Callable[[], None] | None) -> bool:
        """Record the stream. False: it broke off with an error, and what may still come was not read."""
        stream = EventStream()
        pace = None if self._reads_per_s is None else Pace(self._reads_per_s)
        async for piece in pieces(self._reader, head):
            arrived_s = time.perf_counter()
            for event in stream.feed(piece):
                had = len(exchange.texts_s)
                if event == _DONE:
                    _record_end(exchange, arrived_s)
                elif _hear(exchange, _chunks.decode(event), arrived_s, on_text):
                    return False
                if pace is not None and len(exchange.texts_s) > had:
                    await sleep_until(pace.next(arrived_s))
                    arrived_s = time.perf_counter()
        if exchange.ended_s is None:  # not every server says [DONE]
            _record_end(exchange, time.perf_counter())
        return True

    async def _text(self, head: Head) -> bytes:
        text = b""
        async for piece in pieces(self._reader, head):
            text += piece
            if len(text) > LARGEST_REFUSAL:
                raise Garbled(f"an error of more than {LARGEST_REFUSAL:,} bytes")
        return text


async def _connected(url: str, *, slow: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    host, port = host_and_port(url)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            tls: dict[str, Any] = {"ssl": ssl.create_default_context(), "server_hostname": host} if secure else {}
            if slow:
                return await asyncio.open_connection(sock=await slow_socket(host, port), limit=BUFFER, **tls)
            return await asyncio.open_connection(host, port, **tls)
    except TimeoutError as silent:
        sentence = f"{parts.scheme}://{parts.netloc} did not accept a connection within {CONNECT_TIMEOUT_S:g} s."
        raise NotOpened("connect_timeout", sentence) from silent
    except OSError as failed:
        raise NotOpened("no_connection", nothing_at(url, failed)) from failed


# -- what is recorded


def _hear(exchange: Exchange, chunk: _Chunk, arrived_s: float, on_text: Callable[[], None] | None) -> bool:
    """Record a chunk. True: it was an error, and the answer has ended with it."""
    if chunk.error is not None:
        error = _Error(message=chunk.error) if isinstance(chunk.error, str) else chunk.error
        exchange.ended_s = arrived_s
        # Before the first chunk it refuses the request; after it there is an answer, which has broken off.
        exchange.outcome = "failed" if exchange.created else "refused"
        exchange.code, exchange.message = error.word, error.message
        return True
    exchange.created = True
    if chunk.usage is not None:
        details = chunk.usage.prompt_tokens_details
        exchange.input_tokens = chunk.usage.prompt_tokens
        exchange.cached_tokens = details.cached_tokens if details is not None else None
        exchange.output_tokens = chunk.usage.completion_tokens
    for choice in chunk.choices:
        if choice.delta is not None and choice.delta.content:
            exchange.texts_s.append(arrived_s)
            if exchange.text is not None:
                exchange.text.append(choice.delta.content)
            if on_text is not None:
                on_text()
        exchange.finish_reason = choice.finish_reason or exchange.finish_reason
    return False


def _record_end(exchange: Exchange, at_s: float) -> None:
    """The stream is complete."""
    exchange.ended_s = at_s
    reason = exchange.finish_reason
    exchange.status = _STATUS.get(reason or "", "failed")
    if exchange.output_tokens is None:
        exchange.output_tokens = len(exchange.texts_s)
        exchange.tokens_are_chunks = True
    if reason in _STATUS:
        exchange.outcome = "finished"
        return
    exchange.outcome = "failed"
    exchange.code = reason or "no_finish_reason"


def _record_refusal(exchange: Exchange, head: Head, body: bytes) -> None:
    """The answer was an HTTP status of its own."""
    exchange.ended_s = time.perf_counter()
    exchange.outcome = "refused"
    try:
        said = _refusals.decode(body)
    except msgspec.DecodeError:
        said = _Refusal()
    if isinstance(said.error, _Error):
        error = said.error
    else:
        error = _Error(said.error or said.message or _detail(said.detail), said.type, said.code)
    exchange.code = error.word or f"http_{head.status}"
    exchange.message = error.message or f"HTTP {head.status} {head.reason}"


def _detail(detail: Any) -> str | None:
    return detail if isinstance(detail, str) or detail is None else msgspec.json.encode(detail).decode()


def _record_drop(exchange: Exchange, gone: Exception) -> None:
    """Its connection is gone."""
    exchange.ended_s = time.perf_counter()
    exchange.outcome = "dropped"
    exchange.code = gone.code if isinstance(gone, NotOpened) else "connection_closed"
    exchange.message = None if isinstance(gone, asyncio.IncompleteReadError) else str(gone)
