"""The lives of all requests, put together from the lines of a trace.

Knows who says what to whom, in which order (`protocol/messages.py`). Knows no files and finds no causes.
"""

from bisect import bisect_right
from collections.abc import Callable

from loadgen.tracing.device import HEARD, Device, DeviceStep
from loadgen.tracing.life import Life
from protocol.kinds import RequestId
from protocol.trace import BEGUN, TraceLine

SLOW_S = 0.005
"""A handler that takes so long keeps all others, and the device, waiting."""


class Lives:
    """All requests of a trace, by name, in the order in which it speaks of them; and the device they share."""

    def __init__(self) -> None:
        self.all: dict[RequestId, Life] = {}
        self.device = Device(self._ran)
        self.first_at: float | None = None
        self.last_at = 0.0
        self._of_connection: dict[int, dict[RequestId, Life]] = {}
        self._slow: list[tuple[float, float, str]] = []
        """When handlers took long, and whose: in the order of their ends."""
        self._hear: dict[str, Callable[[TraceLine], None]] = {
            "Ask": self._ask,
            "Enqueue": self._enqueue,
            "Accepted": self._accepted,
            "Moved": self._moved,
            "Text": self._text,
            "Ended": self._ended,
            "Refused": self._refused,
            "Released": self._released,
            "Cancel": self._cancel,
            "SetPaused": self._paused,
            "Started": self._seen,
        }

    def feed(self, line: TraceLine) -> None:
        if self.first_at is None or line.time < self.first_at:
            self.first_at = line.time
        ended = line.time + line.waited_s + (line.handled_s or 0.0)
        if ended > self.last_at:
            self.last_at = ended
        if line.handled_s is not None and line.handled_s >= SLOW_S:
            self._slow.append((ended - line.handled_s, ended, f"{line.to}'s {line.type}"))
        kind = line.type
        if kind in HEARD:
            self.device.feed(line)
            if kind == "WorkerLost":
                self._worker_lost(line)
        elif (hear := self._hear.get(kind)) is not None:
            hear(line)
        elif kind == BEGUN:
            self._begun(line)

    def finish(self) -> None:
        """Nothing more comes."""
        self.device.finish(self.last_at)

    @property
    def began_at(self) -> float:
        return 0.0 if self.first_at is None else self.first_at

    def forget(self, lives: list[Life]) -> None:
        """Drop these, and every step that nobody who is left can ask about."""
        for life in lives:
            self.all.pop(life.request, None)
            if life.connection is not None:
                self._of_connection.get(life.connection, {}).pop(life.request, None)
        oldest = min((life.began_at for life in self.all.values()), default=self.last_at)
        self.device.forget(oldest)
        self._slow = [slow for slow in self._slow if slow[1] > oldest]

    def beside(self, life: Life) -> list[Life]:
        """All requests of its connection, itself among them."""
        return [] if life.connection is None else list(self._of_connection.get(life.connection, {}).values())

    def slow_in(self, stretches: list[tuple[float, float]]) -> tuple[float, str]:
        """For how long slow handlers kept the event loop in these stretches, and whose was the longest."""
        total, longest, whose = 0.0, 0.0, ""
        for began, ended in stretches:
            for index in range(bisect_right(self._slow, began, key=lambda slow: slow[1]), len(self._slow)):
                since, to, who = self._slow[index]
                if since >= ended:
                    break
                seconds = min(to, ended) - max(since, began)
                total += seconds
                if seconds > longest:
                    longest, whose = seconds, who
        return total, whose

    # --- lines ---

    def _life(self, line: TraceLine) -> Life | None:
        if line.request is None:
            return None
        life = self.all.get(line.request)
        if life is None:
            life = self.all[line.request] = Life(line.request, line.time)
        life.last_seen = max(life.last_seen, line.time + line.waited_s + (line.handled_s or 0.0))
        if line.connection is not None and life.connection is None:
            life.connection = line.connection
            self._of_connection.setdefault(line.connection, {})[life.request] = life
        return life

    def _seen(self, line: TraceLine) -> None:
        self._life(line)

    def _ask(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is None:
            return
        life.asked_at = line.time
        life.received_at = line.time - (line.lane_s or 0.0)

    def _enqueue(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is None:
            return
        if line.tokens is not None:
            life.input_tokens = line.tokens
        if line.to == "scheduler":
            life.let_in_at = line.time
        else:
            life.tokenised_at = line.time
        if line.max_output_tokens is not None:
            life.max_output_tokens = line.max_output_tokens
        life.tier = line.service_tier or life.tier
        life.ttft_target_s = line.ttft_target_s if line.ttft_target_s is not None else life.ttft_target_s
        life.itl_target_s = line.itl_target_s if line.itl_target_s is not None else life.itl_target_s

    def _accepted(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is not None:
            life.accepted_at = line.time
            life.position = line.position or 0
            if line.tokens is not None:
                life.input_tokens = line.tokens

    def _moved(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is not None and life.position is None:
            life.position = line.position

    def _text(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is None:
            return
        handled = line.time + line.waited_s + (line.handled_s or 0.0)
        if line.chars:
            life.chars += line.chars
            life.last_text_at = handled
            if life.first_text_at is None:
                life.first_text_at = handled
        if line.reason is not None:
            life.text_ended, life.text_reason = handled, line.reason

    def _ended(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is None:
            return
        life.ended_at, life.ended_reason, life.code = line.time, line.reason, line.code
        life.preemptions_told = line.preemptions or 0
        for name in ("output_tokens", "cached_tokens"):
            value = getattr(line, name)
            if value is not None:
                setattr(life, name, value)

    def _refused(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is not None:
            life.refused_at, life.ended_reason = line.time, line.reason

    def _released(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is not None and life.released_at is None:
            life.released_at = line.time

    def _cancel(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is not None and life.cancelled_at is None:
            life.cancelled_at = line.time

    def _paused(self, line: TraceLine) -> None:
        life = self._life(line)
        if life is None:
            return
        if line.paused:
            life.pauses.append((line.time, None))
        elif life.pauses and life.pauses[-1][1] is None:
            life.pauses[-1] = (life.pauses[-1][0], line.time)

    def _worker_lost(self, line: TraceLine) -> None:
        """Said to a connection: all that ran for it has failed, and nobody is left to say so."""
        if line.to.startswith("connection") and line.connection is not None:
            for life in self._of_connection.get(line.connection, {}).values():
                if life.over_at is None:
                    life.ended_at, life.ended_reason = line.time, "failed"

    def _begun(self, line: TraceLine) -> None:
        """Another run: whoever was not told an end in the one before has failed with it."""
        for life in self.all.values():
            if life.over_at is None:
                life.ended_at, life.ended_reason = life.last_seen, "failed"
        self._of_connection.clear()
        self.device.begin(line.time)

    def _ran(self, step: DeviceStep) -> None:
        for request, start, tokens, sampled in step.chunks:
            life = self.all.get(request)
            if life is None:
                life = self.all[request] = Life(request, step.began)
            if life.ended_at is not None:
                continue
            life.steps.append(step)
            if life.first_step_at is None:
                life.first_step_at = step.began
                if life.cached_tokens is None and life.whole:
                    life.cached_tokens = start
            if life.next_position is not None and start < life.next_position:
                life.preempted.append(step.planned)
            life.next_position = start + tokens
            if sampled:
                life.tokens += 1
                if life.first_token_at is None:
                    life.first_token_at = step.at
                if life.last_token_at is not None:
                    longest = life.longest_gap
                    if longest is None or step.at - life.last_token_at > longest[1] - longest[0]:
                        life.longest_gap = (life.last_token_at, step.at)
                life.last_token_at = step.at
