"""The scheduler: owns sequences, block tables and the block pool; says what each step runs and when blocks are freed.

A thin shell around `scheduling/schedule.py`: it turns messages into calls and results into messages. Knows nothing of
sockets, text or tensors.
"""

from typing import ClassVar, assert_never

import structlog

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.directory import Directory
from actors.early_words import EarlyWords
from actors.metrics import Metrics
from actors.scheduler_gauges import show_gauges
from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import Costs
from actors.scheduling.policy import Policy
from actors.scheduling.reading import Reading
from actors.scheduling.schedule import Outcome, Schedule
from actors.scheduling.seen import seen_sequence
from actors.scheduling.sequence import Sequence
from actors.token_lane import TokenLane
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    AuditReport,
    AuditRequest,
    Cancel,
    CloseStream,
    CostsLearned,
    Credit,
    Ended,
    Enqueue,
    Expire,
    FinishReason,
    FinishStream,
    Forget,
    GiveWay,
    Look,
    ModelReady,
    PromptRead,
    Released,
    RequestId,
    SchedulerSeen,
    SetPaused,
    Started,
    Step,
    StepDone,
    StepFailed,
    Sweep,
    Tokens,
    TokensTaken,
    Unread,
    WorkerLost,
)

log = structlog.get_logger()

LEARNED_EVERY = 16
"""Steps between two accounts of their costs to admission."""
GAVE_WAY_RETRY_MS = 1000.0
SchedulerInbox = (
    Enqueue
    | Cancel
    | SetPaused
    | GiveWay
    | Expire
    | FinishStream
    | StepDone
    | StepFailed
    | TokensTaken
    | ModelReady
    | WorkerLost
    | Sweep
    | AuditRequest
    | Look
)


