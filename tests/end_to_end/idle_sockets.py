"""`python -m tests.end_to_end.idle_sockets`: what an open socket that says nothing costs the server.

Starts a server of its own, opens many sockets, and lets others ask meanwhile. Prints the memory of each idle one, the
processor time they take together, and how those who asked were served. Ends by itself.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from loadgen.command_line import allow_files
from tests.end_to_end.server import Server, serving

AT_ONCE = 64
STILL_S = 5.0


async def opened(url: str, count: int) -> list[ClientConnection]:
    """So many sockets, `AT_ONCE` at a time."""
    sockets: list[ClientConnection] = []
    while len(sockets) < count:
        batch = min(AT_ONCE, count - len(sockets))
        sockets += await asyncio.gather(*(connect(url, compression=None, proxy=None) for _ in range(batch)))
    return sockets


async def asked(socket: ClientConnection, number: int, tokens: int) -> tuple[str, float]:
    """How one request ended, and seconds to its first text."""
    request = {
        "type": "response.create",
        "input": f"Say something about the number {number}.",
        "max_output_tokens": tokens,
        "ignore_eos": True,
    }
    sent, first = time.perf_counter(), 0.0
    await socket.send(json.dumps(request))
    async for frame in socket:
        event = json.loads(frame)
        if event["type"] == "response.output_text.delta" and not first:
            first = time.perf_counter() - sent
        if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
            rota = event.get("response", {}).get("rota", {})
            return rota.get("finish_reason") or event["error"]["code"], first
    return "dropped", first


async def measure(server: Server, idle: int, active: int, tokens: int) -> int:
    process = psutil.Process(server.process.pid)
    for socket in await opened(server.url, AT_ONCE):  # what only the first ones cost
        await socket.close()
    before = process.memory_full_info().uss
    began = time.perf_counter()
    sockets = await opened(server.url, idle)
    took = time.perf_counter() - began
    each = (process.memory_full_info().uss - before) / idle
    print(f"{idle:,} idle sockets, opened in {took:.2f} s: {each / 1024:.1f} KiB each in the server")
    at_first = process.cpu_times()
    await asyncio.sleep(STILL_S)
    busy = sum(process.cpu_times()[:2]) - sum(at_first[:2])
    print(f"processor time of the server meanwhile: {busy / STILL_S:.1%} of a core")
    asking = await opened(server.url, active)
    began = time.perf_counter()
    ends = await asyncio.gather(*(asked(socket, number, tokens) for number, socket in enumerate(asking)))
    took = time.perf_counter() - began
    served = sum(reason == "length" for reason, _ in ends)
    firsts = sorted(first for _, first in ends)
    print(
        f"{served} of {active} served beside them, {active * tokens / took:,.0f} tokens/s, first text p50 "
        f"{median(firsts) * 1e3:.0f} ms, worst {firsts[-1] * 1e3:.0f} ms"
    )
    still_open = sum(not socket.close_code for socket in sockets)
    print(f"{still_open:,} of the idle ones are still open")
    await asyncio.gather(*(socket.close() for socket in sockets + asking))
    return 0 if (served, still_open) == (active, idle) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--active", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("serve", nargs="*", help="flags for the server, after --")
    args = parser.parse_args()
    allow_files(args.idle + args.active + AT_ONCE, "lower --idle")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), *args.serve) as server:
        return uvloop.run(measure(server, args.idle, args.active, args.tokens))


if __name__ == "__main__":
    sys.exit(main())
