"""What `/turns` is told: whose turn it was on the device, step by step, as a page can draw it.

Knows the frames that a watcher's socket carries. Knows neither actors nor pixels. Frames hold no reader's text and no
token, and the id of a response only where the watcher's own key asked for it: others' requests are numbers.

`GET /v1/turns` with an upgrade. The server sends a `Hello`, then a `Frame` some times a second while anything happens
(and one a second while nothing does), as text frames of JSON, one object each with its `type`. The client sends
nothing: whoever does is closed with 1008. Times are Unix seconds, durations milliseconds (`_ms`).

A frame holds at most 40 steps, and those at most 512 parts in all: of more, the longest steps are kept. A step holds at
most 64 parts: of more, the smallest of each kind are one part of request 0. A watcher that is too slow for a frame gets
none of its steps; what has changed of lives and pool is in the next one that it gets.
"""

from typing import Literal

from msgspec import Struct

from protocol.kinds import RequestId

LifeState = Literal["queued", "prefilling", "decoding", "preempted", "finished", "refused"]
"""In the words of a request's life. One that was accepted and waits, in the waiting room or at the scheduler, is
`queued`."""
Kind = Literal["prefill", "decode"]


class Part(Struct, frozen=True, array_like=True):
    """One request's share of a step."""

    request: int
    """Its number: counted from 1 as requests are first seen, the same in every frame of this socket. 0: requests that
    are not told apart, several small ones together or one of which nothing else is known."""
    kind: Kind
    start: int
    """The position of its first token in the sequence. 0 for several together."""
    tokens: int
    share_ms: float
    """Of the step's time, by what the server has learned that such work costs. The parts add up to the step."""


class TurnStep(Struct, frozen=True):
    """A step that the device has run."""

    step: int
    """Counted from 1 by this worker; a new worker begins anew."""
    at: float
    """When it began."""
    took_ms: float
    parts: tuple[Part, ...]


class Life(Struct, frozen=True, omit_defaults=True):
    """All that is known of a request; sent again whenever something of it has changed. What is unknown is left out."""

    request: int
    state: LifeState
    received_at: float
    id: RequestId | None = None
    """The response's id, if the watcher's own key asked for it. On a server without keys everybody's, unless it listens
    beyond loopback: then nobody's, since whoever knows an id there may continue its conversation."""
    input_tokens: int | None = None
    max_output_tokens: int | None = None
    prefilled_tokens: int = 0
    """Of its prompt, read or found in the cache so far."""
    cached_tokens: int = 0
    output_tokens: int = 0
    started_at: float | None = None
    """When its first step began."""
    first_token_at: float | None = None
    ended_at: float | None = None
    ttft_target_ms: float | None = None
    itl_target_ms: float | None = None
    worst_gap_ms: float | None = None
    """Between two tokens, so far."""
    position: int | None = None
    """In the waiting room, from 1."""
    estimated_wait_ms: float | None = None
    paused: bool = False
    """Its reader is behind: it keeps its blocks and gets no time."""
    preemptions: int = 0
    reason: str | None = None
    """Once it has ended: its finish reason, or of a refused one the error's code. None: its end was not heard."""
    first_seen_running: bool = False
    """It was there before anybody watched: times before that are not known."""


class Pool(Struct, frozen=True):
    """Where the KV blocks are. `free + cached + used == total`."""

    free: int
    cached: int
    used: int
    total: int
    held: tuple[tuple[int, int], ...] = ()
    """Each request that holds blocks, and how many. Shared blocks count for each of them, so these may add up to
    more than `used`."""


class Hello(Struct, frozen=True, tag="turns.hello"):
    """The first frame."""

    at: float
    model: str
    policy: str
    device: str
    kernels: str
    max_context: int
    blocks: int
    block_tokens: int
    max_running: int


class Frame(Struct, frozen=True, tag="turns.frame"):
    """What has happened since the last one."""

    at: float
    steps: tuple[TurnStep, ...] = ()
    """Oldest first."""
    left_out: tuple[int, float] = (0, 0.0)
    """Steps that were run and are not in `steps`, because there were too many to show: how many, and their time in
    milliseconds."""
    lives: tuple[Life, ...] = ()
    pool: Pool | None = None
    """None: as in the last one."""
    worker_up: bool = True
    missed: int = 0
    """Frames that this socket was too slow for, since the one before."""


ToWatcher = Hello | Frame
