"""Every clock: what is due is said once, to whom it concerns; and nothing leaks unseen."""

import asyncio

import pytest
from structlog.testing import capture_logs

from actors.actor import Mailbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.reaper import Patience, Reaper, ReaperInbox
from protocol import errors
from protocol.messages import (
    AuditReport,
    AuditRequest,
    CloseConnection,
    ConnectionClosed,
    Detached,
    Drain,
    Drained,
    Expire,
    GraceOver,
    Released,
    Sweep,
    Tick,
    Watch,
    WatchConnection,
    WorkerLost,
)
from tests.actors.recorders import HandClock, Recorder

PATIENCE = Patience(
    tick_s=0.05, sweep_s=0.25, audit_s=5.0, socket_idle_s=600.0, socket_age_s=3600.0, reader_stalled_s=60.0
)
LATER = 1e9
"""A time that does not come."""


class Watchtower:
    """A reaper among recorders. Connections 1 and 2 are listed."""

    def __init__(self, patience: Patience = PATIENCE) -> None:
        self.clock = HandClock()
        self.admission, self.scheduler, self.executor = Recorder(), Recorder(), Recorder()
        self.tokeniser, self.engine = Recorder(), Recorder()
        self.connections = {1: Recorder(), 2: Recorder()}
        self.directory = Directory()
        for number, box in self.connections.items():
            self.directory.add(box.address, number)
        self.metrics = Metrics()
        self.mailbox: Mailbox[ReaperInbox] = Mailbox(self.clock, 1)
        self.actor = Reaper(
            self.mailbox,
            patience=patience,
            admission=self.admission.address,
            scheduler=self.scheduler.address,
            executor=self.executor.address,
            tokeniser=self.tokeniser.address,
            engine=self.engine.address,
            directory=self.directory,
            metrics=self.metrics,
            clock=self.clock,
        )

    def say(self, *messages: ReaperInbox) -> None:
        for message in messages:
            self.actor.handle(message)

    def tick(self, after_s: float = 0.0) -> None:
        self.say(Tick(self.clock.pass_(after_s)))

    def verdicts(self, connection: int = 1) -> list[CloseConnection]:
        return self.connections[connection].of(CloseConnection)


# --- requests ---


def test_patience_and_deadline_are_each_said_once_when_they_are_due() -> None:
    tower = Watchtower()
    tower.say(Watch("r", wait_until=101.0, deadline_at=102.0))
    tower.tick(0.9)
    assert tower.admission.of(Expire) == []
    tower.tick(0.1)
    assert tower.admission.of(Expire) == [Expire("r", 101.0, waiting=True)]
    tower.tick(1.5)
    tower.tick(1.0)
    assert tower.admission.of(Expire)[1:] == [Expire("r", 102.5, waiting=False)]


def test_they_come_in_the_order_in_which_they_are_due() -> None:
    tower = Watchtower()
    tower.say(Watch("late", 103.0, None), Watch("early", LATER, 101.0), Watch("not yet", LATER, None))
    tower.tick(10.0)
    assert [expire.request for expire in tower.admission.of(Expire)] == ["early", "late"]


def test_a_released_request_is_not_expired() -> None:
    tower = Watchtower()
    tower.say(Watch("r", 101.0, 102.0), Released("r", 100.5), Released("unknown", 100.5))
    assert tower.actor.alive == 0
    tower.tick(10.0)
    assert tower.admission.of(Expire) == []


def test_when_the_three_start_anew_nothing_of_theirs_is_watched() -> None:
    tower = Watchtower()
    tower.say(Watch("r", 101.0, 102.0), WorkerLost("a defect", 100.5))
    tower.tick(10.0)
    assert tower.actor.alive == 0
    assert tower.admission.of(Expire) == []


# --- sweeps and audits ---


def test_everyone_sweeps_every_so_often() -> None:
    tower = Watchtower()
    everyone = (tower.admission, tower.scheduler, tower.executor, tower.tokeniser)
    for _ in range(5):
        tower.tick(0.125)
    for box in everyone:
        assert [sweep.at for sweep in box.of(Sweep)] == [100.125, 100.375, 100.625]


def test_the_scheduler_is_audited_every_so_often() -> None:
    tower = Watchtower()
    for _ in range(12):
        tower.tick(1.0)
    assert [request.at for request in tower.scheduler.of(AuditRequest)] == [101.0, 106.0, 111.0]


