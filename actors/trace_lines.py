"""From a handled message to its line in the trace.

Knows what is told of each message, and who speaks outside of any handler. Knows no mailbox, no thread and no file. What
a reader wrote or was answered, tokens, keys and their names are told of no message, only how much of them there was.
"""

import importlib.metadata
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from actors.tracing import Record
from protocol.messages import (
    Accepted,
    Ask,
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
    CostsLearned,
    Detached,
    Ended,
    Enqueue,
    FrameReceived,
    ModelFound,
    ModelReady,
    ModelRefused,
    Moved,
    OpenStream,
    PromptRead,
    ReaderLeft,
    Refused,
    RelayEnded,
    Released,
    SetPaused,
    SocketLost,
    Started,
    Step,
    StepDone,
    StepFailed,
    Text,
    Tick,
    Tokenised,
    Tokens,
    TokensTaken,
    Unread,
    WatchConnection,
    WatcherCame,
    WatcherLeft,
    WorkerGone,
    WriterIdle,
)
from protocol.trace import BEGUN, FORMAT, LOST, TraceLine

_CONNECTION = "connection "
_OUTSIDE: dict[type, str] = {
    FrameReceived: "socket",
    SocketLost: "socket",
    WriterIdle: "writer",
    Tokenised: "thread",
    Tick: "timer",
}
"""Who sends these when no handler does."""
_OF_THE_WORKER = (StepDone, StepFailed, ModelFound, ModelReady, ModelRefused, WorkerGone)
"""Sent by the worker's pipe when they go to the executor; by the engine, when they go elsewhere."""
_OF_A_CONNECTION = (WatchConnection, ConnectionClosed, Detached, ReaderLeft)
"""Sent by a connection, from its life too: then they say themselves by which."""
_OF_A_WATCHER = (WatcherCame, WatcherLeft)
"""The same of a watcher."""


def line_of(record: Record, unix_s: float) -> TraceLine:
    """`unix_s`: what makes Unix times of the engine's."""
    message, sender, to, handled_at = record.message, record.sender, record.to, record.handled_at
    kind = type(message)
    connection = getattr(message, "connection", None)
    says: Callable[[Any], dict[str, Any]] = _SAYS.get(kind, _nothing)
    said = {"lane_s": record.sent_at - message.received_at} if kind is Ask else says(message)
    return TraceLine(
        kind.__name__,
        record.sent_at + unix_s,
        sender or _outsider(kind, message, to),
        to,
        record.lane,
        record.taken_at - record.sent_at,
        None if handled_at is None else handled_at - record.taken_at,
        getattr(message, "request", None),
        _number(to) or _number(sender) if connection is None else connection,
        **said,
    )


def begun(time: float) -> TraceLine:
    """How a file begins, and a run in a file that was there before. `time`: Unix, in seconds."""
    return TraceLine(BEGUN, time, message=f"rota {importlib.metadata.version('rota')}", format=FORMAT)


def lost(time: float, count: int) -> TraceLine:
    """What stands where `count` messages could not be written."""
    return TraceLine(LOST, time, lost=count)


def _outsider(kind: type, message: Any, to: str) -> str:
    if kind in _OF_A_CONNECTION:
        return f"{_CONNECTION}{message.connection}"
    if kind in _OF_A_WATCHER:
        return f"watcher {message.connection}"
    if kind in _OF_THE_WORKER and to == "executor":
        return "worker"
    return _OUTSIDE.get(kind, "engine")


@lru_cache(4096)
def _number(name: str) -> ConnectionId | None:
    return int(name.removeprefix(_CONNECTION)) if name.startswith(_CONNECTION) else None


# --- what is told of each message, beside its request and its connection ---


def _nothing(_: object) -> dict[str, Any]:
    return {}


def _enqueue(enqueue: Enqueue) -> dict[str, Any]:
    return {
        "tokens": _count(enqueue.tokens),
        "max_output_tokens": enqueue.max_output_tokens,
        "service_tier": enqueue.service_tier,
        "ttft_target_s": _finite(enqueue.ttft_target_s),
        "itl_target_s": _finite(enqueue.itl_target_s),
    }


def _accepted(accepted: Accepted) -> dict[str, Any]:
    return {
        "tokens": accepted.input_tokens,
        "max_output_tokens": accepted.max_output_tokens,
        "position": accepted.position or None,
    }


def _tokenised(tokenised: Tokenised) -> dict[str, Any]:
    if tokenised.error is not None:
        return {"reason": tokenised.error.code}
    return {"tokens": _count(tokenised.tokens)}


def _step(step: Step) -> dict[str, Any]:
    chunks = tuple((one.request, one.start, _count(one.tokens), one.sampling is not None) for one in step.chunks)
    return {"step": step.step, "chunks": chunks}


def _tokens(tokens: Tokens) -> dict[str, Any]:
    ended = (request for request, _ in tokens.ended)
    return {"step": tokens.step, "requests": (*(row.request for row in tokens.rows), *ended)}


def _text(text: Text) -> dict[str, Any]:
    end = text.end
    if end is None:
        return {"tokens": len(text.token_times), "chars": len(text.text)}
    return {
        "tokens": len(text.token_times),
        "chars": len(text.text),
        "reason": end.reason,
        "output_tokens": end.output_tokens,
    }


def _ended(ended: Ended) -> dict[str, Any]:
    stats = ended.stats
    return {
        "reason": ended.reason,
        "code": None if ended.error is None else ended.error.code,
        "queued_s": stats.queued_s,
        "prefill_s": stats.prefill_s,
        "cached_tokens": stats.cached_tokens,
        "output_tokens": stats.output_tokens,
        "preemptions": stats.preemptions,
    }


def _close(close: CloseConnection) -> dict[str, Any]:
    return {} if close.error is None else {"reason": close.error.code}


def _ready(ready: ModelReady) -> dict[str, Any]:
    return {"message": f"{ready.name}, {ready.dtype} on {ready.device}, computed by {ready.kernels}"}


_SAYS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Enqueue: _enqueue,
    Tokenised: _tokenised,
    Accepted: _accepted,
    Moved: lambda moved: {"position": moved.position},
    Refused: lambda refused: {"reason": refused.error.code},
    OpenStream: lambda opened: {"max_output_tokens": opened.max_output_tokens},
    Started: lambda started: {"cached_tokens": started.prefilled_tokens},
    PromptRead: lambda read: {"tokens": read.prefilled_tokens},
    RelayEnded: lambda ended: {"reason": ended.error.code},
    ReaderLeft: lambda left: {"reason": "lost" if left.lost else "left"},
    SetPaused: lambda paused: {"paused": paused.paused},
    Unread: lambda unread: {"reason": "nobody reads it" if unread.unread else "somebody reads it"},
    Step: _step,
    StepDone: lambda done: {"step": done.step, "took_s": done.took_s},
    StepFailed: lambda failed: {"step": failed.step, "message": failed.message},
    Tokens: _tokens,
    TokensTaken: lambda taken: {"step": taken.step},
    Text: _text,
    Ended: _ended,
    Released: lambda released: {"output_tokens": released.output_tokens},
    CostsLearned: lambda learned: {"coefficients": learned.coefficients},
    CloseConnection: _close,
    # Not so `WorkerLost`: it may quote what a handler raised, and that what a reader wrote.
    ModelFound: lambda found: {"message": found.name},
    ModelReady: _ready,
    ModelRefused: lambda refused: {"message": refused.message},
    WorkerGone: lambda gone: {"message": gone.why},
}


def _count(tokens: bytes) -> int:
    return len(tokens) // 4


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
