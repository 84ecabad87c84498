"""The whole engine with a tracer, in virtual time: one request's way through it, as its trace tells it."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
from structlog.testing import capture_logs

from actors.reaper import Patience
from actors.trace_lines import line_of
from actors.tracing import Tracer
from actors.vocabulary import Vocabulary
from protocol.trace import TraceLine
from tests.actors.engine_house import CONFIG, LONGEST_S, POISON, House
from tests.simulation.loop import SimulatedLoop

SECRET = "zebra"


def traced(scene: Callable[[House], Coroutine[Any, Any, None]], vocabulary: Vocabulary) -> list[TraceLine]:
    """All that was handled from the first actor to the last."""
    loop = SimulatedLoop(Random(1))
    tracer = Tracer(loop.time, lambda: 1_000.0 + loop.time())
    house = House(loop, vocabulary, Patience(), CONFIG, tracer)

    async def live() -> None:
        house.running = asyncio.create_task(house.engine.run(house.announced.append), name="engine")
        await house.ready()
        await scene(house)
        house.engine.drain()
        house.engine.drain()
        await house.running
        await asyncio.gather(*house.serving)

    loop.run(asyncio.wait_for(live(), LONGEST_S))
    return [line_of(record, tracer.unix_s) for record in tracer.records]


def test_a_requests_way_is_told_from_its_frame_to_its_end(vocabulary: Vocabulary) -> None:
    async def scene(house: House) -> None:
        socket = house.open()
        house.ask(socket, max_output_tokens=3, input=SECRET, metadata={"who": SECRET})
        await house.answer(socket)

    lines = traced(scene, vocabulary)
    first: dict[tuple[str, str], TraceLine] = {}
    for line in lines:
        first.setdefault((line.type, line.to), line)
    ask = first["Ask", "tokeniser"]
    request = ask.request
    assert request is not None
    way = [
        ("FrameReceived", "socket", "connection 1", "data"),
        ("Ask", "connection 1", "tokeniser", "data"),
        ("OpenStream", "tokeniser", "detokeniser", "control"),
        ("Enqueue", "tokeniser", "admission", "data"),
        ("Accepted", "admission", "connection 1", "control"),
        ("Enqueue", "admission", "scheduler", "data"),
        ("Started", "scheduler", "connection 1", "control"),
        ("Step", "scheduler", "executor", "data"),
        ("StepDone", "worker", "executor", "control"),
        ("StepDone", "executor", "scheduler", "control"),
        ("Tokens", "scheduler", "detokeniser", "data"),
        ("Text", "detokeniser", "connection 1", "slots"),
        ("Ended", "scheduler", "connection 1", "control"),
        ("Released", "scheduler", "reaper", "control"),
    ]
    for kind, sender, to, lane in way:
        line = first[kind, to]
        assert (line.from_, line.lane) == (sender, lane), line
    times = [first[kind, to].time for kind, _, to, _ in way[:6]]
    assert times == sorted(times)
    assert all(1_000.0 <= time < 1_000.0 + LONGEST_S for time in times)
    prompt = first["Enqueue", "admission"].tokens
    chunks = [chunk for line in lines if line.type == "Step" for chunk in line.chunks if chunk[0] == request]
    assert chunks[0][1] == 0
    assert sum(length for _, start, length, _ in chunks if start < (prompt or 0)) == prompt
    assert [sampled for *_, sampled in chunks][-3:] == [True] * 3
    ended = first["Ended", "connection 1"]
    assert (ended.request, ended.connection, ended.reason, ended.output_tokens) == (request, 1, "length", 3)
    texts = [line for line in lines if line.type == "Text"]
    assert sum(line.tokens or 0 for line in texts) == 3
    assert SECRET.encode() not in msgspec.json.encode(lines)


def test_senders_are_right_after_the_worker_was_started_anew(vocabulary: Vocabulary) -> None:
    async def scene(house: House) -> None:
        socket = house.open()
        house.ask(socket)
        await house.running_on(socket)
        house.engine.scheduler.tell(POISON)
        await house.answer(socket)
        await house.ready()
        house.ask(socket)
        await house.whole_answer(socket, 1)

    with capture_logs():
        lines = traced(scene, vocabulary)
    (poison,) = (number for number, line in enumerate(lines) if line.type == "Drained" and line.to == "scheduler")
    assert lines[poison].handled_s is not None, "its handler raised"
    after = lines[poison:]
    assert {(line.from_, line.to) for line in after if line.type == "WorkerLost"} >= {
        ("engine", "reaper"),
        ("engine", "connection 1"),
    }
    senders: dict[tuple[str, str], set[str]] = {}
    for line in after:
        senders.setdefault((line.type, line.to), set()).add(line.from_)
    assert senders["Step", "executor"] == {"scheduler"}
    assert senders["StepDone", "scheduler"] == {"executor"}
    assert senders["Enqueue", "scheduler"] == {"admission"}
    assert senders["ModelReady", "engine"] == {"executor"}
    assert senders["ModelReady", "tokeniser"] == {"engine"}
    assert len({line.request for line in lines if line.type == "Ask"}) == 2
