"""The command `rota`: serve, and what a person runs beside it.

Knows arguments and exit codes: 2 is a sentence about what cannot be done. What takes time to import is imported by the
command that needs it.
"""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from actors import config
from actors.config import ConfigError

_SERVE = (
    "Every setting can also stand in rota.toml (max_context = 4096) or in the environment (ROTA_MAX_CONTEXT=4096); "
    "a flag wins over the environment, the environment over the file."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exits with the command's code."""
    try:
        sys.exit(_run(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        sys.exit(130)


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="rota", description="Serves a language model over WebSockets.")
    parser.add_argument("--version", action="version", version=f"rota {importlib.metadata.version('rota')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser("serve", help="load a model and serve it", description=_SERVE)
    config.add_arguments(serve)
    load = commands.add_parser("load", help="open many sockets to a running server and time them")
    _add_load(load)
    given, unknown = parser.parse_known_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    if given.command == "serve":
        return _serve(given, unknown)
    if unknown:
        load.error(f"unrecognized arguments: {' '.join(unknown)}")
    return _load(given)


def _add_load(parser: argparse.ArgumentParser) -> None:
    from loadgen import load

    load.add_arguments(parser)


def _load(given: argparse.Namespace) -> int:
    from loadgen import load

    return load.run(given)


def _serve(given: argparse.Namespace, unknown: list[str]) -> int:
    try:
        config.refuse_unknown_flags(unknown)
        settings = config.load(vars(given), os.environ, Path.cwd())
    except ConfigError as error:
        return _say(error)
    from actors.engine import EngineStopped
    from actors.serving import serve

    try:
        serve(settings)
    except (ConfigError, EngineStopped) as error:
        return _say(error)
    return 0


def _say(error: Exception) -> int:
    print(f"rota: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
