"""The real `rota serve` in a process of its own, and what an outsider can see of it.

Knows the command line, the sentence that says it is ready, the log and `/metrics`. Knows nothing of what is said on a
socket. Nothing here reaches into the server: it is watched from outside, as whoever runs it would.

Whoever is outside can only look again, so `until` does, and everything here that waits for the server waits by it.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil
from prometheus_client.parser import text_string_to_metric_families

URL = re.compile(r"wss?://[\w.]+:(\d+)/v1/responses")
START_S = 120.0
"""Far more than a start takes: a test that waits so long has failed for another reason than a busy machine."""
LEAVE_S = 30.0
PATIENCE_S = 60.0
LOOK_AGAIN_S = 0.005
KEPT_FROM_LOOKING_S = 5.0
"""Of a busy machine; no keepalive and no patience of a server ends in so short a time."""

Found = TypeVar("Found")


async def until(look: Callable[[], Awaitable[Found | None]], within_s: float = PATIENCE_S, what: str = "") -> Found:
    """Look until there is something to see (neither None nor False), and return it. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while True:
        found = await look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"within {within_s:.0f} s there was no {what or look}")
        await asyncio.sleep(LOOK_AGAIN_S)


class Metrics:
    """One scrape."""

    def __init__(self, exposition: str) -> None:
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self._samples.get((name, frozenset(labels.items())), 0.0)

    @property
    def blocks(self) -> dict[str, int]:
        return {state: int(self.value("rota_kv_blocks", state=state)) for state in ("free", "cached", "used")}

    @property
    def requests(self) -> dict[str, int]:
        states = ("queued", "prefilling", "decoding", "preempted")
        return {state: int(self.value("rota_requests", state=state)) for state in states}

    def longest_at_least(self, histogram: str, before: "Metrics") -> float:
        """The lower bound of the highest bucket that was observed since `before`: what the longest surely took."""
        return self._edges(histogram, before)[0]

    def longest_at_most(self, histogram: str, before: "Metrics") -> float:
        return self._edges(histogram, before)[1]

    def mean(self, histogram: str, before: "Metrics") -> float:
        count = self.value(f"{histogram}_count") - before.value(f"{histogram}_count")
        return (self.value(f"{histogram}_sum") - before.value(f"{histogram}_sum")) / count if count else 0.0

    def _edges(self, histogram: str, before: "Metrics") -> tuple[float, float]:
        name = f"{histogram}_bucket"
        edges = sorted(float(dict(labels)["le"]) for found, labels in self._samples if found == name)
        highest = (0.0, 0.0)
        counted = 0.0
        for low, upper in pairwise((0.0, *edges)):
            le = "+Inf" if math.isinf(upper) else str(upper)
            count = self.value(name, le=le) - before.value(name, le=le)
            if count > counted:
                highest, counted = (low, upper), count
        return highest


