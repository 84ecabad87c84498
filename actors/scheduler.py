"""The scheduler: owns sequences, block tables and the block pool; says what each step runs and when blocks are freed.

A thin shell around `scheduling/schedule.py`: it turns messages into calls and results into messages. Knows nothing of
sockets, text or tensors.
"""

from functools import partial
from typing import ClassVar, assert_never

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import Costs
from actors.scheduling.policy import Policy
from actors.scheduling.reading import Reading
from actors.scheduling.schedule import Outcome, Schedule
from actors.scheduling.seen import seen_sequence
from actors.scheduling.sequence import Sequence, State
from actors.tombstones import Tombstones
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
    Sweep,
    TokenRow,
    Tokens,
    TokensTaken,
    WorkerLost,
)

LEARNED_EVERY = 16
"""Steps between two accounts of their costs to admission."""
SchedulerInbox = (
    Enqueue
    | Cancel
    | SetPaused
    | Expire
    | FinishStream
    | StepDone
    | TokensTaken
    | ModelReady
    | WorkerLost
    | Sweep
    | AuditRequest
    | Look
)


class Scheduler(Actor[SchedulerInbox]):
    """Plans a step whenever the executor has room for one and anything can run.

    `steps_ahead` steps may be in flight (1: the next one is planned when the last one's result is in). At most
    `tokens_ahead` steps' tokens wait for the detokeniser; past that no step is planned, so its lane is never full.
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
        admission: Address[Credit | CostsLearned | Released],
        executor: Address[Step],
        detokeniser: Address[Tokens | CloseStream],
        tokeniser: Address[Forget],
        reaper: Address[Released | AuditReport],
        directory: Directory,
        metrics: Metrics,
        clock: Clock,
        steps_ahead: int = 1,
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
        self._steps_ahead = steps_ahead
        self._tokens_ahead = tokens_ahead
        self._schedule = Schedule(BlockPool(0, 1), policy, max_step_tokens, max_running)
        self._ready = False
        self._tombstones = Tombstones()
        self._impatient = Tombstones()
        """Whose patience to wait ended before they had come."""
        self._granted = Credit(0, 0)
        self._steps_since_told = 0
        self._tokens_sent = 0
        self._tokens_taken = 0
        self._preemptions_counted = 0
        self._unstarted: dict[RequestId, Sequence] = {}
        self._reading = Reading()
        self._ends_to_say: list[tuple[RequestId, FinishReason]] = []
        self._show_gauges()

    def handle(self, message: SchedulerInbox) -> None:
        match message:
            case Enqueue():
                self._enqueue(message)
            case Cancel():
                sequence = self._schedule.get(message.request)
                if sequence is None:
                    self._tombstones.bury(message.request, self._clock())
                else:
                    sequence.cancelled_at = message.at
                    self._detokeniser.tell(CloseStream(message.request))
                    self._end(sequence, "cancelled")
            case SetPaused():
                sequence = self._schedule.get(message.request)
                if sequence is not None:
                    self._schedule.set_paused(sequence, message.paused, self._clock())
            case Expire():
                sequence = self._schedule.get(message.request)
                if sequence is not None:
                    self._expire(sequence, message.waiting)
                elif message.waiting:
                    self._impatient.bury(message.request, self._clock())
            case FinishStream():
                sequence = self._schedule.get(message.request)
                if sequence is not None:
                    self._end(sequence, "stop_text")
            case StepDone():
                self._metrics.step.observe(message.took_s)
                self._settle(self._schedule.complete(message, self._clock()))
                self._say_read()
                self._learn()
            case TokensTaken():
                # More than was sent: it is about the scheduler that was here before this one.
                if message.step <= self._tokens_sent:
                    self._tokens_taken = max(self._tokens_taken, message.step)
            case ModelReady():
                self._open(message)
            case WorkerLost():
                self._lose_worker()
            case Sweep():
                self._tombstones.sweep(message.at)
                self._impatient.sweep(message.at)
            case AuditRequest():
                self._audit(message)
            case Look():
                self._show(message)
                return
            case _:
                assert_never(message)
        self._turn()

    # --- coming and going ---

    def _enqueue(self, enqueue: Enqueue) -> None:
        now = self._clock()
        sequence = self._schedule.add(enqueue, now)
        self._unstarted[enqueue.request] = sequence
        if self._tombstones.rises(enqueue.request):
            sequence.cancelled_at = now
            self._end(sequence, "cancelled")
        elif enqueue.deadline_at is not None and now >= enqueue.deadline_at:
            # Its `Expire` may have overtaken it and found nobody here.
            self._expire(sequence, waiting=False)
        elif self._impatient.rises(enqueue.request):
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
            self._ends_to_say.append((sequence.request, "deadline"))

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
        if self._ends_to_say and self._tokens_under_way_fit():
            self._send_tokens(())
        while self._ready and self._schedule.steps_in_flight < self._steps_ahead and self._tokens_under_way_fit():
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

    def _tokens_under_way_fit(self) -> bool:
        """Whether one more `Tokens` can be sent beside those that the steps in flight will bring."""
        under_way = self._tokens_sent - self._tokens_taken + self._schedule.steps_in_flight
        return under_way < self._tokens_ahead

    def _give_up_unstarted(self, now: float) -> None:
        """Before anything starts: is there still time for its first token before its deadline?"""
        for sequence in list(self._unstarted.values()):
            if sequence.deadline_at is not None:
                takes = self._schedule.first_token_s(sequence, sequence.deadline_at - now)
                if now + takes > sequence.deadline_at:
                    deadline_ms = (sequence.deadline_at - sequence.received_at) * 1e3
                    estimate_ms = (now + takes - sequence.received_at) * 1e3
                    self._fail(sequence, errors.deadline_unreachable(estimate_ms, deadline_ms))

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
        for sequence in outcome.released:
            self._say_released(sequence)
        self._ends_to_say += [(one.request, "prefilled") for one in outcome.ended if one.reason == "prefilled"]
        if outcome.rows:
            self._send_tokens(outcome.rows)

    def _send_tokens(self, rows: tuple[TokenRow, ...]) -> None:
        """To the detokeniser, with the ends that are not tokens: they must not overtake the tokens before them."""
        self._tokens_sent += 1
        taken = self._detokeniser.offer(Tokens(self._tokens_sent, self._clock(), rows, tuple(self._ends_to_say)))
        assert taken, "the detokeniser's lane holds every step whose tokens may be under way"
        self._ends_to_say.clear()

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

    def _show_gauges(self) -> None:
        """What is counted when somebody asks, not after every message: all sequences are looked at."""
        for state, blocks in (
            ("free", lambda: self._schedule.pool.free),
            ("cached", lambda: self._schedule.pool.cached),
            ("used", lambda: self._schedule.pool.used),
        ):
            self._metrics.kv_blocks.labels(state).set_function(blocks)
        self._metrics.queued_at(self.name, partial(self._living, State.QUEUED))
        self._metrics.paused.set_function(lambda: sum(sequence.paused for sequence in self._schedule.sequences))
        for life in (State.PREFILLING, State.DECODING, State.PREEMPTED):
            self._metrics.requests.labels(life.value).set_function(partial(self._living, life))

    def _living(self, life: State) -> int:
        return sum(sequence.state is life for sequence in self._schedule.sequences)
