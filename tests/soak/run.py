"""One soak: a server, people who do everything to it, somebody who breaks its worker, and what is left at the end.

First so many new words are said that the tokeniser's memory of words is full, then all warms up, for a quarter of the
time, or half a minute of a short time: then all is let become quiet and is read. After the rest of the time it is read
again. What is held must be nothing at both; files and tasks must be the same, and
memory the same within `FLAT`.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import psutil
from msgspec import Struct, field

from tests.end_to_end.fragile_worker import FAULTS
from tests.end_to_end.server import Server, start
from tests.soak.books import Ledger
from tests.soak.people import Person
from tests.soak.readings import Readings, read
from tests.soak.server import HOLDS

FLAT = 0.05
WARM_S = 30.0
SERVER = "tests.soak.server"
WORKER = "tests.end_to_end.fragile_worker"
HANG_S = 3.0
ACTORS_LOG = ("actor.failed", "connection.failed", "watcher.failed", "engine.defect", "answer.failed", "prompt.failed")
"""Lines of the log that tell of a defect."""
SETTINGS = (
    *("--dtype", "float32", "--max-context", "1024", "--kv-memory", "2MiB", "--max-running", "16"),
    *("--max-waiting", "64", "--chunk-tokens", "64", "--hang-s", str(HANG_S), "--retain-s", "5", "--grace-s", "5"),
    *("--resume-grace-s", "2"),
)
"""Memory for four requests of the longest, so that some are preempted; conversations, and responses whose client stays
away, are forgotten soon."""


class Outcome(Struct):
    """What happened, and what must not have."""

    seconds: float
    seed: int
    ledger: Ledger
    warm: Readings
    end: Readings
    faults: list[str]
    broken: dict[str, int] = field(default_factory=dict)
    """How often the worker was broken, by how."""

    @property
    def growth(self) -> float:
        return self.end.rss / self.warm.rss - 1


class Breaker:
    """Kills the worker, stops it, or has it raise, now and then, when it serves."""

    def __init__(self, server: Server, faults: Path, chance: Random, every_s: float) -> None:
        self._server = server
        self._faults = faults
        self._chance = chance
        self._every_s = every_s
        self.broken: dict[str, int] = {}

    async def live(self, until: float) -> None:
        ways: dict[str, Callable[[psutil.Process], object]] = {
            "killed": psutil.Process.kill,
            "stopped": psutil.Process.suspend,
            "raised": lambda _: (self._faults / "raise").touch(),
        }
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._every_s * self._chance.uniform(0.5, 1.5))
            if loop.time() > until:
                return
            if (await self._server.get("/readyz"))[0] != 200:
                continue
            way = self._chance.choice(list(ways))
            try:
                ways[way](self._worker())
            except (psutil.Error, ValueError):
                continue
            self.broken[way] = self.broken.get(way, 0) + 1

    def _worker(self) -> psutil.Process:
        [worker] = psutil.Process(self._server.process.pid).children()
        return worker


async def soak(folder: Path, model: Path, *, seconds: float, seed: int, people: int, every_s: float) -> Outcome:
    """`folder` takes the server's output; `every_s`: about how often the worker is broken.

    Raises TimeoutError when the server does not become quiet, AssertionError when it does not start.
    """
    faults = folder / "faults"
    faults.mkdir(parents=True)
    holds = folder / "holds.json"
    environment = {FAULTS: str(faults), HOLDS: str(holds)}
    server = start(folder, "--model", str(model), *SETTINGS, environment=environment, module=SERVER)
    ledger = Ledger()
    broken: dict[str, int] = {}
    try:
        await asyncio.to_thread(server.wait_until_ready)
        began = time.monotonic()
        await Person(server.port, f"{seed} first", ledger).say_new_words()
        readings = []
        warm_s = max(seconds / 4, min(WARM_S, seconds / 2))
        for part, part_s in (("warm-up", warm_s), ("soak", seconds - warm_s)):
            breaker = Breaker(server, faults, Random(f"{seed} {part} breaker"), every_s)
            until = asyncio.get_running_loop().time() + part_s
            crowd = [Person(server.port, f"{seed} {part} {number}", ledger) for number in range(people)]
            await asyncio.gather(breaker.live(until), *(person.live(until) for person in crowd))
            for way, count in breaker.broken.items():
                broken[way] = broken.get(way, 0) + count
            (faults / "raise").unlink(missing_ok=True)
            readings.append(await read(server, holds))
        took = time.monotonic() - began
        server.terminate()
        code = await server.exit_code()
        found = [*ledger.faults, *left(*readings), *_logged(server)]
        if code != 0:
            found.append(f"the server left with exit code {code}")
        warm, end = readings
        return Outcome(took, seed, ledger, warm, end, found, broken)
    finally:
        server.kill()


def left(warm: Readings, end: Readings) -> list[str]:
    """A sentence for each thing that is there and should not be."""
    found = [
        f"{name}: {count} are left {when}"
        for when, readings in (("after the warm-up", warm), ("at the end", end))
        for name, count in readings.held.items()
        if count
    ]
    for what, before, after in (
        ("files", warm.files, end.files),
        ("tasks", warm.tasks, end.tasks),
        ("mailboxes", warm.objects.get("Mailbox"), end.objects.get("Mailbox")),
        ("child processes", warm.children, end.children),
        ("blocks", sum(warm.blocks.values()), sum(end.blocks.values())),
    ):
        if before != after:
            found.append(f"{what}: {before} after the warm-up, {after} at the end")
    if end.rss > warm.rss * (1 + FLAT):
        found.append(f"memory: {warm.rss / 2**20:.1f} MiB after the warm-up, {end.rss / 2**20:.1f} MiB at the end")
    return found


def _logged(server: Server) -> list[str]:
    """What the server says of itself that it should not have to."""
    lines = [line for line in server.log if line["event"] in ACTORS_LOG or line["event"].startswith("audit.")]
    return [f"logged: {line['event']} {str(line)[:300]}" for line in lines[:10]]
