"""The scheduler, messages in and messages out. A request is `Released` exactly once, however it ends."""

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from actors.actor import Fate, Mailbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.scheduler import Scheduler, SchedulerInbox
from actors.scheduling.policy import FixedChunk
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    AuditReport,
    AuditRequest,
    Cancel,
    CloseStream,
    Credit,
    Ended,
    Enqueue,
    Expire,
    FinishReason,
    FinishStream,
    Forget,
    Released,
    SampledToken,
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
from tests.actors.recorders import HandClock, Recorder, enqueue, model_ready, tokens_in


class Desk:
    """A scheduler among recorders. Connection 1 is listed."""

    def __init__(
        self,
        *,
        ready: bool = True,
        blocks: int = 64,
        max_running: int = 4,
        steps_ahead: int = 1,
        tokens_ahead: int = 32,
        chunk: int = 64,
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
            policy=FixedChunk(chunk),
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
            steps_ahead=steps_ahead,
            tokens_ahead=tokens_ahead,
        )
        if ready:
            self.say(model_ready(blocks))

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

    def finish(self, step: Step, token: int = 7, took_s: float = 0.01) -> None:
        count = sum(1 for chunk in step.chunks if chunk.sampling is not None)
        self.say(StepDone(step.step, (SampledToken(token),) * count, took_s))

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
    def granted(self) -> int:
        """The newest running total that admission was told; 0 before the first."""
        credits = self.admission.of(Credit)
        return credits[-1].granted if credits else 0

    def used(self) -> int:
        self.say(AuditRequest(self.clock()))
        return self.reaper.of(AuditReport)[-1].used


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
        assert box.of(Released) == [Released("r", 100.0)]


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
    assert len(desk.planned()) == 1


def test_a_prefill_without_an_answer_ends_in_order_behind_the_tokens() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=0))
    desk.finish(desk.step())
    assert desk.ends == [("r", "prefilled")]
    assert desk.detokeniser.of(Tokens) == [Tokens(1, 100.0, (), (("r", "prefilled"),))]
    assert desk.released == ["r"]


# --- the ways to end ---


def sent_after(desk: Desk, request: str) -> Iterable[TokenRow]:
    return [row for tokens in desk.take_tokens() for row in tokens.rows if row.request == request]


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_cancel_while_running_returns_every_block(in_flight: bool) -> None:
    desk = Desk()
    desk.say(enqueue("r", 6, max_output_tokens=9), enqueue("q", 6, max_output_tokens=9))
    desk.finish(desk.step())
    step = desk.step()
    if not in_flight:
        desk.say(SetPaused("r", True, 100.0))
        desk.finish(step)
        step = desk.step()
        assert [chunk.request for chunk in step.chunks] == ["q"]
    desk.take_tokens()
    desk.clock.pass_(1.0)
    desk.say(Cancel("r", 100.5))
    assert desk.detokeniser.of(CloseStream) == [CloseStream("r")]
    assert desk.ends == [("r", "cancelled")]
    assert desk.released == ([] if in_flight else ["r"])
    desk.clock.pass_(1.0)
    desk.finish(step)
    assert not sent_after(desk, "r"), "no text is sent after the cancel"
    assert desk.connection.of(Released) == [Released("r", 102.0 if in_flight else 101.0, 100.5)]
    desk.say(Cancel("r", 103.0))
    assert desk.released == ["r"]
    assert desk.used() == 2, "q's own"


def test_a_cancel_that_overtook_its_request_ends_it_on_arrival() -> None:
    desk = Desk()
    desk.say(Cancel("r", 99.0))
    assert desk.connection.heard == []
    desk.say(enqueue("r", 4))
    assert desk.planned() == []
    assert desk.ends == [("r", "cancelled")]
    assert desk.released == ["r"]
    desk.say(enqueue("q", 4))
    assert [chunk.request for chunk in desk.step().chunks] == ["q"]


async def test_a_cancel_overtakes_its_request_in_the_mailbox_and_still_ends_it() -> None:
    desk = Desk()
    assert desk.actor.address.offer(enqueue("r", 4))
    desk.actor.address.tell(Cancel("r", 99.0))
    for _ in range(2):
        desk.say(await desk.mailbox.take())
    assert desk.planned() == []
    assert desk.released == ["r"]