class Server:
    """A started `rota serve`. Its output is in files, so nothing it writes can block it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, port: int) -> None:
        self.process = process
        self.port = port
        self.model = ""
        self._folder = folder

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return (self._folder / "stdout").read_text("utf-8")

    @property
    def errors(self) -> str:
        return (self._folder / "stderr").read_text("utf-8")

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every line of the log so far. What a library prints, or a line half written, is no line of the log."""
        lines = []
        for line in self.errors.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict)]

    def logged(self, event: str, **fields: object) -> list[dict[str, Any]]:
        wanted = {"event": event, **fields}.items()
        return [line for line in self.log if wanted <= {name: line.get(name) for name, _ in wanted}.items()]

    async def finished(self, request: str) -> dict[str, Any]:
        """The `request.finished` line of this request; exactly one."""

        async def line() -> list[dict[str, Any]] | None:
            return self.logged("request.finished", request=request) or None

        [found] = await until(line, what=f"request.finished line of {request}")
        return found

    async def finished_since(self, known: int, count: int = 1) -> list[dict[str, Any]]:
        """The `request.finished` lines after the first `known`, once there are `count` of them: a line is written a
        moment after its client has heard of the end."""

        async def lines() -> list[dict[str, Any]] | None:
            found = self.logged("request.finished")[known:]
            return found if len(found) >= count else None

        return await until(lines, what=f"{count} request.finished lines after {known}")

    # --- life ---

    def wait_until_ready(self) -> None:
        """Blocks: fixtures of the session have no event loop. Fails with what the server said, if it ended."""
        deadline = time.monotonic() + START_S
        while not (ready := self.logged("engine.ready")):
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.errors}"
            assert time.monotonic() < deadline, f"the server is not ready after {START_S:.0f} s:\n{self.errors}"
            time.sleep(0.02)
        url = URL.fullmatch(ready[0]["url"])
        assert url is not None, ready
        self.port = int(url[1])
        self.model = ready[0]["model"]

    async def exit_code(self, within_s: float = LEAVE_S) -> int:
        async def code() -> tuple[int] | None:
            found = self.process.poll()
            return None if found is None else (found,)

        return (await until(code, within_s, "exit"))[0]

    def kill(self) -> None:
        """End it now, if it has not ended, and wait for that."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    @property
    def worker(self) -> psutil.Process:
        """The one child that runs `kernels.worker`."""
        [worker] = [
            child for child in psutil.Process(self.process.pid).children() if "kernels.worker" in child.cmdline()
        ]
        return worker

    # --- over HTTP ---

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return int(head.split()[1]), body

    async def metrics(self) -> Metrics:
        status, body = await self.get("/metrics")
        assert status == 200
        return Metrics(body.decode())

    async def empty(self) -> Metrics:
        """The first scrape on which nobody is served and no block is used. Free and cached must then be all."""
        total = self.logged("engine.ready")[-1]["kv_blocks"]

        def nothing_used(seen: Metrics) -> bool:
            assert sum(seen.blocks.values()) == total, f"{seen.blocks} do not add up to {total}"
            return seen.blocks["used"] == 0 and not any(seen.requests.values())

        return await self.shows(nothing_used)

    async def lets_go_in_time(
        self, before: Metrics, leave: Callable[[], Awaitable[object]], gone: Callable[[Metrics], bool] | None = None
    ) -> None:
        """After `leave`, everything is released within one step and 100 ms.

        That is what the server's own clock says, from a cancel to its blocks; `before` is a scrape from which on steps
        and releases are counted. Both are known up to their histogram's bucket, and the doubt is the server's to enjoy.
        From outside it is seen on the first scrape on which all is `gone` (by default: no block used, nobody served).
        That is printed, and bounded more loosely, because this process may be kept from looking: what it must show is
        that the server noticed by itself that somebody had left, and waited for no keepalive and no patience.
        """
        left = time.monotonic()
        await leave()
        if gone is None:
            after = await self.empty()
        else:
            after = await self.shows(gone)
        seen_s = time.monotonic() - left
        began = time.monotonic()
        await self.metrics()
        scrape_s = time.monotonic() - began
        step_s = after.longest_at_most("rota_step_seconds", before)
        release = "rota_cancel_to_release_seconds"
        print(
            f"released {after.value(f'{release}_count') - before.value(f'{release}_count'):.0f} in at most "
            f"{after.longest_at_most(release, before) * 1e3:.0f} ms, mean {after.mean(release, before) * 1e3:.1f} ms; "
            f"seen from outside after {seen_s * 1e3:.0f} ms; longest step at most {step_s * 1e3:.0f} ms, "
            f"mean {after.mean('rota_step_seconds', before) * 1e3:.1f} ms; a scrape takes {scrape_s * 1e3:.0f} ms"
        )
        assert after.longest_at_least(release, before) <= step_s + 0.1, "a release took over one step and 100 ms"
        assert seen_s <= step_s + 0.1 + KEPT_FROM_LOOKING_S, "the blocks were not back in time"

    async def shows(self, condition: Callable[[Metrics], bool]) -> Metrics:
        """The first scrape of which `condition` is true."""

        async def look() -> Metrics | None:
            seen = await self.metrics()
            return seen if condition(seen) else None

        return await until(look, what="scrape as wanted")


def start(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
    module: str = "actors.cli",
) -> Server:
    """Begin a server that writes to `folder`, and do not wait for it. `module`: what Python runs for `rota`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, "serve", "--port", str(port), "--log-format", "json", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    if "--model" not in arguments:
        inherited.pop("OMP_NUM_THREADS", None)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            env={**inherited, **(environment or {})},
            start_new_session=True,
        )
    return Server(process, folder, port)


@contextmanager
def serving(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, module: str = "actors.cli"
) -> Iterator[Server]:
    """A server that is ready. At the end it is told to leave, and must do so with exit code 0 and no defect logged.

    At once, since nobody is there any more: some are started with a grace time far longer than is waited here.
    """
    server = start(folder, *arguments, environment=environment, module=module)
    try:
        server.wait_until_ready()
        yield server
        if server.process.poll() is None:
            server.terminate()
            assert server.process.wait(LEAVE_S) == 0, server.errors
        said = [line for line in server.log if line["event"].startswith("audit.") or line["level"] == "critical"]
        assert said == [], "the server found a defect in itself"
        assert "Traceback" not in server.errors
    finally:
        server.kill()


def run_to_its_end(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, port: int = 0
) -> tuple[int, str, str]:
    """A server that cannot serve: its exit code, standard output and standard error."""
    server = start(folder, *arguments, environment=environment, port=port)
    try:
        code = server.process.wait(START_S)
    finally:
        server.process.kill()
        server.process.wait()
    return code, server.output, server.errors


@contextmanager
def killed_at_last(folder: Path, *arguments: str) -> Iterator[Server]:
    """A server that comes to harm: it need not leave in order."""
    server = start(folder, *arguments)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.kill()
