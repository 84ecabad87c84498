"""A trace in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Knows that format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Three processes:
`actors` with a track for each actor and a slice for each message it handled, `requests` with a track for each request,
`device` with the steps and what was in them as counters. Arrows lead from the slice in which a message about a request
was sent to the one in which it was handled.

Times are microseconds from the beginning of the trace. Slices on a track never overlap: where clocks are too coarse, a
slice begins when the one before it has ended.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, TextIO

import msgspec

from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.timeline import remarkable
from loadgen.tracing.words import Names
from protocol.trace import BEGUN, LOST, TraceLine

ACTORS, REQUESTS, DEVICE = 1, 2, 3
_ORDER = ("tokeniser", "admission", "scheduler", "executor", "detokeniser", "reaper", "gallery", "engine")
_FIRST = 10
"""Numbers of tracks begin here: one with its process's number would be shown as its main thread."""
_RECENT = 64
"""Slices of an actor that an arrow may still start from."""
_LEAST_US = 0.001
"""Times are written in nanoseconds; a slice of none would hold no arrow."""

Event = dict[str, Any]


class Writer:
    """Writes events as they come. First `message` for each line of the trace, in order; then `finish`."""

    def __init__(self, out: TextIO, began_at: float) -> None:
        self._out = out
        self._began = began_at
        self._encode = msgspec.json.Encoder().encode
        self._first = True
        self._threads: dict[str, int] = {}
        self._last_end: dict[tuple[int, int], float] = {}
        self._recent: dict[str, tuple[list[float], list[float]]] = {}
        self._flows = 0
        out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for pid, name in ((ACTORS, "actors"), (REQUESTS, "requests"), (DEVICE, "device")):
            self._put({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
            self._put({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})

    # --- actors ---

    def message(self, line: TraceLine) -> None:
        """One line of the trace."""
        if line.type in (BEGUN, LOST) or not line.to:
            return
        tid = self._thread(line.to)
        taken = self._us(line.time + line.waited_s)
        args: Event = {"from": line.from_, "waited_ms": round(line.waited_s * 1e3, 4), "lane": line.lane}
        if line.request is not None:
            args["request"] = line.request
        if line.handled_s is None:
            instant = max(taken, self._last_end.get((ACTORS, tid), taken))
            self._put(
                {
                    "ph": "i",
                    "name": line.type,
                    "cat": "message",
                    "pid": ACTORS,
                    "tid": tid,
                    "ts": instant,
                    "s": "t",
                    "args": args,
                }
            )
            return
        began, ended = self._slice(ACTORS, tid, line.type, "message", taken, line.handled_s * 1e6, args)
        begins, ends = self._recent.setdefault(line.to, ([], []))
        begins.append(began)
        ends.append(ended)
        if len(begins) > 2 * _RECENT:
            del begins[:_RECENT], ends[:_RECENT]
        if line.request is not None:
            self._arrow(line, tid, began)

    def _arrow(self, line: TraceLine, tid: int, received: float) -> None:
        """Only where the slice that sent it is known, and not out of order: else it would begin nowhere."""
        begins, ends = self._recent.get(line.from_, ([], []))
        sent = self._us(line.time)
        index = bisect_right(begins, sent + 1.0) - 1
        if index < 0 or sent > ends[index] + 1.0 or line.from_ == line.to:
            return
        sent = min(max(sent, begins[index]), ends[index])
        if sent > received:
            return
        self._flows += 1
        about: Event = {"name": line.type, "cat": "flow", "id": self._flows, "pid": ACTORS}
        self._put({"ph": "s", **about, "tid": self._threads[line.from_], "ts": sent})
        self._put({"ph": "f", "bp": "e", **about, "tid": tid, "ts": received})

    def _thread(self, actor: str) -> int:
        tid = self._threads.get(actor)
        if tid is None:
            tid = self._threads[actor] = _FIRST + len(self._threads)
            order = _ORDER.index(actor) if actor in _ORDER else len(_ORDER) + tid
            self._name(ACTORS, tid, actor, order)
        return tid

    # --- requests and the device ---

    def finish(self, lives: Lives, names: Names) -> None:
        """The requests, the device, and the end of the file."""
        for tid, life in enumerate(sorted(lives.all.values(), key=lambda life: life.began_at), _FIRST):
            self._name(REQUESTS, tid, names.of(life.request), tid)
            self._life(tid, life, lives)
        self._device(lives)
        self._out.write("\n]}\n")

    def _life(self, tid: int, life: Life, lives: Lives) -> None:
        ended = max(life.over_at or lives.last_at, life.began_at)
        args: Event = {
            "request": life.request,
            "ended as": life.reason or life.state,
            "input tokens": life.input_tokens,
            "output tokens": life.tokens if life.output_tokens is None else life.output_tokens,
        }
        whole = self._nested(REQUESTS, tid, "request", life.request, life.began_at, ended, None, args)
        if whole is None:
            return
        for name, began, to in _phases(life, ended):
            phase = self._nested(REQUESTS, tid, "phase", name, began, to, whole, {})
            if phase is None:
                continue
            cursor = phase
            for what, since, until, about in _within(name, life):
                inner = self._nested(REQUESTS, tid, what, what, since, until, cursor, about)
                if inner is not None:
                    cursor = (inner[1], phase[1])
            whole = (phase[1], whole[1])

    def _nested(
        self,
        pid: int,
        tid: int,
        category: str,
        name: str,
        began: float,
        ended: float,
        within: tuple[float, float] | None,
        args: Event,
    ) -> tuple[float, float] | None:
        """A slice, cut to `within`; its beginning and end in microseconds, or None when nothing is left of it."""
        since, to = self._us(began), self._us(ended)
        if within is not None:
            since, to = max(since, within[0]), min(to, within[1])
        if to < since or (within is not None and to <= since):
            return None
        to = max(to, since + _LEAST_US) if within is None else to
        self._put(
            {
                "ph": "X",
                "name": name,
                "cat": category,
                "pid": pid,
                "tid": tid,
                "ts": since,
                "dur": round(to - since, 3),
                "args": args,
            }
        )
        return since, round(since + round(to - since, 3), 3)

    def _device(self, lives: Lives) -> None:
        self._name(DEVICE, _FIRST, "steps", 1)
        running = sorted(
            [(life.first_step_at, 1) for life in lives.all.values() if life.first_step_at is not None]
            + [(life.over_at, -1) for life in lives.all.values() if life.first_step_at is not None and life.over_at]
        )
        for step in lives.device.steps:
            rows = sum(1 for chunk in step.chunks if chunk[2] == 1)
            tokens = sum(chunk[2] for chunk in step.chunks)
            shares = zip(step.chunks, step.shares(), strict=True)
            most = sorted(shares, key=lambda each: -each[1])[:4]
            args: Event = {f"{chunk[0]} ({chunk[2]} tokens)": f"{part:.0%}" for chunk, part in most}
            name = f"step {step.number}"
            began, ended = self._slice(DEVICE, _FIRST, name, "step", self._us(step.began), step.took_s * 1e6, args)
            for counter, value, after in (("rows", rows, 0), ("tokens", tokens, 0)):
                self._counter(counter, began, value)
                self._counter(counter, ended, after)
        alive = 0
        for at, change in running:
            alive += change
            self._counter("running requests", self._us(at), alive)

    # --- events ---

    def _counter(self, name: str, ts: float, value: int) -> None:
        self._put({"ph": "C", "name": name, "pid": DEVICE, "tid": 0, "ts": ts, "args": {name: value}})

    def _slice(
        self, pid: int, tid: int, name: str, category: str, ts: float, took_us: float, args: Event
    ) -> tuple[float, float]:
        ended = self._last_end.get((pid, tid), 0.0)
        to = round(ts + took_us, 3)
        ts = max(ts, ended)
        dur = round(max(_LEAST_US, to - ts), 3)
        to = round(ts + dur, 3)
        self._last_end[pid, tid] = to
        self._put(
            {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )
        return ts, to

    def _name(self, pid: int, tid: int, name: str, order: int) -> None:
        about: Event = {"ph": "M", "pid": pid, "tid": tid}
        self._put({**about, "name": "thread_name", "args": {"name": name}})
        self._put({**about, "name": "thread_sort_index", "args": {"sort_index": order}})

    def _put(self, event: Event) -> None:
        self._out.write(("" if self._first else ",\n") + self._encode(event).decode())
        self._first = False

    def _us(self, at: float) -> float:
        return round(max(0.0, (at - self._began) * 1e6), 3)


def _phases(life: Life, ended: float) -> Iterator[tuple[str, float, float]]:
    """In lane, tokenising, queued, prefilling, decoding: each until the next begins."""
    points = [
        ("in lane", life.received_at),
        ("tokenising", life.asked_at),
        ("queued", life.tokenised_at or life.let_in_at),
        ("prefilling", life.first_step_at),
        ("decoding", life.first_token_at),
    ]
    known = [(name, at) for name, at in points if at is not None]
    for (name, at), (_, to) in zip(known, [*known[1:], ("", ended)], strict=True):
        yield name, at, to


def _within(phase: str, life: Life) -> Iterator[tuple[str, float, float, Event]]:
    if phase == "prefilling":
        for step, start, tokens in life.prefill_steps():
            about: Event = {"step": step.number, "from": start, "tokens": tokens, "share": step.share_of(life.request)}
            yield "chunk", step.began, step.ended, about
    elif phase == "decoding":
        for since, to in remarkable(life, life.gaps()):
            yield "gap", since, to, {"ms": round((to - since) * 1e3, 3)}
