"""A trace as it is written: a line for each request that ends, and a warning for what one would want to know at once.

Knows what deserves a line. Reads no files: it is given lines.
"""

from rich.console import Console
from rich.text import Text

from loadgen.comparison import span
from loadgen.tracing.causes import sentence
from loadgen.tracing.device import DeviceStep
from loadgen.tracing.gaps import gap_sentence
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.timeline import LEAST_REMARKABLE_S
from loadgen.tracing.words import Names, clock, count
from protocol.trace import TraceLine

LONG_GAP_S = 0.25
"""Without a target, a gap of this length is worth a warning."""
PATIENCE_S = 2.0
"""How long after its end a request's last text is waited for."""
KEPT_S = 30.0
"""An ended request is remembered so long, so that it can still be named as the cause of others' waits."""


class Following:
    """Takes lines, and says what happened. `quiet` while what was there before is read."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.lives = Lives()
        self._names = Names()
        self._said: set[str] = set()
        self._ended: list[Life] = []
        self._restarts = 0
        self._forgotten_at = 0.0
        self.quiet = False

    def feed(self, line: TraceLine) -> None:
        lives = self.lives
        lives.feed(line)
        if lives.device.restarts > self._restarts:
            self._restarts = lives.device.restarts
            self._warn(line.time, "the worker was lost; what ran has failed, and another is being started")
        if line.type == "StepDone" and line.to == "scheduler" and lives.device.steps:
            self._gaps(lives.device.steps[-1])
        if line.request is not None and (life := lives.all.get(line.request)) is not None:
            self._maybe_ended(life)
        if lives.last_at > self._forgotten_at + 1.0:
            self._tidy()

    def idle(self) -> None:
        """Nothing more is there for now: what has ended and waits for a last text waits no longer."""
        for life in self.lives.all.values():
            if life.over_at is not None and life.request not in self._said:
                self._end(life)

    def _maybe_ended(self, life: Life) -> None:
        if life.request in self._said or not life.told:
            return
        self._end(life)

    def _end(self, life: Life) -> None:
        self._said.add(life.request)
        self._ended.append(life)
        if not self.quiet:
            self._console.print(Text(ended_line(life, self.lives, self._names)), soft_wrap=True)

    def _gaps(self, step: DeviceStep) -> None:
        """Of every answer that got a token in this step: was that a long wait, or had it been preempted?"""
        if self.quiet:
            return
        late: list[tuple[Life, tuple[float, float]]] = []
        for request, _, _, sampled in step.chunks:
            life = self.lives.all.get(request)
            if life is None or life.ended_at is not None:
                continue
            if life.preempted and life.preempted[-1] == step.planned:
                self._warn(step.at, f"{self._names.of(request)} had been preempted for memory, and is read again")
            gap = life.longest_gap
            if sampled and gap is not None and gap[1] == step.at and gap[1] - gap[0] > _most(life):
                late.append((life, gap))
        if late:
            life, gap = max(late, key=lambda each: each[1][1] - each[1][0])
            others = f" and {count(len(late) - 1, 'other')}" if len(late) > 1 else ""
            what = f"a gap of {self._names.of(life.request)}{others}"
            self._warn(step.at, gap_sentence(life, gap, self.lives, self._names, clock(gap[0]), what)[:-1])

    def _warn(self, at: float, what: str) -> None:
        if not self.quiet:
            self._console.print(Text(f"{clock(at)}  warning: {what}.", style="yellow"), soft_wrap=True)

    def _tidy(self) -> None:
        """Drop who has ended long ago, and the steps that nobody can ask about any more."""
        now = self._forgotten_at = self.lives.last_at
        for life in list(self.lives.all.values()):
            if life.over_at is not None and life.request not in self._said and now > life.over_at + PATIENCE_S:
                self._end(life)
        old = [life for life in self._ended if now > (life.over_at or now) + KEPT_S]
        if old:
            self.lives.forget(old)
            gone = {life.request for life in old}
            self._ended = [life for life in self._ended if life.request not in gone]
            self._said -= gone


def _most(life: Life) -> float:
    return max(LEAST_REMARKABLE_S, life.itl_target_s if life.itl_target_s is not None else LONG_GAP_S)


def ended_line(life: Life, lives: Lives, names: Names) -> str:
    """How it ended, its figures and where its time went."""
    at = life.over_at or lives.last_at
    head = f"{clock(at)}  {names.of(life.request)}  "
    if life.refused_at is not None:
        return f"{head}refused ({life.ended_reason or 'no reason told'}) after {span(at - life.began_at)}"
    output = life.tokens if life.output_tokens is None else life.output_tokens
    why = f" ({life.code})" if life.code else ""
    figures = [f"{life.reason or 'ended'}{why}", f"{life.input_tokens or 0:,} tokens in", f"{output:,} out"]
    if life.ttft_s is not None:
        figures.append(f"first text {span(life.ttft_s)}")
    if life.longest_gap is not None:
        figures.append(f"longest gap {span(life.longest_gap[1] - life.longest_gap[0])}")
    return f"{head}{', '.join(figures)}. {sentence(life, lives, names)}"
