"""A peer that runs, for as long as a block lasts: started, waited for, measured, and ended whatever happens.

Knows how a load is put on a peer, over HTTP or in lines of JSON, and that every wait has its limit. Knows none of them
by name.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct

from loadgen.child import Child, child
from loadgen.client import Unreachable
from loadgen.figures import Exchange, Load, Report, report
from loadgen.http1 import Garbled, read_head
from loadgen.load import measure
from loadgen.peers import HttpPeer, Peer, PipePeer, with_port
from loadgen.progress import Nothing
from loadgen.prompts import prompt

LOOK_AGAIN_S = 0.2
ANSWER_S = 5.0
"""Within which a server that is ready says so."""

Measure = Callable[[Load], Awaitable[Report]]
"""Puts a load on the engine, within its `timeout_s`, and fills in where the load goes: its `url`, `model` and `api`."""


@asynccontextmanager
async def running(peer: Peer, start_s: float) -> AsyncIterator[Measure]:
    """Start it, wait until it is ready, and end it with the block.

    Raises `Unreachable` with its own last words when it ends before it is ready, is not ready within `start_s`, or
    cannot be started.
    """
    try:
        if isinstance(peer, HttpPeer):
            async with _serving(peer, start_s) as measure_peer:
                yield measure_peer
        else:
            async with _piped(peer, start_s) as measure_peer:
                yield measure_peer
    except FileNotFoundError as gone:
        raise Unreachable(f"{peer.name} cannot be started: {gone}.") from gone


# -- over HTTP


@asynccontextmanager
async def _serving(peer: HttpPeer, start_s: float) -> AsyncIterator[Measure]:
    port = _free_port()
    async with child(with_port(peer.command, port), peer.environment) as process:
        async with _limit(peer, process, start_s):
            while not await _ready(port, peer.ready):
                if process.process.returncode is not None:
                    raise _ended(peer, process)
                await asyncio.sleep(LOOK_AGAIN_S)

        async def measure_it(load: Load) -> Report:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            asked = msgspec.structs.replace(
                load, url=url, model=peer.model, api="chat", ignore_eos=load.ignore_eos and peer.ignore_eos
            )
            return await measure(asked, None, Nothing())

        yield measure_it


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


async def _ready(port: int, path: str) -> bool:
    """Whether it answers 200 there."""
    writer = None
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            return (await read_head(reader)).status == 200
    except (OSError, TimeoutError, asyncio.IncompleteReadError, Garbled):
        return False
    finally:
        if writer is not None:
            writer.close()


# -- in lines of JSON


class _Answered(Struct, frozen=True):
    """Of one prompt; seconds of the script's clock."""

    sent_s: float
    ended_s: float
    texts_s: list[float]
    input_tokens: int
    output_tokens: int
    finished: bool = True


class _Streams(Struct, frozen=True):
    streams: list[list[_Answered]]


@asynccontextmanager
async def _piped(peer: PipePeer, start_s: float) -> AsyncIterator[Measure]:
    async with child(peer.command, peer.environment, talks=True) as process:
        async with _limit(peer, process, start_s):
            await _line(peer, process)

        async def measure_it(load: Load) -> Report:
            named = msgspec.structs.replace(load, url="in process", model=peer.name)
            return await _ask(named, peer, process)

        yield measure_it


async def _ask(load: Load, peer: PipePeer, process: Child) -> Report:
    assert load.prompt_tokens is not None
    each = load.requests_per_socket
    exchanges = [Exchange(stream, number) for stream in range(load.sockets) for number in range(each)]
    prompts = [
        [prompt(load.seed, stream * each + number, load.prompt_tokens) for number in range(each)]
        for stream in range(load.sockets)
    ]
    request = msgspec.json.encode({"prompts": prompts, "output_tokens": load.max_output_tokens})
    assert process.process.stdin is not None
    process.process.stdin.write(request + b"\n")
    try:
        async with asyncio.timeout(load.timeout_s):
            answered = msgspec.json.decode(await _line(peer, process), type=_Streams)
    except TimeoutError as late:
        raise Unreachable(f"{peer.name} did not answer within {load.timeout_s:g} s.") from late
    except msgspec.DecodeError as unreadable:
        raise Unreachable(f"{peer.name} does not answer as it should: {unreadable}.") from unreadable
    for exchange, one in zip(exchanges, (one for stream in answered.streams for one in stream), strict=True):
        exchange.sent_s, exchange.ended_s, exchange.texts_s = one.sent_s, one.ended_s, one.texts_s
        exchange.input_tokens, exchange.output_tokens = one.input_tokens, one.output_tokens
        exchange.outcome = "finished" if one.finished else "failed"
        exchange.status = "completed" if one.finished else "failed"
    return report(load, exchanges, stopped_by="finished", opened=load.sockets, not_opened=[], client_lag_worst_s=0.0)


async def _line(peer: PipePeer, process: Child) -> bytes:
    assert process.process.stdout is not None
    line = await process.process.stdout.readline()
    if not line:
        raise _ended(peer, process)
    return line


# -- what goes wrong


@asynccontextmanager
async def _limit(peer: Peer, process: Child, start_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(start_s):
            yield
    except TimeoutError as late:
        said = process.last_words()
        raise Unreachable(f"{peer.name} was not ready after {start_s:g} s{f': {said}' if said else '.'}") from late


def _ended(peer: Peer, process: Child) -> Unreachable:
    said = process.last_words()
    return Unreachable(f"{peer.name} ended before its time{f': {said}' if said else '.'}")