def report(*requests: str, used: int | None = None, total: int = 8) -> AuditReport:
    held = len(requests) if used is None else used
    return AuditReport(100.0, 8 - held, 0, held, total, requests)


def alarms(tower: Watchtower, *reports: AuditReport) -> list[str]:
    with capture_logs() as logs:
        tower.say(*reports)
    return [entry["event"] for entry in logs]


def test_a_request_nobody_waits_for_is_an_alarm_only_when_two_audits_agree() -> None:
    tower = Watchtower()
    assert alarms(tower, report("r")) == []
    assert alarms(tower, report("r")) == ["audit.requests"]


def test_another_request_in_the_next_audit_is_no_alarm() -> None:
    tower = Watchtower()
    assert alarms(tower, report("r"), report("q"), report(), report("q")) == []


def test_requests_somebody_waits_for_are_no_alarm() -> None:
    tower = Watchtower()
    tower.say(Watch("r", LATER, None))
    assert alarms(tower, report("r"), report("r"), report("r")) == []


def test_blocks_that_do_not_add_up_and_blocks_of_nobody_are_alarms_at_once() -> None:
    tower = Watchtower()
    assert alarms(tower, report(total=9)) == ["audit.blocks"]
    assert alarms(tower, report(used=2)) == ["audit.used"]


# --- sockets ---


def socket(
    connection: int = 1,
    opened_at: float = 100.0,
    active_at: float = 100.0,
    busy: bool = False,
    stalled_since: float | None = None,
) -> WatchConnection:
    return WatchConnection(connection, opened_at, active_at, busy, stalled_since)


@pytest.mark.parametrize(
    ("watch", "after_s", "code", "reason"),
    [
        (socket(busy=True, stalled_since=100.0), 60.0, 1008, "too little was read for 1 minute"),
        (socket(), 600.0, 1000, "idle for 10 minutes"),
        (socket(busy=True), 3600.0, 1001, "a connection lasts 60 minutes"),
    ],
)
def test_a_socket_is_told_to_close_once_and_why(watch: WatchConnection, after_s: float, code: int, reason: str) -> None:
    tower = Watchtower()
    tower.say(watch)
    tower.tick(after_s)
    assert tower.verdicts() == []
    for _ in range(3):
        tower.tick(1.0)
    (verdict,) = tower.verdicts()
    assert (verdict.code, verdict.reason) == (code, reason)
    assert (verdict.error is not None) == (code == 1001), "whoever is cut off is told why"
    assert tower.verdicts(2) == []


def test_a_busy_socket_is_not_idle_and_an_active_one_is_not_either() -> None:
    tower = Watchtower()
    tower.say(socket(1, busy=True), socket(2))
    tower.tick(400.0)
    tower.say(socket(2, active_at=500.0))
    tower.tick(400.0)
    assert tower.verdicts(1) == tower.verdicts(2) == []


def test_a_reader_that_caught_up_is_not_stalled() -> None:
    tower = Watchtower()
    tower.say(socket(busy=True, stalled_since=100.0))
    tower.tick(50.0)
    tower.say(socket(busy=True))
    tower.tick(50.0)
    assert tower.verdicts() == []


def test_a_closed_socket_is_not_watched() -> None:
    tower = Watchtower()
    tower.say(socket(), ConnectionClosed(1))
    tower.tick(10_000.0)
    assert tower.verdicts() == []


# --- drain ---


def test_a_drain_is_done_as_soon_as_nothing_is_left() -> None:
    tower = Watchtower()
    tower.say(Watch("r", LATER, None), socket(1), socket(2), Drain(110.0))
    tower.tick(1.0)
    assert tower.engine.heard == []
    assert tower.verdicts() == []
    tower.say(Released("r", 101.5))
    tower.tick(1.0)
    assert tower.engine.heard == [Drained(102.0)]
    for number in (1, 2):
        (verdict,) = tower.verdicts(number)
        assert (verdict.code, verdict.error) == (1001, errors.stopped_in_the_middle())
    tower.tick(1.0)
    assert tower.engine.heard == [Drained(102.0)]


def test_a_drain_ends_when_its_time_is_over_and_tells_whoever_still_runs() -> None:
    tower = Watchtower()
    tower.say(Watch("r", LATER, None), socket(1, busy=True), Drain(110.0))
    tower.tick(9.9)
    assert tower.engine.heard == []
    tower.tick(0.1)
    assert tower.engine.heard == [Drained(110.0)]
    assert tower.verdicts()[0].error == errors.stopped_in_the_middle()


