"""The life of the server, from the command line's settings to the last socket.

Knows the signals, the doors and the engine, and what is printed for the person at the terminal. Knows no arguments.
"""

import asyncio
import errno
import importlib.metadata
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog
import uvloop
from rich.console import Console
from rich.table import Table

from actors import logs, trace_lines
from actors.config import Config, ConfigError
from actors.config_checks import LOOPBACK
from actors.engine import Engine, EngineStopped
from actors.offload import OffloadThread
from actors.open_files import allow_files
from actors.proxies import Proxies
from actors.rubbish import LOOK_S, Rubbish
from actors.server import Server, ServerSettings
from actors.tls import tls_context
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
    secure = settings.tls_cert is not None
    open_to_all = settings.host not in LOOPBACK and not settings.keys
    if open_to_all:
        log.warning("doors.open_to_everyone", host=settings.host, advice="set --keys-file; rota key NAME makes a key")

    def announce(address: str, ready: ModelReady) -> None:
        if settings.log_format != "json":  # who asked for JSON wants nothing else
            _print_ready(
                address, ready, settings.trace, secure=secure, open_to_all=open_to_all, grace_s=settings.grace_s
            )
        if log_format == "json":
            _log_ready(address, ready, settings.trace, secure=secure)

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
    connections = _allowed(settings.max_connections, settings.max_handshakes)
    offload = OffloadThread("vocabulary")
    engine = Engine(settings, new_child=WorkerProcess, load_vocabulary=Vocabulary.load, offload=offload, tracer=tracer)
    server = Server(
        ServerSettings(
            host=settings.host,
            port=settings.port,
            keys=settings.keys,
            origins=settings.origins,
            proxies=Proxies(settings.trusted_proxies, settings.proxy_header),
            tls=_tls(settings),
            connections=connections,
            connections_per_address=settings.max_connections_per_address,
            handshakes=settings.max_handshakes,
            open_timeout_s=settings.handshake_s,
            max_frame_bytes=settings.max_message_bytes,
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

    terminals = [number for number in (1, 2) if os.isatty(number)]

    def leave() -> None:
        server.stop_accepting()
        engine.drain()

    def hang_up() -> None:
        _let_go_of(terminals)
        # It comes more than once where shell and system both send it, and on the heels of a SIGTERM: no call to hurry.
        if not engine.health.draining:
            leave()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    clearing = loop.create_task(_clear_away(engine), name="rubbish")
    try:
        await engine.run(lambda ready: announce(_address(settings, server.port), ready))
        log.info("engine.stopped")
    finally:
        clearing.cancel()
        await server.close()
        offload.close()


async def _clear_away(engine: Engine) -> None:
    def written() -> int:
        return sum(lane.taken for lane in engine.detokeniser.statistics().values())

    with Rubbish(written) as rubbish:
        while True:
            await asyncio.sleep(LOOK_S)
            rubbish.look()


def _let_go_of(terminals: Sequence[int]) -> None:
    """Of those that are gone: whatever is still written to one would raise, a line of the log as well."""
    for number in terminals:
        if not os.isatty(number):
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), number)


def _tls(settings: Config) -> ssl.SSLContext | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return tls_context(Path(settings.tls_cert), Path(settings.tls_key))


def _allowed(connections: int, handshakes: int) -> int:
    """So many sockets there may be, of those that were asked for: each is an open file, and so is each handshake."""
    spare = SPARE_FILES + handshakes
    files = allow_files(connections + spare)
    if files < connections + spare:
        most = max(1, files - spare)
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


def _print_ready(
    address: str,
    ready: ModelReady,
    trace: str | None,
    *,
    secure: bool = False,
    open_to_all: bool = False,
    grace_s: float = 10.0,
) -> None:
    """What the person at the terminal is waiting for: the memory, and where the page is. `secure`: under TLS."""
    page, socket_ = _schemes(secure)
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
    console.print(f"  chat     {page}://{address}/", soft_wrap=True)
    console.print(f"  turns    {page}://{address}/turns", soft_wrap=True)
    console.print(f"  clients  {socket_}://{address}/v1/responses", soft_wrap=True)
    if trace is not None:
        console.print(f"  trace    {trace}", soft_wrap=True, markup=False, highlight=False)
    if open_to_all:
        console.print(
            "Warning: whoever can reach this machine can ask, without a key. Make keys with `rota key NAME`, and name "
            "their file with --keys-file.",
            style="bold red",
        )
    if grace_s:
        stop = f"Ctrl-C lets running answers end, within {grace_s:g} s; a second one stops them at once."
        console.print(stop, soft_wrap=True, highlight=False)
    else:
        console.print("Ctrl-C stops running answers at once.")


def _schemes(secure: bool) -> tuple[str, str]:
    """Of a page and of a socket."""
    return ("https", "wss") if secure else ("http", "ws")


def _log_ready(address: str, ready: ModelReady, trace: str | None, *, secure: bool) -> None:
    page, socket_ = _schemes(secure)
    log.info(
        "engine.ready",
        page=f"{page}://{address}/",
        url=f"{socket_}://{address}/v1/responses",
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
