"""Traces whose truth is known: what a server would have written of requests and steps that a test makes up.

Mirrors who says what to whom, in which order. Knows nothing of what is made of a trace.
"""

from pathlib import Path
from typing import Any

import msgspec

from loadgen.tracing.lives import Lives
from protocol.trace import BEGUN, FORMAT, TraceLine

BEGAN = 1_800_000_000.0
COEFFICIENTS = (0.002, 0.001, 0.0, 0.0, 0.001, 0.0)
"""A step costs 2 ms, and each token in it 1 ms, whether read or written."""
HANDLED_S = 20e-6

Chunk = tuple[str, int, int, bool]


class Scene:
    """Lines of a server. Times are seconds from its beginning; `lines` are in the order they would be written in."""

    def __init__(self, coefficients: tuple[float, ...] | None = COEFFICIENTS, ready_at: float = 0.0) -> None:
        self._lines: list[TraceLine] = [TraceLine(BEGUN, BEGAN, message="rota 0", format=FORMAT)]
        self._step = 0
        self._connections: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self.ready(ready_at, coefficients)

    @property
    def lines(self) -> list[TraceLine]:
        return sorted(self._lines, key=lambda line: line.time + line.waited_s + (line.handled_s or 0.0))

    @property
    def messages(self) -> int:
        return len(self._lines) - 1

    def write(self, file: Path, rest: bytes = b"") -> Path:
        file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in self.lines) + rest)
        return file

    def say(self, kind: str, sender: str, to: str, at: float, waited_s: float = 0.0, **fields: Any) -> None:
        fields.setdefault("lane", "control")
        fields.setdefault("handled_s", HANDLED_S)
        self._lines.append(TraceLine(kind, BEGAN + at, sender, to, waited_s=waited_s, **fields))

    # --- a request ---

    def ask(
        self,
        request: str,
        at: float,
        *,
        tokens: int = 100,
        connection: int = 1,
        turn_at: float | None = None,
        tokenise_s: float = 0.001,
        let_in_at: float | None = None,
        position: int | None = None,
        itl_target_s: float | None = None,
        admitted: bool = True,
    ) -> None:
        """Received `at`, its turn in its lane `turn_at`, and with the scheduler `let_in_at` (default: at once)."""
        turn_at = at + 1e-5 if turn_at is None else turn_at
        self._connections[request] = connection
        self._tokens[request] = 0
        to, tokenised_at = f"connection {connection}", turn_at + tokenise_s
        self.say("FrameReceived", "socket", to, at, connection=connection, lane="data")
        asked: dict[str, Any] = {"request": request, "connection": connection, "lane_s": turn_at - at}
        self.say("Ask", to, "tokeniser", turn_at, lane="data", **asked)
        self.say("OpenStream", "tokeniser", "detokeniser", tokenised_at, request=request, connection=connection)
        about: dict[str, Any] = {
            "request": request,
            "connection": connection,
            "tokens": tokens,
            "max_output_tokens": 64,
            "service_tier": "default",
            "itl_target_s": itl_target_s,
            "lane": "data",
        }
        self.say("Enqueue", "tokeniser", "admission", tokenised_at, **about)
        if not admitted:
            return
        accepted: dict[str, Any] = {
            "request": request,
            "connection": connection,
            "tokens": tokens,
            "position": position,
        }
        self.say("Watch", "admission", "reaper", tokenised_at, request=request)
        self.say("Accepted", "admission", to, tokenised_at, **accepted)
        if let_in_at is None or let_in_at >= 0:
            self.say("Enqueue", "admission", "scheduler", tokenised_at if let_in_at is None else let_in_at, **about)

    def refuse(self, request: str, at: float, code: str) -> None:
        connection = self._connections[request]
        about: dict[str, Any] = {"request": request, "connection": connection}
        self.say("Refused", "admission", f"connection {connection}", at, reason=code, **about)

    def end(self, request: str, at: float, reason: str = "length", text: bool = True, code: str | None = None) -> None:
        """No later step includes it; what it wrote last goes out with its end."""
        connection = self._connections[request]
        to = f"connection {connection}"
        about: dict[str, Any] = {"request": request, "connection": connection}
        self.say("Ended", "scheduler", to, at, reason=reason, code=code, output_tokens=self._tokens[request], **about)
        for whom in (to, "admission", "reaper"):
            self.say("Released", "scheduler", whom, at, **about)
        if text and reason not in ("cancelled", "failed"):
            self.say("Text", "detokeniser", to, at + 1e-4, chars=0, tokens=0, reason=reason, lane="slots", **about)

    def cancel(self, request: str, at: float) -> None:
        connection = self._connections[request]
        about: dict[str, Any] = {"request": request, "connection": connection}
        for sender, to in ((f"connection {connection}", "tokeniser"), ("tokeniser", "admission")):
            self.say("Cancel", sender, to, at, **about)
        self.end(request, at, "cancelled")

    def pause(self, request: str, at: float, until: float | None = None) -> None:
        connection = f"connection {self._connections[request]}"
        self.say("SetPaused", connection, "scheduler", at, request=request, paused=True)
        if until is not None:
            self.say("SetPaused", connection, "scheduler", until, request=request, paused=False)

    # --- the device ---

    def step(self, at: float, took_s: float, *chunks: Chunk, deliver_s: float = 0.0) -> float:
        """A step that begins `at`; its tokens reach their sockets `deliver_s` later. Returns when it has ended."""
        self._step += 1
        done = at + took_s
        self.say("Step", "scheduler", "executor", at, step=self._step, chunks=chunks, lane="data")
        self.say("StepDone", "worker", "executor", done, step=self._step, took_s=took_s)
        self.say("StepDone", "executor", "scheduler", done, step=self._step, took_s=took_s)
        written = tuple(request for request, _, _, sampled in chunks if sampled)
        if written:
            self.say("Tokens", "scheduler", "detokeniser", done, step=self._step, requests=written, lane="data")
            self.say("TokensTaken", "detokeniser", "scheduler", done + HANDLED_S, step=self._step)
        for request in written:
            self._tokens[request] += 1
            connection = self._connections[request]
            about: dict[str, Any] = {"request": request, "connection": connection, "lane": "slots"}
            to = f"connection {connection}"
            self.say("Text", "detokeniser", to, done, deliver_s, chars=4, tokens=1, **about)
        return done

    def prefill(
        self,
        request: str,
        at: float,
        tokens: int,
        *,
        chunk: int = 100,
        beside: tuple[str, ...] = (),
        first: bool = True,
    ) -> float:
        """Its whole prompt in chunks, each token 1 ms, with a row of each of `beside`. Returns when it has ended."""
        for start in range(0, tokens, chunk):
            count = min(chunk, tokens - start)
            last = start + count == tokens
            rows = tuple(self.row(other) for other in beside)
            took_s = COEFFICIENTS[0] + 0.001 * (count + len(rows))
            at = self.step(at, took_s, (request, start, count, last and first), *rows)
        return at

    def decode(self, at: float, steps: int, *requests: str, took_s: float = 0.012) -> float:
        for _ in range(steps):
            at = self.step(at, took_s, *(self.row(request) for request in requests))
        return at

    def row(self, request: str) -> Chunk:
        return (request, 100_000 + self._tokens[request], 1, True)

    def ready(self, at: float, coefficients: tuple[float, ...] | None = COEFFICIENTS) -> None:
        self.say("ModelReady", "worker", "executor", at)
        self.say("ModelReady", "executor", "scheduler", at)
        if coefficients is not None:
            self.say("CostsLearned", "scheduler", "admission", at, coefficients=coefficients)

    def lose_worker(self, at: float) -> None:
        self.say("WorkerGone", "worker", "executor", at)
        self.say("WorkerLost", "executor", "scheduler", at)
        self.say("WorkerLost", "executor", "engine", at, handled_s=None)


def lives_of(scene: Scene) -> Lives:
    """What the reader makes of it."""
    lives = Lives()
    for line in scene.lines:
        lives.feed(line)
    lives.finish()
    return lives
