"""An engine that is none: it plays what `/v1/turns` tells of one, as far as a clock goes that the caller moves.

Plain code and a seed, so that the same play is the same picture. Costs are made up: 6 ms a step, 0.3 ms a prompt token,
1.6 ms a row. Knows no sockets.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.turns import Frame, Hello, Kind, Life, Part, Pool, TurnStep

HELLO = Hello(
    at=0.0,
    model="SmolLM2-135M-Instruct",
    policy="slack",
    device="cpu",
    kernels="our CPU kernels, 8 threads",
    max_context=16_384,
    blocks=640,
    block_tokens=32,
    max_running=12,
)
_FIXED_MS = 6.0
_TOKEN_MS = 0.3
_ROW_MS = 1.6
_STEP_MS = 48.0
_FRAME_S = 0.1


@dataclass
class _Request:
    number: int
    received_at: float
    input_tokens: int
    output_tokens: int
    ttft_ms: float
    itl_ms: float
    response_id: str | None = None
    read: int = 0
    written: int = 0
    started_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    ended_at: float | None = None
    worst_ms: float | None = None
    preempted_until: float | None = None
    preemptions: int = 0
    reason: str | None = None

    def life(self, position: int | None) -> Life:
        state = (
            "finished"
            if self.ended_at is not None
            else "preempted"
            if self.preempted_until is not None
            else "decoding"
            if self.first_at is not None
            else "prefilling"
            if self.started_at is not None
            else "queued"
        )
        return Life(
            request=self.number,
            state=state,  # type: ignore[arg-type]  # one of its words, by the lines above
            received_at=self.received_at,
            id=self.response_id,
            input_tokens=self.input_tokens,
            max_output_tokens=self.output_tokens,
            prefilled_tokens=self.read,
            output_tokens=self.written,
            started_at=self.started_at,
            first_token_at=self.first_at,
            ended_at=self.ended_at,
            ttft_target_ms=self.ttft_ms,
            itl_target_ms=self.itl_ms,
            worst_gap_ms=self.worst_ms,
            position=position,
            estimated_wait_ms=None if position is None else 400.0 * position,
            preemptions=self.preemptions,
            reason=self.reason,
        )

    def blocks(self, size: int) -> int:
        return -(-(self.read + self.written) // size)


@dataclass
class Play:
    """Requests come by `ask`; `frames(until)` gives what has happened since."""

    now: float
    hello: Hello = HELLO
    seed: int = 7
    parts_most: int = 12
    _step: int = 0
    _asked: int = 0
    _queue: list[_Request] = field(default_factory=list)
    _running: list[_Request] = field(default_factory=list)
    _ended: list[_Request] = field(default_factory=list)
    _cached: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def ask(
        self,
        input_tokens: int,
        output_tokens: int,
        *,
        response_id: str | None = None,
        ttft_ms: float = 5_000,
        itl_ms: float = 150,
    ) -> int:
        self._asked += 1
        request = _Request(self._asked, self.now, input_tokens, output_tokens, ttft_ms, itl_ms, response_id)
        self._queue.append(request)
        return request.number

    def cancel(self, number: int) -> None:
        for request in (*self._queue, *self._running):
            if request.number == number:
                self._end(request, self.now, "cancelled")

    def preempt(self, number: int, for_s: float) -> None:
        for request in self._running:
            if request.number == number:
                request.preempted_until = self.now + for_s
                request.preemptions += 1

    def written(self, number: int) -> int:
        """Tokens of its answer so far; -1 once it has ended."""
        for request in (*self._queue, *self._running):
            if request.number == number:
                return request.written
        return -1

    def frames(self, until: float) -> Iterator[Frame]:
        """One a tenth of a second, up to that time."""
        while self.now + _FRAME_S <= until:
            at = self.now + _FRAME_S
            steps = []
            while self.now < at:
                step = self._run()
                if step is None:
                    self.now = at
                else:
                    steps.append(step)
            yield Frame(self.now, tuple(steps), lives=self._lives(), pool=self._pool())

    # --- the engine that is none --------------------------------------------------------------------------------------

    def _run(self) -> TurnStep | None:
        while self._queue and len(self._running) < self.hello.max_running:
            self._running.append(self._queue.pop(0))
        for request in self._running:
            if request.preempted_until is not None and request.preempted_until <= self.now:
                request.preempted_until = None
        awake = [request for request in self._running if request.preempted_until is None]
        rows = [request for request in awake if request.first_at is not None][: self.parts_most]
        work: list[tuple[_Request, Kind, int, int, float]] = [
            (row, "decode", row.input_tokens + row.written, 1, _ROW_MS * self._random.uniform(0.9, 1.2)) for row in rows
        ]
        room_ms = _STEP_MS - _FIXED_MS - sum(cost for *_, cost in work)
        for request in sorted(
            awake, key=lambda each: each.input_tokens - each.read
        ):  # who has little to read goes first
            if request.first_at is None and room_ms > 2 and len(work) < self.parts_most:
                tokens = min(request.input_tokens - request.read, max(int(room_ms / _TOKEN_MS), 1))
                work.append((request, "prefill", request.read, tokens, tokens * _TOKEN_MS))
                room_ms -= tokens * _TOKEN_MS
        if not work:
            return None
        took_ms = (_FIXED_MS + sum(cost for *_, cost in work)) * self._random.uniform(0.97, 1.05)
        scale = took_ms / sum(cost for *_, cost in work)
        began = self.now
        self.now = began + took_ms / 1000
        self._step += 1
        for request, kind, _start, tokens, _cost in work:
            self._credit(request, kind, tokens, began)
        parts = tuple(Part(request.number, kind, at, n, cost * scale) for request, kind, at, n, cost in work)
        return TurnStep(self._step, began, took_ms, parts)

    def _credit(self, request: _Request, kind: Kind, tokens: int, began: float) -> None:
        if request.started_at is None:
            request.started_at = began
        if kind == "prefill":
            request.read += tokens
            if request.read < request.input_tokens:
                return
            request.first_at = self.now
        if request.last_at is not None:
            request.worst_ms = max(request.worst_ms or 0.0, (self.now - request.last_at) * 1000)
        request.last_at = self.now
        request.written += 1
        if request.written >= request.output_tokens:
            self._end(request, self.now, "length")

    def _end(self, request: _Request, at: float, reason: str) -> None:
        request.ended_at, request.reason = at, reason
        for where in (self._queue, self._running):
            if request in where:
                where.remove(request)
        self._ended.append(request)
        self._cached += request.blocks(self.hello.block_tokens)

    def _lives(self) -> tuple[Life, ...]:
        waiting = [request.life(place) for place, request in enumerate(self._queue, 1)]
        lives = [request.life(None) for request in (*self._running, *self._ended)]
        self._ended.clear()
        return (*waiting, *lives)

    def _pool(self) -> Pool:
        size, total = self.hello.block_tokens, self.hello.blocks
        held = tuple((each.number, each.blocks(size)) for each in self._running if each.blocks(size))
        used = min(sum(blocks for _, blocks in held), total)
        self._cached = min(self._cached, total - used)
        return Pool(total - used - self._cached, self._cached, used, total, held)


def crowd(play: Play, until: float, *, every_s: float = 0.7) -> Iterator[Frame]:
    """A minute of a busy server: short questions all the time, now and then something long, one preempted."""
    chance = random.Random(play.seed)
    turn = 0
    while play.now + every_s < until:
        turn += 1
        long = turn % 9 == 4
        last = play.ask(chance.randint(2_000, 6_000) if long else chance.randint(60, 700), chance.randint(60, 400))
        yield from play.frames(play.now + chance.uniform(0.4, 1.6) * every_s)
        if turn % 11 == 7:
            play.preempt(last, 1.5)
    yield from play.frames(until)
