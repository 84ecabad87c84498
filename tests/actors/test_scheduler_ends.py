"""How requests end at the scheduler: cancels, stop texts, a lost worker. Each is `Released` exactly once."""

from collections.abc import Iterable

import pytest

from protocol import errors
from protocol.messages import (
    Cancel,
    CloseStream,
    Ended,
    FinishStream,
    Forget,
    GiveWay,
    Released,
    SetPaused,
    Sweep,
    TokenRow,
    Unread,
    WorkerLost,
)
from tests.actors.recorders import enqueue, model_ready
from tests.actors.test_scheduler import Desk


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
    (released,) = desk.connection.of(Released)
    assert (released.request, released.at, released.cancelled_at) == ("r", 102.0 if in_flight else 101.0, 100.5)
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


# --- those that nobody reads ---


def test_admission_hears_whom_nobody_reads_and_who_is_read_again() -> None:
    desk = Desk()
    desk.say(SetPaused("early", True, 100.0, unread=True), enqueue("early", 4), enqueue("r", 4))
    desk.say(SetPaused("r", True, 100.0))
    assert desk.admission.of(Unread) == [Unread("early", True)], "whoever is only slow is still there"
    desk.say(SetPaused("r", True, 100.0, unread=True), SetPaused("r", True, 101.0, unread=True))
    desk.say(SetPaused("r", True, 102.0), SetPaused("r", False, 103.0))
    assert desk.admission.of(Unread)[1:] == [Unread("r", True), Unread("r", False)]


def test_one_that_nobody_reads_gives_way_and_says_why() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=9))
    desk.finish(desk.step())
    last = desk.step()
    desk.say(SetPaused("r", True, 100.0, unread=True))
    desk.finish(last)
    desk.say(GiveWay("r"))
    assert desk.ends == [("r", "failed")]
    assert desk.released == ["r"]
    (ended,) = desk.connection.of(Ended)
    assert ended.error is not None
    assert ended.error.message == (
        "Nobody was connected to read this response, and others of its key needed its place. Try again in 1.0 s."
    )
    assert desk.used() == 0
    assert desk.tokeniser.heard == [Forget("r")]


@pytest.mark.parametrize("paused", [True, False])
def test_whoever_has_come_back_meanwhile_does_not_give_way(paused: bool) -> None:
    desk = Desk()
    desk.say(enqueue("r", 4, max_output_tokens=3))
    desk.say(SetPaused("r", True, 100.0, unread=True), SetPaused("r", paused, 101.0), GiveWay("r"), GiveWay("gone"))
    assert desk.ends == []
    desk.say(SetPaused("r", False, 102.0))
    desk.run()
    assert desk.ends == [("r", "length")]