def test_a_tombstone_is_swept_in_the_end() -> None:
    desk = Desk()
    desk.say(Cancel("r", 99.0))
    desk.say(Sweep(desk.clock.pass_(61.0)), enqueue("r", 4))
    assert len(desk.planned()) == 1


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_deadline_while_running_ends_the_answer_behind_its_tokens(in_flight: bool) -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=9, deadline_at=105.0))
    desk.finish(desk.step())
    step = desk.step()
    if not in_flight:
        desk.say(SetPaused("r", True, 100.0))
        desk.finish(step)
    desk.take_tokens()
    desk.say(Expire("r", 105.0, waiting=False))
    assert desk.ends == [("r", "deadline")]
    assert [(tokens.rows, tokens.ended) for tokens in desk.detokeniser.of(Tokens)] == [((), (("r", "deadline"),))]
    if in_flight:
        assert desk.released == []
        desk.finish(step)
    assert desk.released == ["r"]
    assert not sent_after(desk, "r")
    assert desk.detokeniser.of(CloseStream) == []


def test_a_deadline_that_overtook_its_request_ends_it_on_arrival() -> None:
    desk = Desk()
    desk.clock.pass_(6.0)
    desk.say(Expire("r", 105.5, waiting=False), enqueue("r", 4, deadline_at=105.0))
    assert desk.planned() == []
    check_it_never_ran(desk, errors.deadline_exceeded(6000.0, 5000.0))


def check_it_never_ran(desk: Desk, error: WireError) -> None:
    """`r` failed with this error before a step ran it: everyone is told once, and nothing of it is left."""
    (ended,) = (ended for ended in desk.connection.of(Ended) if ended.request == "r")
    assert (ended.reason, ended.error) == ("failed", error)
    assert desk.detokeniser.of(CloseStream) == [CloseStream("r")]
    assert desk.detokeniser.of(Tokens) == []
    assert desk.tokeniser.heard == [Forget("r")]
    for box in (desk.connection, desk.admission, desk.reaper):
        assert [released.request for released in box.of(Released)] == ["r"]
    desk.say(Expire("r", 200.0, waiting=True), Expire("r", 200.0, waiting=False), Cancel("r", 200.0))
    assert desk.released == ["r"]
    assert "r" not in [started.request for started in desk.connection.of(Started)]


@pytest.mark.parametrize("why", ["there is no worker", "there is no memory", "it is paused"])
@pytest.mark.parametrize(("waiting", "deadline_ms"), [(True, None), (False, 5000.0)])
def test_patience_and_deadline_each_end_one_that_no_step_has_run(
    waiting: bool, deadline_ms: float | None, why: str
) -> None:
    desk = Desk(blocks=4, ready=why != "there is no worker")
    if why == "there is no memory":
        desk.say(enqueue("other", 12, max_output_tokens=4))
    if why == "it is paused":
        desk.say(enqueue("other", 4, max_output_tokens=4))
    desk.clock.pass_(3.0)
    request = enqueue("r", 12, received_at=100.0, accepted_at=101.0, deadline_at=105.0)
    desk.say(request, SetPaused("r", why == "it is paused", 103.0))
    desk.clock.pass_(2.0)
    desk.say(Expire("r", 105.0, waiting))
    check_it_never_ran(desk, errors.deadline_exceeded(4000.0, deadline_ms))
    assert [ended.request for ended in desk.connection.of(Ended)] == ["r"], "and nobody else"


@pytest.mark.parametrize("life", ["in a step", "between steps", "paused", "preempted"])
def test_the_patience_to_wait_does_not_concern_one_that_has_started(life: str) -> None:
    desk = Desk(blocks=4)
    desk.say(enqueue("r", 4, max_output_tokens=4))
    if life != "in a step":
        step = desk.step()
        desk.say(SetPaused("r", life != "between steps", 100.0))
        desk.finish(step)
    if life == "preempted":
        desk.say(enqueue("other", range(50, 66), max_output_tokens=0))
        desk.finish(desk.step())
        assert "rota_preemptions_total 1.0" in desk.metrics.exposition().decode()
    told = len(desk.connection.heard)
    desk.say(Expire("r", 160.0, waiting=True))
    assert desk.connection.heard[told:] == []
    assert desk.detokeniser.of(CloseStream) == []
    desk.say(SetPaused("r", False, 161.0))
    while desk.executor.of(Step):
        desk.finish(desk.step())
    assert desk.ends[-1] == ("r", "length")


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_stop_text_ends_the_request_and_drops_what_is_in_flight(in_flight: bool) -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=9))
    desk.finish(desk.step())
    step = desk.step()
    if not in_flight:
        desk.say(SetPaused("r", True, 100.0))
        desk.finish(step)
    desk.take_tokens()
    desk.say(FinishStream("r", 100.0))
    assert desk.ends == [("r", "stop_text")]
    if in_flight:
        desk.finish(step)
    assert desk.released == ["r"]
    assert desk.take_tokens() == []
    desk.say(FinishStream("r", 100.0))
    assert desk.released == ["r"]