class Scheduler(Actor[SchedulerInbox]):
    """Plans a step whenever the worker has room for one and anything can run.

    As many steps are in flight as the worker asks for (1: the next one is planned when the last one's result is in). A
    step is planned behind another only when the detokeniser has taken all tokens: a stop text that it has found in them
    wastes one row, that of the step in flight, and no second one. At most `tokens_ahead` steps' tokens wait for the
    detokeniser; past that no step is planned at all, so its lane is never full.
    `max_running` bounds the sequences in one step, and by the credits granted to admission those that are here.
    `gallery`: who looks, if anybody does.
    """

    name: ClassVar[str] = "scheduler"
    fate: ClassVar[Fate] = Fate.WORKER

    def __init__(
        self,
        mailbox: Mailbox[SchedulerInbox],
        *,
        policy: Policy,
        max_running: int,
        max_step_tokens: int,
        admission: Address[Credit | CostsLearned | Unread | Released],
        executor: Address[Step],
        detokeniser: Address[Tokens | CloseStream],
        tokeniser: Address[Forget],
        reaper: Address[Released | AuditReport],
        directory: Directory,
        metrics: Metrics,
        clock: Clock,
        tokens_ahead: int = 32,
        gallery: Address[SchedulerSeen] | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._policy = policy
        self._max_running = max_running
        self._max_step_tokens = max_step_tokens
        self._admission = admission
        self._executor = executor
        self._detokeniser = detokeniser
        self._tokeniser = tokeniser
        self._reaper = reaper
        self._gallery = gallery
        self._directory = directory
        self._metrics = metrics
        self._clock = clock
        self._tokens = TokenLane(detokeniser, clock, tokens_ahead)
        self._schedule = Schedule(BlockPool(0, 1), policy, max_step_tokens, max_running)
        self._ready = False
        self._steps_ahead = 1
        self._early = EarlyWords()
        self._granted = Credit(0, 0)
        self._steps_since_told = 0
        self._preemptions_counted = 0
        self._unstarted: dict[RequestId, Sequence] = {}
        self._reading = Reading()
        show_gauges(metrics, self._schedule, self.name)

    def handle(self, message: SchedulerInbox) -> None:
        match message:
            case Enqueue():
                self._enqueue(message)
            case Cancel():
                sequence = self._schedule.get(message.request)
                if sequence is None:
                    self._early.cancel(message.request, self._clock())
                else:
                    sequence.cancelled_at = message.at
                    self._detokeniser.tell(CloseStream(message.request))
                    self._end(sequence, "cancelled")
            case SetPaused():
                self._set_paused(message)
            case GiveWay():
                self._give_way(message.request)
            case Expire():
                sequence = self._schedule.get(message.request)
                if sequence is not None:
                    self._expire(sequence, message.waiting)
                elif message.waiting:
                    self._early.lose_patience(message.request, self._clock())
            case FinishStream():
                sequence = self._schedule.get(message.request)
                if sequence is not None:
                    self._end(sequence, "stop_text")
            case StepDone():
                self._metrics.step.observe(message.took_s)
                self._settle(self._schedule.complete(message, self._clock()))
                self._say_read()
                self._learn()
            case StepFailed():
                self._step_failed(message)
            case TokensTaken():
                self._tokens.take(message.step)
            case ModelReady():
                self._open(message)
            case WorkerLost():
                self._lose_worker()
            case Sweep():
                self._early.sweep(message.at)
            case AuditRequest():
                self._audit(message)
            case Look():
                self._show(message)
                return
            case _:
                assert_never(message)
        self._turn()

    # --- coming and going ---

    def _set_paused(self, asked: SetPaused) -> None:
        sequence = self._schedule.get(asked.request)
        if sequence is not None:
            self._schedule.set_paused(sequence, asked.paused, self._clock())
            self._set_unread(sequence, asked.unread)
        else:
            self._early.set_paused(asked.request, asked.paused, asked.unread)

    def _set_unread(self, sequence: Sequence, unread: bool) -> None:
        if sequence.unread is not unread:
            sequence.unread = unread
            self._admission.tell(Unread(sequence.request, unread))

    def _give_way(self, request: RequestId) -> None:
        sequence = self._schedule.get(request)
        # Whoever has come back for it meanwhile keeps it.
        if sequence is not None and sequence.unread:
            what = "Nobody was connected to read this response, and others of its key needed its place"
            self._fail(sequence, errors.server_overloaded(what, GAVE_WAY_RETRY_MS))

    def _enqueue(self, enqueue: Enqueue) -> None:
        now = self._clock()
        sequence = self._schedule.add(enqueue, now)
        self._unstarted[enqueue.request] = sequence
        unread = self._early.paused(enqueue.request)
        if unread is not None:
            self._schedule.set_paused(sequence, True, now)
            self._set_unread(sequence, unread)
        if self._early.cancelled(enqueue.request):
            sequence.cancelled_at = now
            self._end(sequence, "cancelled")
        elif enqueue.deadline_at is not None and now >= enqueue.deadline_at:
            # Its `Expire` may have overtaken it and found nobody here.
            self._expire(sequence, waiting=False)
        elif self._early.impatient(enqueue.request):
            self._expire(sequence, waiting=True)

    def _expire(self, sequence: Sequence, waiting: bool) -> None:
        """Its deadline has passed, or (`waiting`) its patience to wait for a first step."""
        if not sequence.started:
            now = self._clock()
            received_at, deadline_at = sequence.received_at, sequence.deadline_at
            deadline_ms = None if waiting or deadline_at is None else (deadline_at - received_at) * 1e3
            self._fail(sequence, errors.deadline_exceeded((now - sequence.accepted_at) * 1e3, deadline_ms))
        elif not waiting:
            self._end(sequence, "deadline")
            self._tokens.end(sequence.request, "deadline")

    def _fail(self, sequence: Sequence, error: WireError) -> None:
        self._detokeniser.tell(CloseStream(sequence.request))
        self._tokeniser.tell(Forget(sequence.request))
        self._end(sequence, "failed", error)

    def _end(self, sequence: Sequence, reason: FinishReason, error: WireError | None = None) -> None:
        released = self._schedule.end(sequence, reason)
        self._say_ended(sequence, error)
        if released:
            self._say_released(sequence)

    def _say_ended(self, sequence: Sequence, error: WireError | None = None) -> None:
        assert sequence.reason is not None
        self._unstarted.pop(sequence.request, None)
        ended = Ended(sequence.request, sequence.reason, sequence.stats(self._clock()), error)
        self._directory.tell(sequence.connection, ended)

    def _say_released(self, sequence: Sequence) -> None:
        released = Released(
            sequence.request,
            self._clock(),
            sequence.cancelled_at,
            sequence.prompt_tokens_run,
            sequence.output_tokens,
        )
        if sequence.cancelled_at is not None:
            self._metrics.release.observe(released.at - sequence.cancelled_at)
        self._directory.tell(sequence.connection, released)
        self._admission.tell(released)
        self._reaper.tell(released)

    # --- steps ---

    def _turn(self) -> None:
        """After every message: say what has ended, plan what can be planned, grant what can be granted."""
        if self._tokens.owes_ends and self._tokens.has_room(self._schedule.steps_in_flight):
            self._tokens.send(())
        while self._ready and self._may_plan():
            now = self._clock()
            self._give_up_unstarted(now)
            step = self._schedule.plan(now)
            if step is None:
                break
            self._say_started(step)
            self._metrics.step_rows.observe(sum(len(chunk.tokens) // 4 for chunk in step.chunks))
            taken = self._executor.offer(step)
            assert taken, "the executor's lane holds every step that may be in flight"
        self._grant()
        if self._schedule.preemptions > self._preemptions_counted:
            self._metrics.preemptions.inc(self._schedule.preemptions - self._preemptions_counted)
            self._preemptions_counted = self._schedule.preemptions

    def _may_plan(self) -> bool:
        """Whether one more step may be in flight: behind another, only once it is known whose answers have ended."""
        in_flight = self._schedule.steps_in_flight
        if in_flight and (in_flight >= self._steps_ahead or not self._tokens.all_taken):
            return False
        return self._tokens.has_room(in_flight)

    def _give_up_unstarted(self, now: float) -> None:
        """Before anything starts: is there still time for its first token before its deadline?"""
        for sequence in list(self._unstarted.values()):
            if sequence.deadline_at is not None:
                begins_at = self._schedule.begins_at(now)
                takes = self._schedule.first_token_s(sequence, sequence.deadline_at - begins_at)
                if begins_at + takes > sequence.deadline_at:
                    deadline_ms = (sequence.deadline_at - sequence.received_at) * 1e3
                    estimate_ms = (begins_at + takes - sequence.received_at) * 1e3
                    self._fail(sequence, errors.deadline_unreachable(estimate_ms, deadline_ms))

    def _step_failed(self, failed: StepFailed) -> None:
        """The device had no memory for it. Smaller steps follow; who cannot be helped by one is told."""
        failure = self._schedule.fail(failed.step, self._clock())
        if failure is None:
            return
        for sequence in failure.released:
            self._say_released(sequence)
        if failure.follows:
            return
        self._metrics.steps_out_of_memory.inc()
        bounds = self._schedule.bounds
        log.warning(
            "step.out_of_memory",
            tokens=failure.tokens,
            rows=failure.rows,
            now_at_most_tokens=bounds.tokens,
            now_at_most_rows=bounds.rows,
            why=failed.message,
        )
        if failure.hopeless is not None:
            self._fail(failure.hopeless, errors.worker_failed(0))

    def _say_started(self, step: Step) -> None:
        for chunk in step.chunks:
            sequence = self._unstarted.pop(chunk.request, None)
            if sequence is not None:
                now = self._clock()
                self._reading.begin(sequence, now)
                self._directory.tell(sequence.connection, Started(chunk.request, now, sequence.prompt_tokens_read))

    def _say_read(self) -> None:
        for sequence in self._reading.news(self._clock()):
            self._directory.tell(sequence.connection, PromptRead(sequence.request, sequence.prompt_tokens_read))

    def _learn(self) -> None:
        """What steps cost has changed a little; now and then admission hears of it."""
        self._metrics.step_error.set(self._schedule.costs.error)
        self._steps_since_told += 1
        if self._steps_since_told >= LEARNED_EVERY:
            self._tell_costs()

    def _tell_costs(self) -> None:
        self._steps_since_told = 0
        self._admission.tell(self._schedule.learned())

    def _settle(self, outcome: Outcome) -> None:
        self._metrics.output_tokens.inc(len(outcome.rows))
        for sequence in outcome.ended:
            self._say_ended(sequence)
            if sequence.reason == "prefilled":
                self._tokens.end(sequence.request, "prefilled")
        for sequence in outcome.released:
            self._say_released(sequence)
        if outcome.rows:
            self._tokens.send(outcome.rows)

    def _grant(self) -> None:
        if self._ready:
            credit = self._schedule.credit(self._max_running)
            if credit.granted > self._granted.granted or credit.tokens > self._granted.tokens:
                self._granted = credit
                self._admission.tell(credit)

    # --- the worker's life ---

    def _open(self, ready: ModelReady) -> None:
        """A worker is there (again): its cache is empty, so whatever waits here starts from its tokens."""
        self._schedule.replace_pool(BlockPool(ready.blocks, ready.block_size), f"{ready.folder}\0{ready.rope}")
        self._schedule.costs = Costs(ready.calibration)
        self._steps_ahead = ready.steps_in_flight
        self._ready = True
        self._tell_costs()

    def _lose_worker(self) -> None:
        """The worker is gone: everything that had started has failed; what had not keeps its place."""
        self._ready = False
        for sequence in self._schedule.forget_steps():
            self._say_released(sequence)
        for sequence in self._schedule.sequences:
            if sequence.started:
                self._fail(sequence, errors.worker_failed(0))

    def _audit(self, request: AuditRequest) -> None:
        self._schedule.audit()
        pool = self._schedule.pool
        self._reaper.tell(
            AuditReport(request.at, pool.free, pool.cached, pool.used, pool.total, self._schedule.requests)
        )

    def _show(self, look: Look) -> None:
        """To whoever watches: nothing that is planned depends on it."""
        assert self._gallery is not None, "looked at by nobody"
        pool, now = self._schedule.pool, self._clock()
        requests = tuple(seen_sequence(one, now) for one in self._schedule.sequences)
        coefficients = tuple(self._schedule.costs.coefficients)
        seen = SchedulerSeen(look.at, pool.free, pool.cached, pool.used, pool.total, coefficients, requests)
        self._gallery.tell(seen)