def test_a_socket_that_is_heard_of_only_after_the_drain_is_told_to_close_too() -> None:
    tower = Watchtower()
    tower.say(socket(1), Drain(110.0), socket(2))
    assert tower.verdicts(2) == []
    tower.tick(1.0)
    assert len(tower.verdicts(1)) == len(tower.verdicts(2)) == 1
    late = Recorder()
    tower.directory.add(late.address, 3)
    tower.say(socket(3))
    assert late.heard == [
        CloseConnection(3, 1001, "the server is shutting down", errors.stopped_in_the_middle()),
    ]
    assert tower.engine.heard == [Drained(101.0)], "once"


def test_a_second_drain_can_end_it_now() -> None:
    tower = Watchtower()
    tower.say(Watch("r", LATER, None), Drain(110.0))
    tower.tick(1.0)
    tower.say(Drain(101.0))
    tower.tick()
    assert tower.engine.heard == [Drained(101.0)]


# --- its own life ---


async def test_it_ticks_by_itself_and_measures_how_late_the_loop_is() -> None:
    tower = Watchtower(Patience(tick_s=0.001))
    swept = asyncio.Event()
    hear = tower.executor.tell

    def tell(message: object) -> None:
        hear(message)  # type: ignore[arg-type]
        swept.set()

    tower.executor.tell = tell  # type: ignore[method-assign]
    tower.say(Watch("r", 100.0, None))
    task = asyncio.create_task(tower.actor.run())
    async with asyncio.timeout(10):
        await swept.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert tower.admission.of(Expire) == [Expire("r", 100.0, waiting=True)]


async def test_a_message_it_fails_on_is_lost_and_it_lives_on() -> None:
    tower = Watchtower(Patience(tick_s=1000.0))
    handled = asyncio.Event()
    handle = tower.actor.handle

    def fail_first(message: ReaperInbox) -> None:
        if isinstance(message, Drain):
            raise ValueError("a defect")
        handle(message)
        handled.set()

    tower.actor.handle = fail_first  # type: ignore[method-assign]
    tower.actor.address.tell(Drain(110.0))
    tower.actor.address.tell(Watch("r", LATER, None))
    with capture_logs() as logs:
        task = asyncio.create_task(tower.actor.run())
        async with asyncio.timeout(10):
            await handled.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert tower.actor.alive == 1
    assert [(entry["event"], entry["message"]) for entry in logs] == [("actor.failed", "Drain")]


# --- responses that nobody reads ---


def test_a_response_that_nobody_reads_is_given_up_once_its_time_is_over() -> None:
    tower = Watchtower()
    tower.say(Detached("r", 1, 101.0), Detached("s", 2, 500.0))
    tower.tick(0.9)
    assert tower.connections[1].of(GraceOver) == []
    tower.tick(0.3)
    tower.tick(0.3)
    assert tower.connections[1].of(GraceOver) == [GraceOver("r", 101.2)]
    assert tower.connections[2].of(GraceOver) == []


def test_a_response_that_is_read_again_is_not_given_up() -> None:
    tower = Watchtower()
    tower.say(Detached("r", 1, 101.0), Detached("r", 1, None))
    tower.tick(5.0)
    assert tower.connections[1].of(GraceOver) == []


def test_a_detached_response_of_which_the_reaper_lost_the_news_is_not_kept_for_ever() -> None:
    tower = Watchtower()
    tower.actor.lose(Detached("r", 1, 101.0), RuntimeError())
    assert tower.connections[1].of(GraceOver) == [GraceOver("r", 101.0)]


def test_a_request_of_which_the_reaper_lost_the_news_is_no_leak() -> None:
    tower = Watchtower()
    tower.actor.lose(Watch("r", LATER, None), RuntimeError())
    assert alarms(tower, report("r"), report("r")) == []


def test_what_a_lost_worker_took_with_it_is_waited_for_by_nobody_though_the_reaper_lost_the_news() -> None:
    tower = Watchtower()
    tower.say(Watch("r", LATER, None))
    tower.actor.lose(WorkerLost("it is gone", 100.0), RuntimeError())
    assert alarms(tower, report("r"), report("r")) == ["audit.requests"]
