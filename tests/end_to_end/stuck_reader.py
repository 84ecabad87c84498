"""`python -m tests.end_to_end.stuck_reader`: what a client costs that asks much and stops reading.

Starts a server of its own, has one client ask for many answers and then read nothing, and lets another be served
meanwhile. Prints the server's memory before and after, how long the stuck client was put up with, and how the other was
served. Ends by itself.
"""

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
from msgspec import Struct

from tests.end_to_end.client import connected
from tests.end_to_end.conftest import legible_model
from tests.end_to_end.server import Server, serving

UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
LOOK_S = 0.25


class Seen(Struct):
    """Of the server while one client was stuck. Bytes are of its process, without the worker's."""

    before_bytes: int
    most_bytes: int
    after_bytes: int
    paused: int
    """Requests that were kept off the device, at most."""
    let_go_s: float
    """From the last that was read to the end of all the stuck client had asked."""
    others: list[str]
    """How the answers of the other client ended."""
    others_s: float
    """Seconds that the middle one of them took."""


class StuckReader:
    """A client that asks, with a small buffer of its own, and reads nothing."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        self._socket.sendall(UPGRADE)

    def ask(self, lane: str, tokens: int) -> None:
        request = {
            "type": "response.create",
            "stream_id": lane,
            "input": f"Say something long about {lane}.",
            "max_output_tokens": tokens,
            "ignore_eos": True,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 5,
        }
        payload = json.dumps(request).encode()
        self._socket.sendall(b"\x81\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload)

    def close(self) -> None:
        self._socket.close()


async def watched(server: Server, *, answers: int, tokens: int, within_s: float) -> Seen:
    """One client asks for so many answers and stops reading; another asks on and on, until the first is let go."""
    process = psutil.Process(server.process.pid)
    async with connected(server) as other:
        await other.ask("Are you there?", max_output_tokens=2, ignore_eos=True)
        before = process.memory_full_info().uss
        seen = Seen(before, before, before, 0, 0.0, [], 0.0)
        stuck, began, took = StuckReader(server), time.monotonic(), []
        try:
            for number in range(answers):
                stuck.ask(f"stuck-{number}", tokens)
            while True:
                asked = time.monotonic()
                seen.others.append((await other.ask("And now?", max_output_tokens=8, ignore_eos=True)).reason)
                took.append(time.monotonic() - asked)
                seen.most_bytes = max(seen.most_bytes, process.memory_full_info().uss)
                metrics = await server.metrics()
                seen.paused = max(seen.paused, int(metrics.value("rota_requests_paused")))
                ended = metrics.value("rota_requests_finished_total", reason="cancelled")
                if ended >= answers or time.monotonic() - began > within_s:
                    break
                await asyncio.sleep(LOOK_S)
            seen.let_go_s = time.monotonic() - began
        finally:
            stuck.close()
        await server.empty()
        seen.after_bytes = process.memory_full_info().uss
        seen.others_s = median(took)
        return seen


async def measure(answers: int, tokens: int, patience_s: float) -> int:
    with tempfile.TemporaryDirectory() as folder:
        model = legible_model(Path(folder) / "model")
        arguments = ("--model", str(model), "--dtype", "float32", "--reader-patience-s", str(patience_s))
        with serving(Path(folder) / "server", *arguments) as server:
            seen = await watched(server, answers=answers, tokens=tokens, within_s=patience_s + 60)
    print(f"a client that reads nothing of {answers} answers of {tokens:,} tokens, with log-probabilities")
    print(f"server's memory  before {seen.before_bytes / 2**20:.1f} MiB, at most +{_mib(seen, seen.most_bytes)} MiB")
    print(f"                 after it was let go +{_mib(seen, seen.after_bytes)} MiB")
    print(f"paused           {seen.paused} requests at most")
    print(f"let go           after {seen.let_go_s:.1f} s, of a patience of {patience_s:.0f} s")
    print(f"another client   {len(seen.others)} answers, each in {seen.others_s * 1e3:.0f} ms (median)")
    return 0 if set(seen.others) == {"length"} else 1


def _mib(seen: Seen, size: int) -> str:
    return f"{(size - seen.before_bytes) / 2**20:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.end_to_end.stuck_reader", description=__doc__)
    parser.add_argument("--answers", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--patience-s", type=float, default=60.0)
    given = parser.parse_args()
    return asyncio.run(measure(given.answers, given.tokens, given.patience_s))


if __name__ == "__main__":
    sys.exit(main())
