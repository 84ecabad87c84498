"""The command `rota`: serve, and what a person runs beside it.

Knows arguments, exit codes and what is printed for people. Exit code 2 is a sentence about what cannot be done.
"""

import argparse
import asyncio
import errno
import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from actors import config, logs
from actors.config import Config, ConfigError
from actors.engine import Engine, EngineStopped
from actors.offload import OffloadThread
from actors.server import Server, ServerSettings
from actors.vocabulary import Vocabulary
from actors.worker_process import WorkerProcess
from protocol.messages import ModelReady


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exits with the command's code."""
    parser = argparse.ArgumentParser(prog="rota", description="Serves a language model over WebSockets.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="load a model and serve it", description=_SERVE)
    config.add_arguments(serve)
    load = commands.add_parser("load", help="open many sockets to a running server and time them")
    _add_load(load)
    given = parser.parse_args(arguments)
    sys.exit(_serve(given) if given.command == "serve" else _load(given))


_SERVE = (
    "Every setting can also stand in rota.toml (max_context = 4096) or in the environment (ROTA_MAX_CONTEXT=4096); "
    "a flag wins over the environment, the environment over the file."
)


def _add_load(parser: argparse.ArgumentParser) -> None:
    from loadgen import load

    load.add_arguments(parser)


def _load(given: argparse.Namespace) -> int:
    from loadgen import load

    return load.run(given)


def _serve(given: argparse.Namespace) -> int:
    try:
        settings = config.load(vars(given), os.environ, Path.cwd())
        _refuse_foreign_kernels()
        logs.configure(settings.log_format)
        uvloop.run(_serving(settings))
    except (ConfigError, EngineStopped) as error:
        print(f"rota: {error}", file=sys.stderr)
        return 2
    return 0


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


async def _serving(settings: Config) -> None:
    """The life of the server: listen, load, serve, drain, leave. Raises EngineStopped."""
    offload = OffloadThread("vocabulary")
    engine = Engine(settings, new_child=WorkerProcess, load_vocabulary=Vocabulary.load, offload=offload)
    server = Server(
        ServerSettings(
            host=settings.host,
            port=settings.port,
            keys=dict(key.split("=", 1) for key in settings.api_keys),
            origins=settings.origins,
            connections=settings.max_connections,
            connections_per_address=settings.max_connections,
        ),
        engine.health,
        engine.metrics,
        engine.open_connection,
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
        await engine.run(lambda ready: _announce(settings, server.port, ready))
    finally:
        await server.close()
        offload.close()


def _cannot_listen(settings: Config, error: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"Port {settings.port} on {settings.host} is in use. Choose another with --port, or stop what listens."
    if error.errno == errno.EACCES:
        return f"Listening on {where} is not permitted. Choose a port above 1023 with --port."
    return f"Listening on {where} is not possible: {os.strerror(error.errno) if error.errno else error}."


def _announce(settings: Config, port: int, ready: ModelReady) -> None:
    """What the person at the terminal is waiting for: the memory, and where the page is."""
    tokens = ready.blocks * ready.block_size
    table = Table(title=f"{ready.name} · {ready.dtype} on {ready.device}", title_justify="left")
    table.add_column("memory")
    table.add_column("size", justify="right")
    table.add_column("for")
    table.add_row("weights", _size(ready.weights_bytes), "shared by every request")
    table.add_row(
        "KV cache",
        _size(ready.kv_bytes),
        f"{ready.blocks:,} blocks of {ready.block_size} tokens: {tokens:,} tokens, "
        f"{tokens / ready.max_context:.1f} requests of the full context of {ready.max_context:,}",
    )
    table.add_row("working", _size(ready.working_bytes), "the largest step")
    console = Console()
    console.print(table)
    host = settings.host if ":" not in settings.host else f"[{settings.host}]"
    host = "localhost" if host in ("0.0.0.0", "[::]") else host
    console.print(
        f"Ready: one step took {ready.first_step_s * 1e3:.0f} ms. Open http://{host}:{port}/ to chat; "
        f"clients connect to ws://{host}:{port}/v1/responses.",
        soft_wrap=True,
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


if __name__ == "__main__":
    main()
