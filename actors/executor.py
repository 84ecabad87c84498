"""The executor: passes each step to the worker process and its result back, and notices when that process is lost.

Owns the child process. Decides nothing about turns. Knows no tensors: those live in the child.
"""

from typing import ClassVar, assert_never

import structlog

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.metrics import Metrics
from actors.worker_process import Child
from protocol.messages import (
    FromWorker,
    LoadModel,
    ModelFound,
    ModelReady,
    ModelRefused,
    Step,
    StepDone,
    StepFailed,
    Sweep,
    WorkerGone,
    WorkerLost,
)

ExecutorInbox = Step | ModelFound | ModelReady | ModelRefused | StepDone | StepFailed | WorkerGone | Sweep

LOOK_S = 5.0
"""A worker that has had nothing to do for so long is asked whether it is still there."""
NOTHING = Step(0, ())
"""What it is asked: a step of nothing, whose number no planned step has."""

log = structlog.get_logger()


class Executor(Actor[ExecutorInbox]):
    """One worker at a time, started again with a growing delay when it is lost.

    Lack of progress marks a hang: a worker that has had a step for over `hang_s` without answering is killed, and so
    is one that takes over `load_s` to load. The first one may fetch and convert its model before that, for as long as
    it gets on: only when it has done nothing for `load_s` is it killed.
    One without work is given a step of nothing now and then, so that a hang is found before somebody waits for it.
    Each worker has a number; what an earlier one still says is not heard.
    """

    name: ClassVar[str] = "executor"
    fate: ClassVar[Fate] = Fate.WORKER

    def __init__(
        self,
        mailbox: Mailbox[ExecutorInbox],
        *,
        child: Child,
        load: LoadModel,
        scheduler: Address[StepDone | StepFailed | ModelReady | WorkerLost],
        engine: Address[ModelFound | ModelReady | ModelRefused | WorkerLost],
        metrics: Metrics,
        clock: Clock,
        hang_s: float = 60.0,
        load_s: float = 300.0,
        first_delay_s: float = 0.5,
        longest_delay_s: float = 30.0,
        has_served: bool = False,
    ) -> None:
        """`has_served`: an executor before this one had a worker that was ready."""
        super().__init__(mailbox)
        self._child = child
        self._load = load
        self._scheduler = scheduler
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._hang_s = hang_s
        self._load_s = load_s
        self._first_delay_s = first_delay_s
        self._longest_delay_s = longest_delay_s
        self._worker = 0
        self._running: dict[int, float] = {}
        """Steps in the child, each with the time since when its answer is due."""
        self._heard_at = 0.0
        """When the worker last answered."""
        self._ready = False
        self._ever_ready = has_served
        self._refused = False
        self._delay_s = first_delay_s
        self._start_at: float | None = None
        self._loading_since: float | None = None
        """Since when a worker is at work on becoming ready, as far as that is bounded."""
        self._looked_at: tuple[object, float] | None = None
        """Of a worker that may fetch a model: what it had done when it was seen to get on, and when that was."""
        self._killed_for: str | None = None
        """Why the worker was killed from here: the signal that it died of is then no reason."""

    def start(self) -> None:
        """Begin a worker; its messages come back to this actor's mailbox."""
        self._worker += 1
        self._killed_for = None
        now = self._clock()
        self._loading_since, self._looked_at = (now, None) if self._ever_ready else (None, (None, now))
        worker = self._worker
        address = self.address

        def deliver(message: FromWorker) -> None:
            if worker == self._worker:
                address.tell(message)

        self._child.start(self._load, deliver, lambda why: address.tell(WorkerGone(worker, why)))

    def handle(self, message: ExecutorInbox) -> None:
        match message:
            case Step():
                # Planned before the scheduler heard that the worker is lost; it forgets the step when it does.
                if self._ready:
                    self._send(message)
            case StepDone() | StepFailed():
                self._step_over(message)
            case ModelFound():
                self._loading_since, self._looked_at = self._clock(), None
                self._engine.tell(message)
            case ModelReady():
                self._ready = self._ever_ready = True
                self._heard_at = self._clock()
                self._loading_since = self._looked_at = None
                self._scheduler.tell(message)
                self._engine.tell(message)
            case ModelRefused():
                self._refuse(message)
            case WorkerGone():
                if message.worker == self._worker:
                    self._lost(self._killed_for or message.why)
            case Sweep():
                self._look(message.at)
            case _:
                assert_never(message)

    def _send(self, step: Step) -> None:
        self._running[step.step] = self._clock()
        self._child.send(step)

    def _refuse(self, refused: ModelRefused) -> None:
        """A first worker that cannot serve is the engine's end; a later one may only have found too little memory."""
        if self._ever_ready:
            log.error("worker.refused", why=refused.message)
        else:
            self._refused = True
            self._loading_since = self._looked_at = None
            self._engine.tell(refused)

    def _step_over(self, over: StepDone | StepFailed) -> None:
        if self._running.pop(over.step, None) is None:
            return
        self._heard_at = now = self._clock()
        # The next step's time counts from when it could begin.
        self._running = dict.fromkeys(self._running, now)
        if over.step != NOTHING.step:
            self._delay_s = self._first_delay_s
            self._scheduler.tell(over)

    def _lost(self, why: str) -> None:
        """Tell everyone, and start another after a delay. One that refused its model is not started again."""
        if self._refused:
            return
        now = self._clock()
        log.error("worker.lost", why=why, steps_in_flight=len(self._running), next_start_s=self._delay_s)
        self._ready = False
        self._loading_since = self._looked_at = None
        self._running.clear()
        lost = WorkerLost(why, now)
        self._scheduler.tell(lost)
        self._engine.tell(lost)
        self._start_at = now + self._delay_s
        self._delay_s = min(2 * self._delay_s, self._longest_delay_s)

    def _look(self, now: float) -> None:
        """Is a worker due to start, or has the one there stopped making progress?"""
        if self._start_at is not None and now >= self._start_at:
            self._start_at = None
            self._metrics.worker_restarts.inc()
            self.start()
        if self._loading_since is not None and now - self._loading_since > self._load_s:
            log.error("worker.hung", loading=True, for_s=now - self._loading_since)
            self._loading_since = None
            self._kill(f"the worker process had not loaded the model within {self._load_s:g} s and was killed")
        if self._looked_at is not None:
            self._look_whether_it_gets_on(now, *self._looked_at)
        if self._ready and not self._running and now - self._heard_at >= min(LOOK_S, self._hang_s / 2):
            self._send(NOTHING)
        for step, since in self._running.items():
            if now - since > self._hang_s:
                log.error("worker.hung", step=step, for_s=now - since)
                self._kill(f"the worker process made no progress for {self._hang_s:g} s and was killed")
                return

    def _look_whether_it_gets_on(self, now: float, signs: object, since: float) -> None:
        """It may take long to fetch and convert a model, but it must be at it."""
        found = self._child.signs_of_life()
        if found is None or found != signs:
            self._looked_at = (found, now)
        elif now - since > self._load_s:
            log.error("worker.hung", loading=True, for_s=now - since)
            self._looked_at = None
            self._kill(f"the worker process had no model yet, did nothing for {self._load_s:g} s and was killed")

    def _kill(self, why: str) -> None:
        self._killed_for = why
        self._child.kill()
