"""What a server holds while nobody asks it for anything: sockets, files, tasks, objects, blocks, sequences, memory.

Everything is read from outside (its metrics, /proc), but for its tasks and objects, which it writes when signalled.
Knows nothing of what was asked before.
"""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
from msgspec import Struct

from tests.end_to_end.server import Metrics, Server, until

QUIET_S = 120.0
"""How long it may take until everything that was asked has been let go."""


class Readings(Struct):
    """One set of them. `files`: open descriptors of the server by kind; `rss`: bytes; `aside`: objects that Python's
    collector was kept from looking through."""

    rss: int
    files: dict[str, int]
    tasks: dict[str, int]
    objects: dict[str, int]
    blocks: dict[str, int]
    requests: dict[str, int]
    connections: int
    watchers: int
    waiting_messages: int
    children: int
    restarts: int
    aside: int

    @property
    def held(self) -> dict[str, int]:
        """All that must be nothing, by name."""
        stays = ("free", "cached")
        blocks = {f"blocks {state}": count for state, count in self.blocks.items() if state not in stays}
        requests = {f"requests {state}": count for state, count in self.requests.items()}
        others = {"connections": self.connections, "watchers": self.watchers, "messages": self.waiting_messages}
        objects = {f"objects {kind}": count for kind, count in self.objects.items() if kind != "Mailbox"}
        return {**blocks, **requests, **others, **objects}


async def quiet(server: Server) -> Metrics:
    """The first scrape on which nobody is there, nothing is used, and a worker is."""

    def nothing(seen: Metrics) -> bool:
        return (
            seen.value("rota_worker_up") == 1
            and seen.value("rota_connections") == 0
            and seen.value("rota_responses_unread") == 0
            and seen.blocks["used"] == 0
            and not any(seen.requests.values())
        )

    async def look() -> Metrics | None:
        seen = await server.metrics()
        return seen if nothing(seen) else None

    return await until(look, QUIET_S, "scrape without sockets, requests, unread responses and used blocks")


async def read(server: Server, holds: Path) -> Readings:
    """Once all is quiet. Memory is resident memory of the server's process, the least of ten looks in a second: a look
    must not catch a moment's rubbish."""
    seen = await quiet(server)
    held = await asyncio.to_thread(_held, server, holds)
    process = psutil.Process(server.process.pid)
    looks = []
    for _ in range(10):
        looks.append(process.memory_info().rss)
        await asyncio.sleep(0.1)
    return Readings(
        rss=min(looks),
        files=_files(server.process.pid),
        tasks=held["tasks"],
        objects=held["objects"],
        blocks=seen.blocks,
        requests=seen.requests,
        connections=int(seen.value("rota_connections")),
        watchers=int(seen.value("rota_watchers")),
        waiting_messages=_waiting(seen),
        children=len(process.children()),
        restarts=int(seen.value("rota_worker_restarts_total")),
        aside=held["collector"]["aside"],
    )


def _held(server: Server, holds: Path) -> dict[str, dict[str, int]]:
    """As `tests/soak/server.py` writes it."""
    holds.unlink(missing_ok=True)
    os.kill(server.process.pid, signal.SIGUSR2)
    deadline = time.monotonic() + QUIET_S
    while not holds.exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the server did not write what it holds")
        time.sleep(0.01)
    found: dict[str, dict[str, int]] = json.loads(holds.read_text())
    return found


def _waiting(seen: Metrics) -> int:
    actors = ("tokeniser", "admission", "scheduler", "executor", "detokeniser", "gallery")
    lanes = ("control", "data", "slots")
    return sum(int(seen.value("rota_mailbox_depth", actor=actor, lane=lane)) for actor in actors for lane in lanes)


def _files(pid: int) -> dict[str, int]:
    """By what they are. The look itself may catch a socket of its own that is about to close: it looks until two
    looks in a row are the same."""
    deadline = time.monotonic() + 30.0
    before: Counter[str] | None = None
    while True:
        found: Counter[str] = Counter()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except FileNotFoundError:
                continue
            found[target.split(":")[0] if ":" in target else "file"] += 1
        if found == before or time.monotonic() > deadline:
            return dict(found)
        before = found
        time.sleep(0.5)