def test_a_stop_text_found_after_the_last_token_changes_nothing() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=1))
    desk.finish(desk.step())
    desk.say(FinishStream("r", 100.0))
    assert desk.ends == [("r", "length")]
    assert desk.released == ["r"]


def test_a_lost_worker_fails_what_had_started_and_keeps_the_place_of_the_rest() -> None:
    desk = Desk(chunk=4)
    desk.say(enqueue("started", 4), enqueue("gone", 4, max_output_tokens=9))
    desk.finish(desk.step())
    step = desk.step()
    desk.say(enqueue("waits", 4), Cancel("gone", 100.0))
    assert desk.released == []
    desk.say(WorkerLost("it ended", 101.0))
    assert desk.ends == [("gone", "cancelled"), ("started", "failed")]
    assert desk.released == ["gone", "started"]
    assert desk.detokeniser.of(CloseStream) == [CloseStream("gone"), CloseStream("started")]
    assert desk.tokeniser.heard == [Forget("started")]
    failed = desk.connection.of(Ended)[-1]
    assert failed.error == errors.worker_failed(0)
    desk.finish(step)
    assert desk.planned() == []
    desk.say(model_ready(blocks=8))
    assert [chunk.request for chunk in desk.step().chunks] == ["waits"]
    assert desk.released == ["gone", "started"]


def test_a_preempted_request_fails_with_its_worker_and_is_released_once() -> None:
    desk = Desk(blocks=5)
    desk.say(enqueue("a", 8, max_output_tokens=12), enqueue("b", 4, max_output_tokens=12))
    while "rota_preemptions_total 0.0" in desk.metrics.exposition().decode():
        desk.finish(desk.step())
        desk.take_tokens()
    desk.say(WorkerLost("it ended", 101.0))
    assert sorted(desk.ends) == [("a", "failed"), ("b", "failed")]
    assert sorted(desk.released) == ["a", "b"]


def test_a_worker_lost_twice_is_lost_once() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4), WorkerLost("it ended", 101.0), WorkerLost("it could not start", 102.0))
    assert desk.released == ["r"]


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


def test_pauses_of_unknown_requests_change_nothing() -> None:
    desk = Desk()
    desk.say(SetPaused("r", True, 100.0), enqueue("r", 4))
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


# --- credits ---


def test_credits_are_a_running_total_of_those_who_may_come() -> None:
    desk = Desk(max_running=2)
    assert desk.granted == 2
    desk.say(enqueue("a", 4, max_output_tokens=1), enqueue("b", 4, max_output_tokens=9))
    assert desk.granted == 2
    desk.finish(desk.step())
    desk.finish(desk.step())
    assert desk.granted == 3


def test_no_credit_is_given_while_something_waits_for_memory() -> None:
    desk = Desk(blocks=4, max_running=3)
    desk.say(
        enqueue("a", 8, max_output_tokens=8),
        enqueue("b", 12, max_output_tokens=2),
        enqueue("c", 4, max_output_tokens=1),
    )
    assert desk.granted == 3
    desk.say(Cancel("c", 100.0))
    assert desk.granted == 3, "a place is free, but b waits for memory"
    for _ in range(8):
        desk.finish(desk.step())
        desk.take_tokens()
    assert desk.ends[-1] == ("a", "length")
    assert desk.granted == 5


def test_no_credit_is_given_while_there_is_no_worker() -> None:
    desk = Desk(max_running=1)
    desk.say(enqueue("a", 4), WorkerLost("it ended", 101.0))
    assert desk.granted == 1
    desk.say(model_ready())
    assert desk.granted == 2


def test_paused_ones_leave_their_places_but_never_more_than_twice_as_many_are_here_as_may_run() -> None:
    desk = Desk(max_running=2)
    desk.say(enqueue("a", 4, max_output_tokens=9), enqueue("b", 4, max_output_tokens=9))
    desk.finish(desk.step())
    assert desk.granted == 2
    desk.say(SetPaused("a", True, 100.0))
    assert desk.granted == 3
    desk.say(SetPaused("b", True, 100.0))
    assert desk.granted == 4
    desk.say(enqueue("c", 4, max_output_tokens=9), enqueue("d", 4, max_output_tokens=9))
    desk.say(SetPaused("c", True, 100.0), SetPaused("d", True, 100.0))
    assert desk.granted == 4, "four are here"
    desk.say(Cancel("a", 101.0))
    assert desk.granted == 5


