"""The life of the server, from the command line's settings to the last socket.

Knows the signals, the doors and the engine, and what is printed for the person at the terminal. Knows no arguments.
"""

import asyncio
import errno
import importlib.metadata
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import uvloop
from rich.console import Console
from rich.table import Table

from actors import logs, trace_lines
from actors.config import Config, ConfigError
from actors.engine import Engine, EngineStopped
from actors.offload import OffloadThread
from actors.open_files import allow_files
from actors.server import Server, ServerSettings
from actors.trace_files import NotATrace, TraceFiles
from actors.trace_writer import TraceWriter
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from actors.worker_process import WorkerProcess
from protocol.messages import ModelReady

SPARE_FILES = 128
"""Beside the sockets: what the model, the worker's pipe, the trace and the libraries have open."""

log = structlog.get_logger()


def serve(settings: Config) -> None:
    """Serve until told to stop. Raises ConfigError or EngineStopped with a sentence when that is not possible."""
    _refuse_foreign_kernels()
    log_format = logs.configure(settings.log_format)

    def announce(address: str, ready: ModelReady) -> None:
        if settings.log_format != "json":  # who asked for JSON wants nothing else
            _print_ready(address, ready, settings.trace)
        if log_format == "json":
            _log_ready(address, ready, settings.trace)

    tracer = None if settings.trace is None else Tracer(time.monotonic, time.time)
    writer = None if tracer is None else _trace(tracer, settings)
    try:
        uvloop.run(_serve(settings, announce, tracer))
    finally:
        if writer is not None:
            writer.close()


def _trace(tracer: Tracer, settings: Config) -> TraceWriter:
    """Begins to write. Raises ConfigError when that is not possible."""
    assert settings.trace is not None
    begun = trace_lines.begun
    files = TraceFiles(
        Path(settings.trace),
        settings.trace_file_bytes,
        settings.trace_files,
        lambda: msgspec.json.encode(begun(time.time())) + b"\n",
    )
    try:
        files.open()
    except NotATrace as error:
        raise ConfigError(f"{error}. Name another file with --trace, or move that one away.") from None
    except OSError as error:
        why = "nobody reads from that pipe yet" if error.errno == errno.ENXIO else error.strerror
        raise ConfigError(
            f"The trace cannot be written to {settings.trace}: {why}. Name another with --trace."
        ) from None
    writer = TraceWriter(tracer, files)
    writer.start()
    return writer


def _refuse_foreign_kernels() -> None:
    """Raises ConfigError when another package has taken the name of our folder."""
    try:
        found = importlib.metadata.distribution("kernels")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ConfigError(
        f"The package 'kernels' {found.version} is installed here, and it hides rota's own folder of that name. "
        "Uninstall it, or give rota an environment of its own."
    )


async def _serve(settings: Config, announce: Callable[[str, ModelReady], None], tracer: Tracer | None) -> None:
    """Listen, load, serve, drain, leave."""
    connections = _allowed(settings.max_connections)
    offload = OffloadThread("vocabulary")
    engine = Engine(settings, new_child=WorkerProcess, load_vocabulary=Vocabulary.load, offload=offload, tracer=tracer)
    server = Server(
        ServerSettings(
            host=settings.host,
            port=settings.port,
            keys=dict(key.split("=", 1) for key in settings.api_keys),
            origins=settings.origins,
            connections=connections,
            connections_per_address=connections,
        ),
        engine.health,
        engine.metrics,
        engine.open_connection,
        engine.open_watcher,
    )
    try:
        await server.start()
    except OSError as error:
        raise EngineStopped(_cannot_listen(settings, error)) from None

    def leave() -> None:
        server.stop_accepting()
        engine.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    try:
        await engine.run(lambda ready: announce(_address(settings, server.port), ready))
        log.info("engine.stopped")
    finally:
        await server.close()
        offload.close()


def _allowed(connections: int) -> int:
    """So many sockets there may be, of those that were asked for: each is an open file."""
    files = allow_files(connections + SPARE_FILES)
    if files < connections + SPARE_FILES:
        most = max(1, files - SPARE_FILES)
        log.warning("connections.limited", asked=connections, allowed=most, open_files=files)
        return most
    return connections


def _cannot_listen(settings: Config, error: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if isinstance(error, socket.gaierror):
        return f"There is no address of the name {settings.host!r} to listen on. Set --host to one of this machine's."
    if error.errno == errno.EADDRINUSE:
        return f"Port {settings.port} on {settings.host} is in use. Choose another with --port, or stop what listens."
    if error.errno == errno.EACCES:
        return f"Listening on {where} is not permitted. Choose a port above 1023 with --port."
    return f"Listening on {where} is not possible: {os.strerror(error.errno) if error.errno else error}."


def _address(settings: Config, port: int) -> str:
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(settings.host, settings.host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _print_ready(address: str, ready: ModelReady, trace: str | None) -> None:
    """What the person at the terminal is waiting for: the memory, and where the page is."""
    tokens = ready.blocks * ready.block_size
    table = Table(title=f"{ready.name} · {ready.dtype} on {ready.device}", title_justify="left")
    table.add_column("memory")
    table.add_column("size", justify="right")
    table.add_column("for")
    table.add_row("weights", _size(ready.weights_bytes), "shared by every request")
    table.add_row("KV cache", _size(ready.kv_bytes), f"{tokens:,} tokens in {ready.blocks:,} blocks")
    table.add_row("", "", f"{tokens / ready.max_context:.1f} requests of the full {ready.max_context:,} tokens")
    table.add_row("working", _size(ready.working_bytes), "the largest step")
    console = Console()
    console.print(table)
    console.print(f"Ready: the first step took {ready.first_step_s * 1e3:.0f} ms, computed by {ready.kernels}.")
    console.print(f"  chat     http://{address}/", soft_wrap=True)
    console.print(f"  turns    http://{address}/turns", soft_wrap=True)
    console.print(f"  clients  ws://{address}/v1/responses", soft_wrap=True)
    if trace is not None:
        console.print(f"  trace    {trace}", soft_wrap=True, markup=False, highlight=False)
    console.print("Ctrl-C lets running answers end; a second one stops them.")


def _log_ready(address: str, ready: ModelReady, trace: str | None) -> None:
    log.info(
        "engine.ready",
        page=f"http://{address}/",
        url=f"ws://{address}/v1/responses",
        model=ready.name,
        device=ready.device,
        dtype=ready.dtype,
        kernels=ready.kernels,
        kv_blocks=ready.blocks,
        block_size=ready.block_size,
        max_context=ready.max_context,
        weights_bytes=ready.weights_bytes,
        kv_bytes=ready.kv_bytes,
        working_bytes=ready.working_bytes,
        first_step_ms=round(ready.first_step_s * 1e3, 1),
        **({} if trace is None else {"trace": trace}),
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
