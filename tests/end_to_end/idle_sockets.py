"""`python -m tests.end_to_end.idle_sockets`: what a crowd of open sockets that say nothing costs a server, and those
who ask beside it.

Starts a server of its own, on a small model and a device that takes its time, so that what is measured is the server
and not the machine's arithmetic. Those who ask are timed alone, then while the crowd comes in, then while it is there.
Prints the memory of each idle socket, the processor time of all, and the gaps between tokens. Ends by itself, with 1
when somebody was not served, or the gaps' 99th percentile is over 1.3 times what it was without the crowd.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect

from loadgen.command_line import allow_files
from tests.end_to_end.conftest import legible_model
from tests.end_to_end.server import Server, serving

STILL_S = 5.0
STEP_S = 0.02
"""What the device takes for a step, besides its arithmetic."""
MOST_RATIO = 1.3
SPARE = 64


class Gaps(Struct):
    """Of those who asked in one stretch of time, in seconds, sorted; and how many answers ended in another way than
    they should have."""

    gaps: list[float]
    firsts: list[float]
    failed: int

    def at(self, share: float) -> float:
        return self.gaps[min(len(self.gaps) - 1, int(len(self.gaps) * share))]

    def __str__(self) -> str:
        firsts = sorted(self.firsts)
        return (
            f"gaps p50 {self.at(0.5) * 1e3:.1f} ms, p99 {self.at(0.99) * 1e3:.1f} ms, longest "
            f"{self.gaps[-1] * 1e3:.0f} ms; first text p50 {firsts[len(firsts) // 2] * 1e3:.0f} ms; {len(firsts):,} "
            f"answers, {self.failed} failed"
        )


class Asking:
    """People who ask one question after the other, each on a socket of its own, until told to stop."""

    def __init__(self, sockets: list[ClientConnection], tokens: int) -> None:
        self._sockets = sockets
        self._tokens = tokens

    async def until(self, over: asyncio.Event, at_least_s: float) -> Gaps:
        found = Gaps([], [], 0)
        until = time.perf_counter() + at_least_s

        async def ask_on(socket: ClientConnection, number: int) -> None:
            while time.perf_counter() < until or not over.is_set():
                await self._ask(socket, number, found)

        await asyncio.gather(*(ask_on(socket, number) for number, socket in enumerate(self._sockets)))
        found.gaps.sort()
        return found

    async def _ask(self, socket: ClientConnection, number: int, found: Gaps) -> None:
        request = {
            "type": "response.create",
            "input": f"Say something about the number {number}.",
            "max_output_tokens": self._tokens,
            "ignore_eos": True,
        }
        last = sent = time.perf_counter()
        first = True
        await socket.send(json.dumps(request))
        async for frame in socket:
            # Most frames by far: to decode them all here would be what is measured.
            if '"response.output_text.delta"' in frame[:60]:
                now = time.perf_counter()
                (found.firsts if first else found.gaps).append(now - (sent if first else last))
                first, last = False, now
                continue
            event = json.loads(frame)
            if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                rota = event.get("response", {}).get("rota", {})
                found.failed += rota.get("finish_reason") != "length"
                return
        found.failed += 1


@asynccontextmanager
async def crowd(server: Server, count: int, rate: float, addresses: int) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    arguments = (server.url, str(count), str(rate), str(addresses))
    command = (sys.executable, "-m", "tests.end_to_end.silent_crowd", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(server: Server, args: argparse.Namespace) -> int:
    process = psutil.Process(server.process.pid)
    how: dict[str, Any] = {"compression": None, "proxy": None, "ping_interval": None}
    asking = Asking([await connect(server.url, **how) for _ in range(args.active)], args.tokens)
    now = asyncio.Event()
    now.set()
    await asking.until(now, 2.0)  # what only the first ones cost
    alone = await asking.until(now, args.seconds)
    print(f"{args.active} who ask alone: {alone}", flush=True)
    async with crowd(server, args.sockets, args.rate, args.addresses) as people:
        assert people.stdin is not None
        assert people.stdout is not None
        before = process.memory_full_info().uss
        all_here = asyncio.Event()
        coming = asyncio.create_task(asking.until(all_here, 0.0))
        told = json.loads(await people.stdout.readline())
        all_here.set()
        meanwhile = await coming
        print(
            f"{told['open']:,} sockets opened at {told['open'] / told['took_s']:.0f} a second ({args.rate:.0f} were "
            f"asked for), each in {told['p50_ms']:.1f} ms, p99 {told['p99_ms']:.1f} ms; "
            f"errors: {told['errors'] or 'none'}"
        )
        print(f"{args.active} who ask meanwhile: {meanwhile}", flush=True)
        each = (process.memory_full_info().uss - before) / args.sockets
        at_first = process.cpu_times()
        await asyncio.sleep(STILL_S)
        busy = sum(process.cpu_times()[:2]) - sum(at_first[:2])
        print(
            f"each idle one takes {each / 1024:.1f} KiB in the server, and all of them {busy / STILL_S:.1%} of a core"
        )
        beside = await asking.until(now, args.seconds)
        print(f"{args.active} who ask beside {told['open']:,} that are silent: {beside}", flush=True)
        people.stdin.close()
        still = json.loads(await people.stdout.readline())["open"]
    ratio = beside.at(0.99) / alone.at(0.99)
    print(
        f"gap p99 beside the crowd is {ratio:.2f} times that without (at most {MOST_RATIO}), and "
        f"{meanwhile.at(0.99) / alone.at(0.99):.2f} times while {args.rate:.0f} a second come in; {still:,} of the "
        f"silent ones are still open"
    )
    failed = alone.failed + meanwhile.failed + beside.failed
    return 0 if still == args.sockets and not failed and ratio <= MOST_RATIO else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=2000, help="that say nothing [2000]")
    parser.add_argument("--rate", type=float, default=500.0, help="how many of them come in a second [500]")
    parser.add_argument("--active", type=int, default=200, help="who ask [200]")
    parser.add_argument("--tokens", type=int, default=100, help="of an answer [100]")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="each stretch of asking takes at least so long [15]"
    )
    parser.add_argument("--addresses", type=int, default=64, help="that the silent ones come from [64]")
    parser.add_argument("serve", nargs="*", help="flags for the server, after --")
    args = parser.parse_args()
    allow_files(args.active + SPARE, "lower --active")
    limits = ("--max-connections", str(args.sockets + args.active + SPARE), "--max-running", str(args.active))
    print(
        f"load average before: {', '.join(f'{load:.2f}' for load in os.getloadavg())}, {os.cpu_count()} cores",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = legible_model(folder / "small")
        settings = ("--model", str(model), "--dtype", "float32", *limits, *args.serve)
        slow: dict[str, Any] = {
            "environment": {"TEST_DEVICE_TAKES_S": str(STEP_S)},
            "module": "tests.end_to_end.slow_device",
        }
        with serving(folder / "server", *settings, **slow) as server:
            return uvloop.run(measure(server, args))


if __name__ == "__main__":
    sys.exit(main())
