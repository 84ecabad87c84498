"""One scenario under one policy, in virtual time: the engine's own admission and schedule, on a device that is a sum.

Knows who asks when, the order of things that happen at one moment, and how long a step takes. Decides nothing: who is
refused, who waits and who is let in is `Admission`, who runs is `Schedule`. There is no text and no socket, so nobody
reads slowly and nobody leaves (`left_out`).
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from msgspec import Struct

from actors.actor import Address, Mailbox
from actors.admission import Admission, AdmissionInbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.scheduler import LEARNED_EVERY
from actors.scheduling.blocks import BlockPool
from actors.scheduling.bounds import Bounds
from actors.scheduling.costs import Costs, work_of
from actors.scheduling.policies import PolicyName, policy_named
from actors.scheduling.schedule import Schedule
from actors.scheduling.sequence import Sequence
from actors.simulator.coasting import coast
from actors.simulator.device import Device
from actors.simulator.hardware import Hardware
from actors.simulator.request import ANSWER_TOKEN, Request, requests_of
from protocol import errors
from protocol.messages import (
    Control,
    Credit,
    Data,
    Ended,
    Enqueue,
    Expire,
    Merging,
    Refused,
    Released,
    SampledToken,
    Sampling,
    Step,
    StepDone,
    Watch,
)
from protocol.people import people
from protocol.scenario import Scenario
from protocol.timeline import Timeline, Turn

_TOKEN = SampledToken(ANSWER_TOKEN)
_SAMPLING = Sampling()


class Setup(Struct, frozen=True, kw_only=True):
    """What a run is made of, beside the scenario and the policy. The bounds are those of `rota serve`."""

    hardware: Hardware
    max_running: int
    chunk_tokens: int
    max_waiting: int = 256
    max_wait_s: float = 60.0
    max_waiting_work_s: float = 300.0
    seed: int = 0
    most_turns: int = 0
    """Steps are kept as turns until they hold so many parts; what comes later is counted but not kept."""


def setup_for(hardware: Hardware) -> Setup:
    """As this hardware would be served by default."""
    return Setup(hardware=hardware, max_running=hardware.max_running, chunk_tokens=hardware.chunk_tokens)


class _Ear(Mailbox[object]):
    """A mailbox whose messages are heard at once: what is said takes no time here."""

    def __init__(self, hear: Callable[[object], None]) -> None:
        super().__init__(lambda: 0.0, 0)
        self._hear = hear

    def offer(self, message: Data) -> bool:
        self._hear(message)
        return True

    def tell(self, message: Control | Merging) -> None:
        self._hear(message)


class Simulation:
    """Runs once. `progress` is told now and then how many requests have ended.

    With `most_missed` the run is given up as soon as more requests than that have missed a target: `timeline` is then
    only of those who had ended, which is enough to know that it was too much.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: PolicyName,
        setup: Setup,
        *,
        most_missed: float = math.inf,
        progress: Callable[[int], None] = lambda ended: None,
    ) -> None:
        self._policy = policy
        self._setup = setup
        self._most_missed = most_missed
        self._progress = progress
        hardware = setup.hardware
        self._device = Device(hardware, setup.seed)
        self._most_rows = min(setup.max_running, hardware.max_step_tokens)
        self._now = 0.0
        self._requests = requests_of(people(scenario))
        self._named = {request.name: request for request in self._requests}
        self._clients: dict[str, int] = {}
        self._coming: list[tuple[float, int]] = []
        self._patience: deque[tuple[float, str]] = deque()
        self._for_admission: deque[AdmissionInbox] = deque()
        self._directory = Directory()
        self._schedule = Schedule(
            BlockPool(hardware.blocks, hardware.block_size),
            policy_named(policy, setup.chunk_tokens),
            hardware.max_step_tokens,
            setup.max_running,
            costs=Costs(hardware.calibration()),
        )
        self._admission = self._an_admission()
        self._granted = Credit(0, 0)
        self._unstarted: dict[str, Sequence] = {}
        self._step: tuple[float, StepDone] | None = None
        self._steps = 0
        self._turns: list[Turn] = []
        self._turn_parts = 0
        self._ended = 0
        self._missed = 0

    @property
    def missed(self) -> int:
        """How many have ended without having met their targets; counted only where `most_missed` is given."""
        return self._missed

    @property
    def steps(self) -> int:
        """How many have been run."""
        return self._steps

    def _an_admission(self) -> Admission:
        def address(hear: Callable[[object], None]) -> Address[object]:
            return Address(cast(Mailbox[object], _Ear(hear)))

        def nobody(message: object) -> None:
            """No text is made here, and what was refused is forgotten by itself."""

        self._client_address = address(self._hear_as_client)
        return Admission(
            Mailbox(lambda: self._now, 1),
            bounds=Bounds(self._setup.max_waiting, self._setup.max_waiting_work_s, self._setup.max_wait_s),
            max_running=self._setup.max_running,
            chunk_tokens=self._setup.chunk_tokens,
            scheduler=address(self._hear_as_scheduler),
            tokeniser=address(nobody),
            detokeniser=address(nobody),
            reaper=address(self._hear_as_reaper),
            directory=self._directory,
            metrics=Metrics(),
            clock=lambda: self._now,
            tell_every_s=math.inf,
            has_worker=True,
        )

    # --- what admission says ---

    def _hear_as_scheduler(self, message: object) -> None:
        match message:
            case Enqueue():
                self._unstarted[message.request] = self._schedule.add(message, self._now)
            case Expire():
                sequence = self._schedule.get(message.request)
                if sequence is not None and not sequence.started:
                    waited_ms = (self._now - sequence.accepted_at) * 1e3
                    self._end(self._named[message.request], errors.deadline_exceeded(waited_ms, None).code)
                    self._schedule.end(sequence, "failed")
                    self._release(sequence)

    def _hear_as_reaper(self, message: object) -> None:
        if isinstance(message, Watch):
            self._patience.append((message.wait_until, message.request))

    def _hear_as_client(self, message: object) -> None:
        match message:
            case Refused():
                self._end(self._named[message.request], message.error.code)
            case Ended():
                assert message.error is not None, "admission ends only what has failed"
                self._end(self._named[message.request], message.error.code)

    # --- the run ---

    def run(self) -> Timeline:
        """Until everybody has ended."""
        for request in self._requests:
            if not request.waits_for:
                self._arrives(request, request.at_s)
        self._for_admission.append(self._schedule.learned())
        while self._missed <= self._most_missed:
            self._settle()
            if self._step is None:
                self._coast()
                self._plan()
            if not self._next_moment():
                self._never_sent()
                break
        self._progress(self._ended)
        return Timeline(self._policy, tuple(request.life() for request in self._requests), tuple(self._turns))

    def _next_moment(self) -> bool:
        """Go on to whatever happens next. False when nothing does."""
        step_s = self._step[0] if self._step is not None else math.inf
        moment = min(step_s, self._next_from_outside())
        if moment == math.inf:
            return False
        self._now = moment
        if step_s == moment:
            self._complete()
        while self._coming and self._coming[0][0] <= moment:
            self._ask(self._requests[heapq.heappop(self._coming)[1]])
        while self._patience and self._patience[0][0] <= moment:
            _, name = self._patience.popleft()
            if self._waits(name):
                self._for_admission.append(Expire(name, moment, waiting=True))
        return True

    def _next_from_outside(self) -> float:
        """When somebody comes, or loses patience."""
        while self._patience and not self._waits(self._patience[0][1]):
            self._patience.popleft()
        coming_s = self._coming[0][0] if self._coming else math.inf
        return min(coming_s, self._patience[0][0]) if self._patience else coming_s

    def _waits(self, name: str) -> bool:
        """Whether it waits for its first step."""
        request = self._named[name]
        return request.started_s is None and not request.outcome

    def _never_sent(self) -> None:
        """What was to come after the first token or the answer of one that ended without: it never comes."""
        last_s = max((request.ended_s or 0.0 for request in self._requests), default=0.0)
        for request in self._requests:
            if not request.outcome:
                assert request.waits_for, f"{request.name} waits for ever"
                request.arrived_s = request.ended_s = last_s
                request.outcome = "not_sent"
                self._ended += 1

    def _settle(self) -> None:
        """Admission and schedule tell each other what they have to, until neither has more to say."""
        while True:
            while self._for_admission:
                self._admission.handle(self._for_admission.popleft())
            credit = self._schedule.credit(self._setup.max_running)
            if credit.granted <= self._granted.granted and credit.tokens <= self._granted.tokens:
                return
            self._granted = credit
            self._admission.handle(credit)

    # --- requests ---

    def _arrives(self, request: Request, at_s: float) -> None:
        request.arrived_s = at_s
        heapq.heappush(self._coming, (at_s, request.index))

    def _ask(self, request: Request) -> None:
        """As the tokeniser does: what cannot fit into the context does not get as far as admission."""
        person, most = request.person, self._setup.hardware.max_context
        if request.prompt_tokens + request.output_tokens > most:
            error = errors.context_length_exceeded(request.prompt_tokens, request.output_tokens, most)
            self._end(request, error.code)
            return
        connection = self._clients.setdefault(request.client, len(self._clients))
        self._directory.add(self._client_address, connection)
        chance = random.Random(f"{self._setup.seed} {request.index}")
        self._for_admission.append(
            Enqueue(
                request.name,
                connection,
                "",
                tokens=request.tokens(chance),
                sampling=_SAMPLING,
                max_output_tokens=request.output_tokens,
                end_tokens=(),
                received_at=self._now,
                service_tier=person.service_tier,
                ttft_target_s=person.ttft_target_s,
                itl_target_s=person.itl_target_s,
            )
        )

    def _first_token(self, request: Request) -> None:
        """Who waited for it may come."""
        for dependent in request.dependents:
            dependent.waits_for -= 1
            if not dependent.waits_for:
                self._arrives(dependent, self._now + dependent.at_s)

    def _end(self, request: Request, outcome: str) -> None:
        assert not request.outcome, f"{request.name} ended twice"
        request.outcome = outcome
        request.ended_s = self._now
        self._ended += 1
        if request.following is not None and outcome == "length":
            self._arrives(request.following, self._now + request.following.at_s)
        if self._most_missed < math.inf and not request.life().met:
            self._missed += 1
        if self._ended % 64 == 0:
            self._progress(self._ended)

    def _release(self, sequence: Sequence) -> None:
        """As the scheduler tells admission."""
        computed = sequence.prompt_tokens - sequence.cached_tokens if sequence.started else 0
        self._for_admission.append(Released(sequence.request, self._now, None, computed, sequence.output_tokens))

    # --- steps ---

    def _coast(self) -> None:
        """The steps that need no planning."""
        until, rows = self._next_from_outside(), self._schedule.sequences
        ends = coast(self._schedule, self._device, _TOKEN.token, self._now, until, self._most_rows, self._coasted)
        if ends:
            for sequence in rows:
                self._named[sequence.request].token_times.extend(ends)

    def _coasted(self, began_s: float, end_s: float, rows: Iterable[Sequence]) -> None:
        self._now = end_s
        if self._turn_parts < self._setup.most_turns:
            self._keep_turn(Turn(began_s, end_s, (), tuple(self._named[one.request].index for one in rows)))
        self._count_step()
        self._settle()

    def _plan(self) -> None:
        step = self._schedule.plan(self._now)
        if step is None:
            return
        took_s, all_s = self._device.look(work_of(step.chunks))
        self._device.ran()
        end_s = self._now + all_s
        chosen = sum([chunk.sampling is not None for chunk in step.chunks])
        self._step = (end_s, StepDone(step.step, (_TOKEN,) * chosen, took_s))
        if self._unstarted:
            for chunk in step.chunks:
                if self._unstarted.pop(chunk.request, None) is not None:
                    self._named[chunk.request].started_s = self._now
        if self._turn_parts < self._setup.most_turns:
            self._keep_turn(self._turn_of(step, end_s))

    def _turn_of(self, step: Step, end_s: float) -> Turn:
        prefills, decodes = [], []
        for chunk in step.chunks:
            index, tokens = self._named[chunk.request].index, len(chunk.tokens) // 4
            if tokens == 1:
                decodes.append(index)
            else:
                prefills.append((index, tokens))
        return Turn(self._now, end_s, tuple(prefills), tuple(decodes))

    def _keep_turn(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._turn_parts += len(turn.prefills) + len(turn.decodes)

    def _complete(self) -> None:
        assert self._step is not None
        _, done = self._step
        self._step = None
        outcome = self._schedule.complete(done, self._now)
        named, now = self._named, self._now
        for row in outcome.rows:
            request = named[row.request]
            times = request.token_times
            times.append(now)
            if len(times) == 1:
                self._first_token(request)
        for sequence in outcome.ended:
            assert sequence.reason is not None
            request = named[sequence.request]
            request.preemptions = sequence.preemptions
            self._end(request, sequence.reason)
        for sequence in outcome.released:
            self._release(sequence)
        self._count_step()

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps % LEARNED_EVERY == 0:
            self._for_admission.append(self._schedule.learned())
