"""`rota load` as a test calls it, and the figures that it wrote."""

import argparse
import json
from pathlib import Path

import msgspec

from loadgen.figures import Report
from loadgen.load import add_arguments, run
from tests.loadgen.chat_server import ChatServer
from tests.loadgen.scripted_server import ScriptedServer


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(flags)


def rota_load(server: ScriptedServer | ChatServer, *flags: str, sockets: int | None = 1, warmup: int = 0) -> int:
    """Its exit code. `sockets`: None where people bring their own."""
    own = [] if sockets is None else ["--sockets", str(sockets)]
    return run(parsed(server.url, *own, "--warmup", str(warmup), "--quiet", *flags))


def figures(file: Path) -> Report:
    """The file, read as strictly as its shape is documented: unknown fields are errors."""
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert msgspec.to_builtins(report) == json.loads(file.read_bytes())
    return report
