"""`python -m tests.end_to_end.silent_crowd URL COUNT RATE ADDRESSES`: opens sockets that say nothing, and holds them.

A process of its own, so that whoever measures beside it is not kept from looking. RATE sockets a second, from so many
addresses of this machine (127.0.0.2 and up). Writes one line of JSON when all are open, waits until its standard input
closes, and writes another: how many are still open.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from typing import Any

import uvloop
from websockets.asyncio.client import ClientConnection, connect

from loadgen.command_line import allow_files

SPARE_FILES = 64


async def crowd(url: str, count: int, rate: float, addresses: int) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    took: list[float] = []
    errors: Counter[str] = Counter()

    async def open_one(number: int) -> ClientConnection | None:
        await asyncio.sleep(began + number / rate - loop.time())
        since = time.perf_counter()
        source = (f"127.0.0.{2 + number % addresses}", 0)
        try:
            how: dict[str, Any] = {"compression": None, "proxy": None, "ping_interval": None, "open_timeout": 60}
            socket = await connect(url, local_addr=source, **how)
        except Exception as error:  # noqa: BLE001  counted, and told at the end
            errors[f"{type(error).__name__}: {error}"] += 1
            return None
        took.append(time.perf_counter() - since)
        return socket

    # Not all tasks at once: the first ones would wait for the others to be made.
    opening: list[asyncio.Task[ClientConnection | None]] = []
    for number in range(count):
        opening.append(asyncio.create_task(open_one(number)))
        if number % 50 == 49:
            await asyncio.sleep(began + number / rate - loop.time())
    sockets = [socket for socket in await asyncio.gather(*opening) if socket is not None]
    took.sort()
    told = {
        "open": len(sockets),
        "took_s": loop.time() - began,
        "p50_ms": took[len(took) // 2] * 1e3 if took else None,
        "p99_ms": took[int(len(took) * 0.99)] * 1e3 if took else None,
        "errors": dict(errors),
    }
    print(json.dumps(told), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps({"open": sum(socket.close_code is None for socket in sockets)}), flush=True)
    for socket in sockets:
        with contextlib.suppress(OSError):
            socket.transport.abort()


if __name__ == "__main__":
    allow_files(int(sys.argv[2]) + SPARE_FILES, "open fewer sockets")
    uvloop.run(crowd(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
