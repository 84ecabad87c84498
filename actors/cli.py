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
from typing import Protocol

from actors import config
from actors.config import ConfigError
from actors.keys_on_the_line import keys_out_of_sight

_SERVE = (
    "Every setting can also stand in rota.toml (max_context = 4096) or in the environment (ROTA_MAX_CONTEXT=4096); "
    "a flag wins over the environment, the environment over the file."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exits with the command's code."""
    if arguments is None:
        arguments = sys.argv[1:]
        keys_out_of_sight(sys.orig_argv, os.environ)
    try:
        sys.exit(_run(arguments))
    except KeyboardInterrupt:
        sys.exit(130)


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="rota", description="Serves a language model over WebSockets.")
    parser.add_argument("--version", action="version", version=f"rota {importlib.metadata.version('rota')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser("serve", help="load a model and serve it", description=_SERVE)
    config.add_arguments(serve)
    others = {name: commands.add_parser(name, help=about) for name, (about, _) in _BESIDE.items()}
    for name in _BESIDE.keys() & set(arguments):
        _BESIDE[name][1]().add_arguments(others[name])
    given, unknown = parser.parse_known_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    if given.command == "serve":
        return _serve(given, unknown)
    if unknown:
        others[given.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return _BESIDE[given.command][1]().run(given)


class _Command(Protocol):
    """What is run beside the server."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def _load() -> _Command:
    from loadgen import load

    return load


def _replay() -> _Command:
    from loadgen import replay

    return replay


def _chat() -> _Command:
    from loadgen import chat

    return chat


def _trace() -> _Command:
    from loadgen.tracing import command

    return command


def _simulate() -> _Command:
    from actors.simulator.command import Shown, Simulate
    from loadgen.comparison import compare, print_comparison
    from loadgen.picture import html, svg

    return Simulate(Shown(print_comparison, svg, html, compare))


def _key() -> _Command:
    from actors import key_command

    return key_command


_BESIDE = {
    "key": ("make an API key, show it once, and print what the file of keys needs of it", _key),
    "load": ("open many sockets to a running server and time them", _load),
    "chat": ("talk to a server in the terminal", _chat),
    "trace": (
        "read what `rota serve --trace FILE` wrote: where the time of a request went, and who held the GPU",
        _trace,
    ),
    "replay": ("put a scenario on the engine, once under each policy, and show who waited", _replay),
    "simulate": ("the same on a cost model, in virtual time: an hour of real traffic in less than a minute", _simulate),
}
"""Of each: what it does, and what imports it."""


def _serve(given: argparse.Namespace, unknown: list[str]) -> int:
    try:
        config.refuse_unknown_flags(unknown)
        settings = config.load(vars(given), os.environ, Path.cwd())
    except ConfigError as error:
        return _say(error)
    os.environ.pop("ROTA_API_KEYS", None)  # the worker would inherit them
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
