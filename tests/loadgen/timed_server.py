"""A server with known delays, in a process of its own, that writes down when it truly sent what.

    python -m tests.loadgen.timed_server --api responses --record sent.json [--stall-at 1.5 --stall-s 1]

Prints its URL, serves until SIGTERM, and then writes a `Record`. Knows how long each answer takes (`plan`, by the
number of the request alone), the shapes of both APIs' events, and the clock. Knows nothing of the client.

What is sent is sent at a deadline on this process's clock, which is the client's too (`time.perf_counter` is the
machine's monotonic clock): it sleeps until shortly before and then looks at nothing but the clock. Where another
process holds the processor it is late all the same, so a comparison is made with the times that were recorded, not
with those that were planned.
"""

import argparse
import asyncio
import heapq
import itertools
import json
import random
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.loadgen import chat_server
from tests.loadgen.scripted_server import delta, refusal, response, usage

SPIN_S = 0.0004
"""So long before a deadline nothing is done any more but looking at the clock."""
FIRST_SERIAL = 1000
"""A request's number is told as the length of its prompt: FIRST_SERIAL + number. So it is known from either side."""
REFUSED = "server_overloaded"

Kind = Literal["quick", "late_first", "pauses", "refused"]


class Plan(msgspec.Struct, frozen=True):
    """How one answer comes: the first text so long after the request, and each of the others after the one before."""

    kind: Kind
    first_s: float
    gaps_s: tuple[float, ...] = ()


def plan(number: int) -> Plan:
    """Of the request with that number, in the order of their coming.

    Quick ones have their first text after 100 to 180 ms, so that a client which all at once has many sockets to open,
    after a stall, is through with it, and gaps below 45 ms; the late ones wait 400 ms more, and those that pause do so
    for 250 ms and more.
    """
    chance = random.Random(number)
    first_s = chance.uniform(0.1, 0.18)
    gaps_s = [chance.uniform(0.015, 0.045) for _ in range(chance.randint(5, 10))]
    match number % 10:
        case 3:
            return Plan("refused", first_s)
        case 5 | 8:
            return Plan("late_first", first_s + 0.4, tuple(gaps_s))
        case 1 | 6:
            gaps_s[len(gaps_s) // 2] = chance.uniform(0.25, 0.35)
            return Plan("pauses", first_s, tuple(gaps_s))
        case _:
            return Plan("quick", first_s, tuple(gaps_s))


class Sent(msgspec.Struct):
    """What was truly done for one request. Times are of `time.perf_counter`."""

    number: int
    kind: Kind
    received_s: float
    texts_s: list[float] = []
    ended_s: float | None = None

    @property
    def serial(self) -> int:
        return FIRST_SERIAL + self.number

    @property
    def ttft_ms(self) -> float:
        return (self.texts_s[0] - self.received_s) * 1e3


class Record(msgspec.Struct):
    requests: list[Sent]
    late_worst_s: float
    """How long after its deadline something was sent, at worst, the stall not counted."""
    stall_s: tuple[float, float] | None = None
    """From when to when the server stood still."""
    starved_ms: float = 0.0
    """As `starved_ms` says of this process."""


def starved_ms(pid: int | Literal["self"]) -> float | None:
    """How long a process was kept waiting for a processor, on average, each time it had something to do.

    Linux counts that. None where nobody does, and of a process that has ended.
    """
    try:
        _, waited_ns, times = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
    except (OSError, ValueError):
        return None
    return waited_ns / 1e6 / times if times else None


class Timetable:
    """Does things at deadlines, one after another, as exactly as the machine lets it."""

    def __init__(self) -> None:
        self.late_worst_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._sooner = asyncio.Event()

    def at(self, due_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (due_s, next(self._order), act))
        self._sooner.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._sooner.clear()
            wait_s = self._due[0][0] - SPIN_S - time.perf_counter() if self._due else None
            if wait_s is None or wait_s > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._sooner.wait(), wait_s)
                continue
            due_s, _, act = heapq.heappop(self._due)
            while (now_s := time.perf_counter()) < due_s:
                pass
            self.late_worst_s = max(self.late_worst_s, now_s - due_s)
            act()
            await asyncio.sleep(0)  # requests are read meanwhile


Send = Callable[[str, Sent], None]
"""Sends one thing of an answer at once: `begin`, `text`, `end` or `refuse`."""


