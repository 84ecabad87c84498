"""What the commands that put a load on a server share: what their arguments may be, and what a process needs for it.

Knows URLs, numbers, files and the limits of this machine. Knows no server and no figures.
"""

import argparse
import asyncio
import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from loadgen.exchange import Api

DEFAULT_SERVER = "127.0.0.1:8000"
DEFAULT_URL = "ws://127.0.0.1:8000/v1/responses"
DEFAULT_PORT = 8000
PATHS: dict[Api, str] = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
_SCHEMES: dict[Api, dict[str, str]] = {
    "responses": {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"},
    "chat": {"ws": "http", "http": "http", "wss": "https", "https": "https"},
}


class Misuse(Exception):
    """The command line asks for something that cannot be done. The message is one sentence."""


KEY_VARIABLE = "ROTA_KEY"
"""Whose value no list of processes shows."""


def server_url(text: str, api: Api = "responses") -> str:
    """The URL meant by a ws, wss, http or https URL, or by `host[:port]` (port 8000 unless given).

    It has the scheme that the API goes over; a URL without a path, or with `/v1`, gets the API's. Raises `Misuse`.
    """
    bare = "://" not in text
    try:
        parts = urlsplit(f"ws://{text}" if bare else text)
        host, port = parts.hostname, parts.port
    except ValueError as wrong:
        raise Misuse(f"{text!r} is not a URL: {wrong}.") from wrong
    schemes = _SCHEMES[api]
    if parts.scheme not in schemes:
        raise Misuse(f"{text!r} is not a ws://, wss://, http:// or https:// URL.")
    if not host or any(letter.isspace() for letter in text):
        raise Misuse(f"{text!r} names no host.")
    if parts.username is not None or parts.fragment:
        raise Misuse("The URL may hold no user name and no fragment; a key is given with --key.")
    if bare and port is None:
        port = DEFAULT_PORT
    where = f"[{host}]" if ":" in host else host
    path = PATHS[api] if parts.path.rstrip("/") in ("", "/v1") else parts.path
    query = f"?{parts.query}" if parts.query else ""
    return f"{schemes[parts.scheme]}://{where}{'' if port is None else f':{port}'}{path}{query}"


def add_key(parser: argparse.ArgumentParser) -> None:
    """`--key`, or the environment's KEY_VARIABLE."""
    parser.add_argument(
        "--key",
        metavar="KEY",
        default=os.environ.get(KEY_VARIABLE),
        help=f"the API key, if the server wants one (default: {KEY_VARIABLE} in the environment, if it is there)",
    )


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine by its own name: `localhost`, 127.0.0.0/8 or ::1. Looks nothing up."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def allowed_url(text: str, anywhere: bool, api: Api = "responses") -> str:
    """`server_url` of a server on this machine, or on any. Raises `Misuse`."""
    url = server_url(text, api)
    if not (anywhere or is_loopback(url)):
        host = urlsplit(url).hostname
        raise Misuse(
            f"{host} is not this machine, and a load can harm a server that others use: add --anywhere if you may."
        )
    return url


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed: the client should be the last to be late."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def allow_files(needed: int, instead: str, wanted: int = 0) -> None:
    """Raise this process's own limit on open files to `wanted`, if that is more than `needed` and it may.

    Raises `Misuse`, which says what to do `instead`, when not even `needed` are allowed.
    """
    try:
        import resource
    except ImportError:  # no such limit on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(needed, wanted)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY:
        if hard < needed:
            raise Misuse(f"This machine allows a process {hard:,} open files, and {needed:,} are needed: {instead}.")
        wanted = min(wanted, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_folder(file: Path) -> None:
    """Whether `file` could be written, before there is anything to write. Raises `Misuse`."""
    if not file.absolute().parent.is_dir():
        raise Misuse(f"{file} cannot be written: there is no folder {file.absolute().parent}.")


def pretty_json(value: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write_file(file: Path, content: bytes) -> None:
    """Raises `Misuse`."""
    try:
        file.write_bytes(content)
    except OSError as failed:
        raise Misuse(f"{file} cannot be written: {failed.strerror}.") from failed
