"""What `--perfetto` writes, against the Trace Event Format and against what its viewers ask of it.

The schema is that of the format's document, "Trace Event Format": one shape for each phase (`ph`) that is used.
"""

import io
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec import Struct

from loadgen.tracing.lives import Lives
from loadgen.tracing.perfetto import ACTORS, DEVICE, REQUESTS, Writer
from loadgen.tracing.words import Names
from protocol.trace import TraceLine
from tests.loadgen.tracing.scenes import Scene

A, B = "resp_aaaa1", "resp_bbbb1"


class Event(Struct, frozen=True, tag_field="ph", forbid_unknown_fields=True):
    name: str
    pid: int
    tid: int


class Complete(Event, frozen=True, tag="X"):
    ts: float
    dur: float
    cat: str = ""
    args: dict[str, Any] = {}


class Instant(Event, frozen=True, tag="i"):
    ts: float
    s: Literal["g", "p", "t"] = "t"
    cat: str = ""
    args: dict[str, Any] = {}


class Counter(Event, frozen=True, tag="C"):
    ts: float
    args: dict[str, float]


class FlowStart(Event, frozen=True, tag="s"):
    ts: float
    id: int
    cat: str


class FlowEnd(Event, frozen=True, tag="f"):
    ts: float
    id: int
    cat: str
    bp: Literal["e"]
    """To the slice that encloses it, not to the next one."""


class Named(Struct, frozen=True, forbid_unknown_fields=True):
    name: str | None = None
    sort_index: int | None = None


class Metadata(Event, frozen=True, tag="M"):
    args: Named


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    traceEvents: list[Complete | Instant | Counter | FlowStart | FlowEnd | Metadata]
    displayTimeUnit: Literal["ms", "ns"]


METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def written(lines: list[TraceLine]) -> Document:
    lives = Lives()
    for line in lines:
        lives.feed(line)
    lives.finish()
    out = io.StringIO()
    writer = Writer(out, lives.began_at)
    for line in lines:
        writer.message(line)
    writer.finish(lives, Names(lives.all))
    return check(out.getvalue())


def check(text: str) -> Document:
    """Valid, and fit to be drawn: nested slices, arrows that begin and end in one, names for every track."""
    document = msgspec.json.decode(text, type=Document)
    tracks: dict[tuple[int, int], list[Complete]] = defaultdict(list)
    starts: dict[int, FlowStart] = {}
    ends: dict[int, FlowEnd] = {}
    named: set[tuple[int, int]] = set()
    for event in document.traceEvents:
        match event:
            case Complete():
                assert event.ts >= 0
                assert event.dur >= 0
                tracks[event.pid, event.tid].append(event)
            case FlowStart():
                assert event.id not in starts
                starts[event.id] = event
            case FlowEnd():
                assert event.id not in ends
                ends[event.id] = event
            case Metadata():
                assert event.name in METADATA
                if event.name == "thread_name":
                    named.add((event.pid, event.tid))
            case _:
                assert event.ts >= 0
    for slices in tracks.values():
        nested(slices)
    assert tracks.keys() <= named
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        assert start.ts <= ends[number].ts
        for event in (start, ends[number]):
            inside = [one for one in tracks[event.pid, event.tid] if one.ts <= event.ts <= one.ts + one.dur + 1e-6]
            assert inside, f"arrow {number} {event} hangs in the air"
    return document


def nested(slices: list[Complete]) -> None:
    """Each lies within the one it begins in."""
    assert [one.ts for one in slices] == sorted(one.ts for one in slices), "in order of time, track by track"
    open_until: list[float] = []
    for one in sorted(slices, key=lambda one: (one.ts, -one.dur)):
        while open_until and open_until[-1] <= one.ts + 1e-6:
            open_until.pop()
        end = one.ts + one.dur
        assert not open_until or end <= open_until[-1] + 1e-3, f"{one} reaches out of what it is in"
        open_until.append(end)


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.ask(A, 0.0, tokens=100, connection=1, itl_target_s=0.05)
    at = scene.decode(scene.prefill(A, 0.01, 100), 20, A)
    scene.ask(B, at - 0.2, tokens=300, connection=2)
    at = scene.prefill(B, at, 300, beside=(A,))
    at = scene.decode(at, 10, A, B)
    scene.end(A, at)
    scene.end(B, at)
    return scene


def test_what_is_written_is_valid_and_nested(scene: Scene) -> None:
    document = written(scene.lines)
    slices = [event for event in document.traceEvents if isinstance(event, Complete)]
    assert {event.pid for event in slices} == {ACTORS, REQUESTS, DEVICE}
    first = next(event for event in slices if event.args.get("request") == A and event.pid == REQUESTS)
    assert [event.name for event in slices if event.tid == first.tid and event.cat == "phase"] == [
        "in lane",
        "tokenising",
        "queued",
        "prefilling",
        "decoding",
    ]
    assert sum(event.cat == "chunk" for event in slices) == 4
    assert sum(event.cat == "gap" for event in slices) == 3
    assert sum(event.pid == DEVICE for event in slices) == 34
    tracks = {(event.pid, event.args.name) for event in document.traceEvents if isinstance(event, Metadata)}
    assert {(ACTORS, "connection 1"), (ACTORS, "scheduler"), (REQUESTS, "resp_aaaa"), (DEVICE, "steps")} <= tracks


def test_times_are_microseconds_from_the_beginning(scene: Scene) -> None:
    steps = [e for e in written(scene.lines).traceEvents if isinstance(e, Complete) and e.pid == DEVICE]
    assert steps[0].ts == pytest.approx(10_000, abs=1)
    assert steps[0].dur == pytest.approx(102_000, abs=1)


def test_every_message_about_a_request_is_an_arrow_from_its_sender(scene: Scene) -> None:
    document = written(scene.lines)
    threads = {
        event.tid: event.args.name
        for event in document.traceEvents
        if isinstance(event, Metadata) and event.pid == ACTORS and event.name == "thread_name"
    }
    starts = {event.id: event for event in document.traceEvents if isinstance(event, FlowStart)}
    arrows = {
        (threads[starts[event.id].tid], event.name, threads[event.tid])
        for event in document.traceEvents
        if isinstance(event, FlowEnd)
    }
    assert ("scheduler", "Ended", "connection 1") in arrows
    assert ("detokeniser", "Text", "connection 1") in arrows


def test_counters_say_what_was_on_the_device(scene: Scene) -> None:
    counters = [event for event in written(scene.lines).traceEvents if isinstance(event, Counter)]
    assert {event.name for event in counters} == {"rows", "tokens", "running requests"}
    assert max(event.args["running requests"] for event in counters if event.name == "running requests") == 2
    assert max(event.args["tokens"] for event in counters if event.name == "tokens") == 101


def test_clocks_too_coarse_for_a_slice_do_not_break_the_nesting() -> None:
    scene = Scene()
    for number in range(50):
        scene.say("Tick", "timer", "reaper", 0.001 + number * 1e-7, handled_s=1e-6)
    written(scene.lines)


def test_a_trace_without_its_beginning_is_written_too(scene: Scene) -> None:
    written([line for line in scene.lines if line.time > scene.lines[0].time + 0.25])


def test_an_empty_one_is_valid(tmp_path: Path) -> None:
    assert written(Scene().lines[:1]).traceEvents