def test_when_all_who_paused_go_on_a_step_still_runs_no_more_than_may_run() -> None:
    desk = Desk(max_running=2)
    for names in ("ab", "cd"):
        desk.say(*(enqueue(name, 4, max_output_tokens=9) for name in names))
        desk.finish(desk.step())
        last = desk.step()
        desk.say(*(SetPaused(name, True, 100.0) for name in names))
        desk.finish(last)
        desk.take_tokens()
    assert desk.planned() == []
    desk.say(*(SetPaused(name, False, 101.0) for name in "abcd"))
    steps: list[set[str]] = []
    while planned := desk.planned():
        (step,) = planned
        steps.append({chunk.request for chunk in step.chunks})
        desk.finish(step)
        desk.take_tokens()
    assert max(len(names) for names in steps) == 2
    assert {request for request, _ in desk.ends} == set("abcd"), "and all come to their end"


Move = st.sampled_from(["come", "step", "cancel", "pause", "lose"])


@settings(max_examples=200, deadline=None)
@given(moves=st.lists(Move, max_size=80), max_running=st.integers(1, 5), blocks=st.integers(4, 12))
def test_never_more_than_max_running_are_here_or_may_come_or_twice_as_many_when_some_pause(
    moves: list[str], max_running: int, blocks: int
) -> None:
    desk = Desk(max_running=max_running, blocks=blocks)
    flying: list[Step] = []
    names: list[str] = []
    ever_paused = False
    for number, move in enumerate(moves):
        match move:
            case "come" if len(names) < desk.granted:
                names.append(f"r{number}")
                desk.say(enqueue(names[-1], 1 + number % 8, max_output_tokens=number % 8))
            case "step" if flying:
                desk.finish(flying.pop())
                desk.take_tokens()
            case "cancel" if names:
                desk.say(Cancel(names[number % len(names)], 1.0))
            case "pause" if names:
                ever_paused = True
                desk.say(SetPaused(names[number % len(names)], number % 2 == 0, 1.0))
            case "lose":
                flying.clear()
                desk.say(WorkerLost("it ended", 1.0), model_ready(blocks))
            case _:
                pass
        flying += (planned := desk.planned())
        assert all(len(step.chunks) <= max_running for step in planned)
        here = len(names) - len(set(dict(desk.ends)))
        may_come = desk.granted - len(names)
        assert may_come <= max_running, "the lane holds them"
        assert here + may_come <= (2 if ever_paused else 1) * max_running


# --- the audit and the figures ---


def test_the_audit_reports_blocks_and_all_it_still_holds() -> None:
    desk = Desk(blocks=8)
    desk.say(enqueue("a", 6, max_output_tokens=4), enqueue("b", 4, max_output_tokens=4))
    desk.say(Cancel("a", 100.0), AuditRequest(105.0))
    report = desk.reaper.of(AuditReport)[-1]
    assert (report.at, report.free, report.cached, report.used, report.total) == (105.0, 6, 0, 2, 8)
    assert sorted(report.requests) == ["a", "b"]


def test_the_gauges_show_blocks_and_lives() -> None:
    desk = Desk(blocks=8, chunk=8)
    desk.say(enqueue("a", 4, max_output_tokens=4), enqueue("b", range(50, 66), max_output_tokens=4))
    desk.finish(desk.step())
    text = desk.metrics.exposition().decode()
    assert 'rota_kv_blocks{state="used"} 6.0' in text
    assert 'rota_kv_blocks{state="free"} 2.0' in text
    assert 'rota_requests{state="decoding"} 1.0' in text
    assert 'rota_requests{state="prefilling"} 1.0' in text
    assert "rota_step_tokens_sum 13.0" in text, "4 alone, then 1 and a chunk of 8"
    assert "rota_step_seconds_count 1.0" in text
    assert "rota_output_tokens_total 1.0" in text


