"""A trace: every message between actors as a line of JSON, for whoever asks why an answer was slow.

Knows the shape of a line and of the files. Knows neither actors nor what a line means.

A trace is one file, or several: when `FILE` has grown to its size it becomes `FILE.1`, what was that `FILE.2`, and so
on; a higher number is older. Every file begins with a line of the type `BEGUN`, and so does every run in a file that
was there: from there on connections and steps are counted anew. One of the type `LOST` stands where messages could not
be written. The last line of a file may be cut off, as its writer may be at work, or have died; so may one before a
`BEGUN` or a `LOST`.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from protocol.kinds import RequestId

FORMAT = 1
"""Goes up when a field changes its meaning or goes; new fields may come."""
BEGUN = "trace.begun"
LOST = "trace.lost"


class TraceLine(Struct, frozen=True, gc=False, omit_defaults=True, rename={"from_": "from"}):
    """One message. What it does not say is left out.

    `waited_s` and `handled_s` are durations in seconds: it was sent at `time`, taken from its mailbox at
    `time + waited_s`, and its handler returned at `time + waited_s + handled_s`. Lines stand in the order in which
    they were handled. The fields from `lane_s` on are what the message says, counted: no line holds a reader's text.
    """

    type: str
    """The message's name in `protocol/messages.py`, `BEGUN` or `LOST`."""
    time: float
    """Unix time in seconds, when it was sent; of one that replaced another in its lane, when the older one was."""
    from_: str = ""
    """The actor that sent it (`scheduler`, `connection 12`), or what else is not one: `socket`, `writer` (a
    connection's), `worker`, `thread`, `timer`, `engine`."""
    to: str = ""
    lane: str = ""
    """Of the mailbox it waited in: `data`, `control` or `slots`."""
    waited_s: float = 0.0
    handled_s: float | None = None
    """None: its receiver takes messages one by one and does not say when it is through with one."""
    request: RequestId | None = None
    connection: int | None = None

    # --- what it says
    lane_s: float | None = None
    """Of an `Ask`: from receiving its frame to its turn in its lane on the socket."""
    step: int | None = None
    chunks: tuple[tuple[RequestId, int, int, bool], ...] = ()
    """Of a `Step`: each request, the position from which on it is computed, how many tokens (a decode row has 1), and
    whether its next token is sampled: not while more of its prompt is to be read."""
    requests: tuple[RequestId, ...] = ()
    """Of `Tokens`: whose."""
    took_s: float | None = None
    """Of a `StepDone`: time on the device."""
    tokens: int | None = None
    """Of `Ask`'s successors the prompt's length, of `PromptRead` how much of it, of `Text` how many tokens it holds."""
    max_output_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    chars: int | None = None
    """Of `Text`."""
    reason: str | None = None
    """A finish reason, or an error's code."""
    code: str | None = None
    """Of an `Ended` that failed: its error's."""
    position: int | None = None
    """In the waiting room, from 1."""
    paused: bool | None = None
    service_tier: str | None = None
    ttft_target_s: float | None = None
    itl_target_s: float | None = None
    queued_s: float | None = None
    prefill_s: float | None = None
    preemptions: int | None = None
    coefficients: tuple[float, ...] = ()
    """Of `CostsLearned`: what a step costs, in the order of `actors/scheduling/costs.py`."""
    message: str | None = None
    """Of what the worker says of itself; of `BEGUN`, which rota wrote it."""
    format: int | None = None
    """Of `BEGUN`."""
    lost: int | None = None
    """Of `LOST`: how many messages."""


lines = msgspec.json.Decoder(TraceLine)
"""Of one line, without its end."""


def files_of(file: Path) -> list[Path]:
    """The files of the trace that are there, the oldest first. Those beside `file` are its rotated ones."""
    older: list[Path] = []
    while (rotated := numbered(file, len(older) + 1)).exists():
        older.append(rotated)
    return [*reversed(older), *([file] if file.exists() else [])]


def numbered(file: Path, number: int) -> Path:
    """The rotated file of that number: 1 is the newest."""
    return file.with_name(f"{file.name}.{number}")