class TimedServer:
    def __init__(self, stall_at_s: float | None, stall_s: float) -> None:
        self.timetable = Timetable()
        self.record = Record([], 0.0)
        self._stall_at_s, self._stall_s = stall_at_s, stall_s

    def answer(self, received_s: float, send: Send) -> asyncio.Future[None]:
        """Answer the request that has just come, as planned. Done when the answer is."""
        number = len(self.record.requests)
        planned = plan(number)
        sent = Sent(number, planned.kind, received_s)
        self.record.requests.append(sent)
        if number == 0 and self._stall_at_s is not None:
            self.timetable.at(received_s + self._stall_at_s, self._stall)
        ended = asyncio.get_running_loop().create_future()
        due_s = received_s + planned.first_s

        def end() -> None:
            sent.ended_s = time.perf_counter()
            send("refuse" if planned.kind == "refused" else "end", sent)
            ended.set_result(None)

        if planned.kind == "refused":
            self.timetable.at(due_s, end)
            return ended
        send("begin", sent)

        def text() -> None:
            sent.texts_s.append(time.perf_counter())
            send("text", sent)

        self.timetable.at(due_s, text)
        for gap_s in planned.gaps_s:
            due_s += gap_s
            self.timetable.at(due_s, text)
        self.timetable.at(due_s + 0.005, end)
        return ended

    def _stall(self) -> None:
        """Stand still: nothing is read, sent or accepted."""
        began_s = time.perf_counter()
        late_s = self.timetable.late_worst_s
        time.sleep(self._stall_s)
        self.record.stall_s = (began_s, time.perf_counter())
        self.record.late_worst_s = late_s

    # -- the Responses API

    async def on_socket(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            async for _ in connection:
                received_s = time.perf_counter()

                def send(what: str, sent: Sent) -> None:
                    for event in _events(what, sent):
                        # Written at once: nothing is waited for while the socket takes it, and it does.
                        connection.protocol.send_text(json.dumps(event).encode())
                        connection.send_data()

                await self.answer(received_s, send)

    # -- chat completions

    async def on_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = chat_server.Answer(reader, writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(line for line in head.lower().split("\r\n") if line.startswith("content-length:"))
                await reader.readexactly(int(length.partition(":")[2]))
                await self.answer(time.perf_counter(), lambda what, sent: _write(answer, what, sent))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closed it
        finally:
            writer.close()


def _rota(sent: Sent) -> dict[str, Any]:
    """The truth about an answer that has ended."""
    return {
        "finish_reason": "length",
        "queue_ms": 0.0,
        "prefill_ms": sent.ttft_ms,
        "ttft_ms": sent.ttft_ms,
        "preemptions": 0,
        "paused_ms": 0.0,
        "delivered_chars": len(sent.texts_s),
    }


def _events(what: str, sent: Sent) -> list[dict[str, Any]]:
    match what:
        case "begin":
            return [{"type": "response.created", "sequence_number": 0, "response": response("in_progress")}]
        case "text":
            return [delta("x")]
        case "refuse":
            return [refusal(REFUSED, _number(sent), 503)]
        case _:
            ended = response(
                "incomplete",
                incomplete_details={"reason": "max_output_tokens"},
                usage=usage(len(sent.texts_s), sent.serial),
                rota=_rota(sent),
            )
            return [{"type": "response.incomplete", "sequence_number": 9, "response": ended}]


def _write(answer: chat_server.Answer, what: str, sent: Sent) -> None:
    match what:
        case "begin":
            answer.begin()
        case "text":
            answer.text("x")
        case "refuse":
            answer.plain(503, {"error": {"message": _number(sent), "type": REFUSED, "code": 503}})
        case _:
            answer.finish("length", {**chat_server.usage(len(sent.texts_s)), "prompt_tokens": sent.serial})


def _number(sent: Sent) -> str:
    return f"Number {sent.number} is refused."


async def _serve(api: str, stall_at_s: float | None, stall_s: float) -> Record:
    """Until SIGTERM."""
    timed = TimedServer(stall_at_s, stall_s)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    timetable = asyncio.create_task(timed.timetable.run())
    if api == "responses":
        listening = serve(timed.on_socket, "127.0.0.1", 0, compression=None, ping_interval=None, backlog=1024)
        async with listening as server:
            port = next(iter(server.sockets)).getsockname()[1]
            print(f"ws://127.0.0.1:{port}/v1/responses", flush=True)
            await told.wait()
    else:
        async with await asyncio.start_server(timed.on_stream, "127.0.0.1", 0, backlog=1024) as streams:
            print(f"http://127.0.0.1:{streams.sockets[0].getsockname()[1]}/v1/chat/completions", flush=True)
            await told.wait()
    timetable.cancel()
    if timed.record.stall_s is None:
        timed.record.late_worst_s = timed.timetable.late_worst_s
    timed.record.starved_ms = starved_ms("self") or 0.0
    return timed.record


def _exact_loop() -> asyncio.AbstractEventLoop:
    """It sleeps as long as it is told. On epoll an event loop sleeps whole milliseconds, rounded up."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", choices=("responses", "chat"), required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--stall-at", type=float)
    parser.add_argument("--stall-s", type=float, default=1.0)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=_exact_loop) as runner:
        record = runner.run(_serve(args.api, args.stall_at, args.stall_s))
    args.record.write_bytes(msgspec.json.encode(record))


if __name__ == "__main__":
    main()