def test_the_gauges_of_free_cached_and_used_blocks_add_up() -> None:
    desk = Desk(blocks=8)

    def shown() -> dict[str, float | None]:
        value = desk.metrics.registry.get_sample_value
        return {state: value("rota_kv_blocks", {"state": state}) for state in ("free", "cached", "used")}

    assert shown() == {"free": 8, "cached": 0, "used": 0}
    desk.say(enqueue("a", 9, max_output_tokens=1))
    assert shown() == {"free": 5, "cached": 0, "used": 3}
    desk.finish(desk.step())
    assert shown() == {"free": 6, "cached": 2, "used": 0}
    desk.say(enqueue("b", 9, max_output_tokens=1))
    assert shown() == {"free": 5, "cached": 0, "used": 3}
    desk.say(AuditRequest(105.0))
    report = desk.reaper.of(AuditReport)[-1]
    assert (report.free, report.cached, report.used, report.total) == (5, 0, 3, 8)
    desk.finish(desk.step())
    assert shown() == {"free": 6, "cached": 2, "used": 0}
    desk.say(AuditRequest(105.0))
    report = desk.reaper.of(AuditReport)[-1]
    assert (report.free, report.cached, report.used, report.total) == (6, 2, 0, 8)
    desk.say(WorkerLost("it ended", 106.0), model_ready(blocks=10))
    assert shown() == {"free": 10, "cached": 0, "used": 0}


def test_the_end_says_how_much_of_the_prompt_was_found() -> None:
    desk = Desk()
    desk.say(enqueue("a", 9, max_output_tokens=1))
    desk.finish(desk.step())
    desk.say(enqueue("b", 9, max_output_tokens=1))
    step = desk.step()
    assert [(chunk.start, tokens_in(chunk.tokens)) for chunk in step.chunks] == [(8, [18])]
    desk.finish(step)
    desk.say(structs.replace(enqueue("c", 9, max_output_tokens=1), tenant="other"))
    desk.finish(desk.step())
    assert [ended.stats.cached_tokens for ended in desk.connection.of(Ended)] == [0, 8, 0]


@pytest.mark.parametrize("change", [{}, {"folder": "/elsewhere"}, {"rope": "yarn"}])
def test_a_new_worker_finds_nothing_of_the_old_ones_cache(change: dict[str, str]) -> None:
    desk = Desk()
    desk.say(enqueue("a", 9, max_output_tokens=1))
    desk.finish(desk.step())
    desk.say(WorkerLost("it ended", 101.0), structs.replace(model_ready(), **change))
    desk.say(enqueue("b", 9, max_output_tokens=1))
    desk.finish(desk.step())
    assert [ended.stats.cached_tokens for ended in desk.connection.of(Ended)] == [0, 0]


def test_names_tell_models_and_their_rope_settings_apart() -> None:
    readies = [model_ready(), structs.replace(model_ready(), folder="/x"), structs.replace(model_ready(), rope="yarn")]
    desks = [Desk(ready=False) for _ in readies]
    for desk, ready in zip(desks, readies, strict=True):
        desk.say(ready, enqueue("r", 9))
    sequences = [desk.actor._schedule.get("r") for desk in desks]
    assert len({one.names(1, 4)[0] for one in sequences if one is not None}) == 3


def test_queued_counts_who_waits_here_beside_who_waits_in_the_room() -> None:
    desk = Desk(blocks=4)

    def queued() -> float | None:
        return desk.metrics.registry.get_sample_value("rota_requests", {"state": "queued"})

    desk.metrics.count_queued("admission", 3)
    desk.say(enqueue("a", 12, max_output_tokens=2), enqueue("b", 12))
    assert queued() == 4, "a runs, and b waits for memory"
    desk.metrics.count_queued("admission", 0)
    assert queued() == 1
    desk.finish(desk.step())
    desk.finish(desk.step())
    assert desk.ends == [("a", "length")]
    assert queued() == 0


def test_the_time_in_the_queue_includes_the_waiting_room() -> None:
    desk = Desk()
    desk.clock.pass_(30.0)
    desk.say(enqueue("r", 4, max_output_tokens=1, received_at=99.0, accepted_at=100.0))
    desk.finish(desk.step())
    assert desk.connection.of(Ended)[0].stats.queued_s == 30.0


def test_the_time_from_cancel_to_release_is_counted() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4))
    step = desk.step()
    desk.say(Cancel("r", 100.0))
    desk.clock.pass_(0.25)
    desk.finish(step)
    assert "rota_cancel_to_release_seconds_sum 0.25" in desk.metrics.exposition().decode()


def test_enqueue_is_a_message_of_the_data_lane() -> None:
    desk = Desk()
    with pytest.raises(AssertionError, match="may be refused"):
        desk.actor.address.tell(Enqueue(**{field: getattr(enqueue(), field) for field in Enqueue.__struct_fields__}))
