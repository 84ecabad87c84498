"""The scheduler, messages in and messages out: a request's way through, pauses, and what the detokeniser has not taken.

How requests end is in `test_scheduler_ends.py`, whom it lets come in `test_scheduler_credits.py`, and what it counts,
learns and reports in `test_scheduler_figures.py`.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.actor import Fate, Mailbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.scheduler import Scheduler, SchedulerInbox
from actors.scheduling.costs import Costs, work_of
from actors.scheduling.policies import POLICIES, PolicyName, policy_named
from actors.scheduling.policy import FixedChunk, Policy
from protocol.messages import (
    AuditReport,
    AuditRequest,
    Cancel,
    CostsLearned,
    Credit,
    Ended,
    Enqueue,
    Expire,
    FinishReason,
    Measured,
    Released,
    SampledToken,
    SetPaused,
    Started,
    Step,
    StepDone,
    TokenRow,
    Tokens,
    TokensTaken,
    Work,
)
from tests.actors.recorders import HandClock, Recorder, enqueue, model_ready, tokens_in

DEVICE = Costs(coefficients=(0.0, 0.001, 0.0, 0.0, 0.001, 0.0))
"""A millisecond for each token, read or written."""
CALIBRATION = tuple(
    Measured(work, DEVICE.step_s(work))
    for work in (Work(prefill_tokens=1), Work(prefill_tokens=1000), Work(decode_rows=1), Work(decode_rows=100))
)
"""Says so to the scheduler before its first step."""


class Desk:
    """A scheduler among recorders. Connection 1 is listed.

    Without a `calibration` nothing is known of what steps cost until some have been run.
    """

    def __init__(
        self,
        *,
        ready: bool = True,
        blocks: int = 64,
        max_running: int = 4,
        steps_ahead: int = 1,
        tokens_ahead: int = 32,
        chunk: int = 64,
        policy: Policy | None = None,
        calibration: tuple[Measured, ...] = (),
    ) -> None:
        self.clock = HandClock()
        self.admission, self.tokeniser, self.reaper, self.connection = (Recorder() for _ in range(4))
        self.executor = Recorder(steps_ahead)
        self.detokeniser = Recorder(tokens_ahead)
        directory = Directory()
        directory.add(self.connection.address, 1)
        self.metrics = Metrics()
        self.mailbox: Mailbox[SchedulerInbox] = Mailbox(self.clock, 16)
        self.actor = Scheduler(
            self.mailbox,
            policy=FixedChunk(chunk) if policy is None else policy,
            max_running=max_running,
            max_step_tokens=128,
            admission=self.admission.address,
            executor=self.executor.address,
            detokeniser=self.detokeniser.address,
            tokeniser=self.tokeniser.address,
            reaper=self.reaper.address,
            directory=directory,
            metrics=self.metrics,
            clock=self.clock,
            tokens_ahead=tokens_ahead,
        )
        if ready:
            self.say(model_ready(blocks, calibration=calibration, steps_in_flight=steps_ahead))

    def say(self, *messages: SchedulerInbox) -> None:
        for message in messages:
            self.actor.handle(message)

    def planned(self) -> list[Step]:
        """Steps handed to the executor since the last time."""
        self.executor.waiting_data = 0
        steps = self.executor.of(Step)
        self.executor.heard.clear()
        return steps

    def step(self) -> Step:
        (step,) = self.planned()
        return step

    def finish(self, step: Step, token: int = 7, took_s: float | None = None) -> None:
        """Its result, after just as long as `DEVICE` takes, by the worker's clock. No time passes by this one's."""
        count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
        took_s = DEVICE.step_s(work_of(step.chunks)) if took_s is None else took_s
        self.say(StepDone(step.step, (SampledToken(token),) * count, took_s))

    def run(self, steps: int = 1_000_000) -> None:
        """So many steps, or until nothing can run."""
        for _ in range(steps):
            if not (planned := self.planned()):
                return
            for step in planned:
                self.finish(step)
            self.take_tokens()

    def take_tokens(self) -> list[Tokens]:
        """What the detokeniser has been given, and is done with."""
        sent = self.detokeniser.of(Tokens)
        self.detokeniser.take_all()
        if sent:
            self.say(TokensTaken(sent[-1].step))
        return sent

    @property
    def ends(self) -> list[tuple[str, FinishReason]]:
        return [(ended.request, ended.reason) for ended in self.connection.of(Ended)]

    @property
    def released(self) -> list[str]:
        return [released.request for released in self.connection.of(Released)]

    @property
    def credit(self) -> Credit:
        """The newest running totals that admission was told; 0 before the first."""
        credits = self.admission.of(Credit)
        return credits[-1] if credits else Credit(0, 0)

    @property
    def granted(self) -> int:
        return self.credit.granted

    @property
    def learned(self) -> Costs:
        """What steps cost, as admission was told last."""
        return Costs(coefficients=self.admission.of(CostsLearned)[-1].coefficients)

    def used(self) -> int:
        self.say(AuditRequest(self.clock()))
        return self.reaper.of(AuditReport)[-1].used

    def figure(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def test_its_fate_is_the_worker() -> None:
    assert Scheduler.fate is Fate.WORKER


# --- a request's way through ---


def test_a_request_is_started_answered_ended_and_released() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=2))
    first = desk.step()
    assert [tokens_in(chunk.tokens) for chunk in first.chunks] == [[10, 11, 12, 13]]
    assert desk.connection.heard == [Started("r", 100.0)]
    desk.clock.pass_(1.0)
    desk.finish(first, 7)
    second = desk.step()
    assert [(chunk.start, tokens_in(chunk.tokens)) for chunk in second.chunks] == [(4, [7])]
    desk.finish(second, 8)
    assert desk.planned() == []
    assert desk.ends == [("r", "length")]
    assert desk.detokeniser.of(Tokens) == [
        Tokens(1, 101.0, (TokenRow("r", SampledToken(7)),)),
        Tokens(2, 101.0, (TokenRow("r", SampledToken(8), last=True),)),
    ]
    assert [type(message) for message in desk.connection.heard] == [Started, Ended, Released]
    assert desk.used() == 0


def test_released_is_told_to_connection_admission_and_reaper() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=1))
    desk.finish(desk.step())
    for box in (desk.connection, desk.admission, desk.reaper):
        assert box.of(Released) == [Released("r", 100.0, computed_tokens=4, output_tokens=1)]


def test_an_end_token_stops_the_answer() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=9, end_tokens=(0,)))
    desk.finish(desk.step(), 0)
    assert desk.ends == [("r", "stop")]
    assert desk.planned() == []


def test_started_is_said_once() -> None:
    desk = Desk(chunk=2)
    desk.say(enqueue("r", 4, max_output_tokens=3))
    for _ in range(4):
        desk.finish(desk.step())
    assert len(desk.connection.of(Started)) == 1


def test_nothing_is_planned_before_there_is_a_worker() -> None:
    desk = Desk(ready=False)
    desk.say(enqueue("r", 4))
    assert desk.planned() == []
    assert desk.granted == 0
    desk.say(model_ready())
    assert [chunk.request for chunk in desk.step().chunks] == ["r"]


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_at_most_steps_ahead_are_in_flight(steps_ahead: int) -> None:
    desk = Desk(steps_ahead=steps_ahead, chunk=4)
    desk.say(*(enqueue(name, 4) for name in "abc"))
    steps = desk.planned()
    assert [len(step.chunks) for step in steps] == [1] * steps_ahead
    desk.finish(steps[0])
    desk.take_tokens()
    assert len(desk.planned()) == 1


def test_a_prefill_without_an_answer_ends_in_order_behind_the_tokens() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=0))
    desk.finish(desk.step())
    assert desk.ends == [("r", "prefilled")]
    assert desk.detokeniser.of(Tokens) == [Tokens(1, 100.0, (), (("r", "prefilled"),))]
    assert desk.released == ["r"]


def test_enqueue_is_a_message_of_the_data_lane() -> None:
    desk = Desk()
    with pytest.raises(AssertionError, match="may be refused"):
        desk.actor.address.tell(Enqueue(**{field: getattr(enqueue(), field) for field in Enqueue.__struct_fields__}))


# --- pauses ---


def test_a_paused_request_gets_no_step_until_it_is_resumed() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=9))
    desk.finish(desk.step())
    step = desk.step()
    desk.say(SetPaused("r", True, 100.0))
    desk.finish(step)
    assert desk.planned() == []
    assert desk.used() == 2, "it keeps its blocks"
    desk.clock.pass_(3.0)
    desk.say(SetPaused("r", False, 103.0))
    desk.finish(desk.step())
    desk.say(Cancel("r", 104.0))
    assert desk.connection.of(Ended)[0].stats.paused_s == 3.0


@pytest.mark.parametrize("policy", POLICIES)
def test_when_only_paused_ones_are_left_nothing_is_planned(policy: PolicyName) -> None:
    desk = Desk(blocks=4, policy=policy_named(policy, 64))
    desk.say(enqueue("r", 4))
    step = desk.step()
    desk.say(SetPaused("r", True, 100.0))
    desk.finish(step)
    assert desk.planned() == [], "it is paused between steps"
    desk.say(enqueue("other", range(50, 66), max_output_tokens=0))
    desk.finish(desk.step())
    assert desk.figure("rota_preemptions_total") == 1.0
    assert desk.planned() == [], "it is paused and holds nothing"
    desk.say(SetPaused("r", False, 101.0))
    desk.run()
    assert desk.ends == [("other", "prefilled"), ("r", "length")]


def test_a_pause_that_comes_before_its_request_waits_for_it() -> None:
    desk = Desk()
    desk.say(SetPaused("r", True, 100.0), enqueue("r", 4))
    assert desk.planned() == []
    desk.say(SetPaused("r", False, 101.0))
    assert len(desk.planned()) == 1


def test_a_pause_that_is_over_before_its_request_comes_changes_nothing() -> None:
    desk = Desk()
    desk.say(SetPaused("r", True, 100.0), SetPaused("r", False, 100.5), enqueue("r", 4))
    assert len(desk.planned()) == 1


# --- what the detokeniser has not yet taken ---


def test_no_step_is_planned_while_too_many_tokens_wait_for_the_detokeniser() -> None:
    desk = Desk(tokens_ahead=2)
    desk.say(enqueue("r", 4, max_output_tokens=9))
    desk.finish(desk.step())
    desk.finish(desk.step())
    assert desk.planned() == []
    desk.detokeniser.take_all()
    desk.say(TokensTaken(1))
    assert len(desk.planned()) == 1


def test_what_was_taken_of_an_earlier_schedulers_tokens_makes_no_room() -> None:
    desk = Desk(tokens_ahead=1)
    desk.say(TokensTaken(500), enqueue("r", 4, max_output_tokens=9))
    desk.finish(desk.step())
    assert desk.planned() == []


def test_an_end_that_is_not_a_token_waits_for_room_at_the_detokeniser() -> None:
    desk = Desk(tokens_ahead=1)
    desk.say(enqueue("r", 4, max_output_tokens=9))
    desk.finish(desk.step())
    desk.say(Expire("r", 105.0, waiting=False))
    assert [tokens.ended for tokens in desk.detokeniser.of(Tokens)] == [()]
    assert [tokens.ended for tokens in desk.take_tokens()] == [()]
    assert [tokens.ended for tokens in desk.detokeniser.of(Tokens)] == [(("r", "deadline"),)]


Act = st.sampled_from(["enqueue", "done", "taken", "deadline", "prefill only", "cancel"])


@settings(max_examples=200, deadline=None)
@given(acts=st.lists(Act, max_size=60), tokens_ahead=st.integers(1, 3), steps_ahead=st.integers(1, 2))
def test_the_detokenisers_lane_never_holds_more_than_tokens_ahead(
    acts: list[str], tokens_ahead: int, steps_ahead: int
) -> None:
    desk = Desk(tokens_ahead=tokens_ahead, steps_ahead=steps_ahead, max_running=8, chunk=4)
    flying: list[Step] = []
    names: list[str] = []
    for number, act in enumerate(acts):
        match act:
            case "enqueue" | "prefill only":
                if desk.granted > len(names):
                    names.append(f"r{number}")
                    output = 5 if act == "enqueue" else 0
                    desk.say(enqueue(names[-1], 4, max_output_tokens=output, deadline_at=1e9))
            case "done" if flying:
                desk.finish(flying.pop(0))
            case "taken":
                desk.take_tokens()
            case "deadline" if names:
                desk.say(Expire(names[number % len(names)], 1.0, waiting=False))
            case "cancel" if names:
                desk.say(Cancel(names[number % len(names)], 1.0))
            case _:
                pass
        flying += desk.planned()
    for _ in range(200):
        desk.take_tokens()
        flying += desk.planned()
        if flying:
            desk.finish(flying.pop(0))
    assert desk.detokeniser.most_waiting_data <= tokens_ahead
    assert Counter(desk.released) == Counter(names), "each is released once"
    assert Counter(request for request, _ in desk.ends) == Counter(names)
    assert desk.used() == 0
