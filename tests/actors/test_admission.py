"""Admission, messages in and messages out: straight through, into the waiting room, or refused; let in by credits.

The bounds are in `test_admission_bounds.py`, the order in `test_admission_order.py`, what those who wait are told in
`test_admission_places.py`, and the ways out in `test_admission_ends.py`.
"""

from actors.actor import Fate, Mailbox
from actors.admission import Admission, AdmissionInbox
from actors.directory import Directory
from actors.metrics import Metrics
from actors.scheduling.bounds import Bounds
from actors.scheduling.pace import PACE_SEEN
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    Accepted,
    CostsLearned,
    Credit,
    Drain,
    Ended,
    Enqueue,
    Moved,
    Refused,
    Released,
    Sweep,
    Watch,
)
from tests.actors.recorders import HandClock, Recorder, enqueue

PLENTY = 1_000_000
"""So many tokens that a credit is one in number alone."""
SECOND_A_TOKEN = CostsLearned((0.0, 1.0, 0.0, 0.0, 0.0, 0.0), output_tokens=1.0)
"""A prompt of so many tokens is so many seconds of work, and its answer takes no time."""


class Room:
    """Admission among recorders. Connections 1 to 3 are listed; whoever waits hears at once of a new place."""

    def __init__(
        self,
        *,
        places: int = 4,
        work_s: float = 300.0,
        wait_s: float = 60.0,
        credit: int = 0,
        tokens: int = PLENTY,
        max_running: int = 64,
        costs: CostsLearned | None = None,
        tell_every_s: float = 0.0,
        has_worker: bool = True,
    ) -> None:
        self.clock = HandClock()
        self.scheduler = Recorder()
        self.tokeniser, self.detokeniser, self.reaper = (Recorder() for _ in range(3))
        self.connections = {number: Recorder() for number in (1, 2, 3)}
        self.connection = self.connections[1]
        self.directory = Directory()
        for number, box in self.connections.items():
            self.directory.add(box.address, number)
        self.metrics = Metrics()
        self.mailbox: Mailbox[AdmissionInbox] = Mailbox(self.clock, 16)
        self.actor = Admission(
            self.mailbox,
            bounds=Bounds(places, work_s, wait_s),
            max_running=max_running,
            chunk_tokens=512,
            scheduler=self.scheduler.address,
            tokeniser=self.tokeniser.address,
            detokeniser=self.detokeniser.address,
            reaper=self.reaper.address,
            directory=self.directory,
            metrics=self.metrics,
            clock=self.clock,
            tell_every_s=tell_every_s,
            has_worker=has_worker,
        )
        if costs is not None:
            self.say(costs)
        if credit:
            self.say(Credit(credit, tokens))

    def say(self, *messages: AdmissionInbox) -> None:
        for message in messages:
            self.actor.handle(message)

    def grant(self, granted: int, tokens: int = PLENTY) -> None:
        """So many may have come in all."""
        self.say(Credit(granted, tokens))

    def sweep(self, after_s: float = 0.0) -> None:
        self.say(Sweep(self.clock.pass_(after_s)))

    def keep_pace(self, every_s: float, tokens: int) -> None:
        """A prompt of so many tokens is let in and done with every so often, until that is what the room expects."""
        for number in range(PACE_SEEN + 1):
            self.say(enqueue(f"paced {number}", tokens, max_output_tokens=0))
            self.clock.pass_(every_s)
            self.grant(number + 1)
            self.say(Released(f"paced {number}", self.clock(), computed_tokens=tokens))
        for box in (*self.connections.values(), self.scheduler, self.reaper):
            box.take_all()

    @property
    def let_in(self) -> list[str]:
        return [message.request for message in self.scheduler.of(Enqueue)]

    @property
    def released(self) -> list[str]:
        """Those whose life ended here."""
        return [message.request for message in self.reaper.of(Released)]

    @property
    def refusals(self) -> dict[str, WireError]:
        """The errors of those refused, on whatever connection."""
        boxes = self.connections.values()
        return {refused.request: refused.error for box in boxes for refused in box.of(Refused)}

    @property
    def accepted(self) -> list[tuple[str, int, float | None]]:
        """Request, place and estimate, as connection 1 was told them."""
        return [(told.request, told.position, told.estimated_wait_s) for told in self.connection.of(Accepted)]

    @property
    def moved(self) -> list[tuple[str, int, float | None]]:
        return [(told.request, told.position, told.estimated_wait_s) for told in self.connection.of(Moved)]

    def figure(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def waiting(self) -> int:
        return int(self.figure("rota_requests", state="queued") or 0)


def test_its_fate_is_the_worker() -> None:
    assert Admission.fate is Fate.WORKER


def test_with_a_credit_a_request_goes_straight_to_the_scheduler() -> None:
    room = Room(credit=1)
    room.say(enqueue("r", 5, max_output_tokens=7, deadline_at=200.0))
    assert room.connection.heard == [Accepted("r", 5, 7, at=100.0, position=0)]
    assert room.let_in == ["r"]
    assert room.reaper.heard == [Watch("r", 160.0, 200.0)], "it may still wait at the scheduler"
    assert room.waiting() == 0


def test_without_a_credit_it_waits_in_its_place() -> None:
    room = Room(wait_s=30.0)
    room.say(enqueue("a"), enqueue("b"))
    assert [(request, position) for request, position, _ in room.accepted] == [("a", 1), ("b", 2)]
    assert room.let_in == []
    assert room.reaper.heard == [Watch("a", 130.0, None), Watch("b", 130.0, None)]
    assert room.waiting() == 2


def test_credits_let_in_the_first_of_those_who_wait_and_the_others_move_up() -> None:
    room = Room()
    room.say(*(enqueue(name) for name in "abcd"))
    room.grant(2)
    assert room.let_in == ["a", "b"]
    assert [(request, position) for request, position, _ in room.moved] == [("c", 1), ("d", 2)]
    room.grant(3)
    assert room.let_in == ["a", "b", "c"]
    assert [request for request, _, _ in room.moved][2:] == ["d"]


def test_the_scheduler_is_told_since_when_it_has_waited() -> None:
    room = Room()
    room.clock.pass_(1.0)
    room.say(enqueue("r", received_at=100.0))
    room.clock.pass_(30.0)
    room.grant(1)
    assert room.scheduler.heard == [enqueue("r", received_at=100.0, accepted_at=101.0)]


def test_whoever_comes_later_does_not_pass_those_who_wait() -> None:
    room = Room()
    room.say(enqueue("a"))
    room.grant(1)
    room.grant(2)
    room.say(enqueue("b"), enqueue("c"))
    assert room.let_in == ["a", "b"]
    assert [position for _, position, _ in room.accepted] == [1, 0, 1]


def test_without_places_to_wait_in_there_is_still_the_straight_way() -> None:
    room = Room(places=0, credit=1)
    room.say(enqueue("a"), enqueue("b"))
    assert room.let_in == ["a"]
    assert list(room.refusals) == ["b"]


def test_while_draining_nothing_is_accepted_and_whoever_waits_stays() -> None:
    room = Room()
    room.say(enqueue("a"), Drain(110.0), enqueue("b"))
    room.grant(1)
    assert room.connection.of(Refused) == [Refused("b", errors.shutting_down())]
    assert room.let_in == ["a"]
    assert room.released == ["b"]
    assert room.connection.of(Ended) == []


# --- credits ---


def test_a_credit_is_a_running_total_and_never_shrinks() -> None:
    room = Room(credit=2, tokens=100)
    room.say(enqueue("a"), Credit(2, 100), Credit(1, 100), Credit(2, 1), enqueue("b"), enqueue("c"))
    assert room.let_in == ["a", "b"]


def test_the_request_that_goes_over_in_tokens_goes_in_and_the_next_does_not() -> None:
    room = Room(credit=9, tokens=10)
    room.say(enqueue("a", 6), enqueue("over", 8), enqueue("next", 2))
    assert room.let_in == ["a", "over"]
    room.grant(9, tokens=14)
    assert room.let_in == ["a", "over"], "fourteen have been handed over"
    room.grant(9, tokens=15)
    assert room.let_in == ["a", "over", "next"]


def test_a_prompt_longer_than_all_that_is_granted_still_goes_in() -> None:
    room = Room(credit=9, tokens=1)
    room.say(enqueue("long", 500))
    assert room.let_in == ["long"]


def test_tokens_without_a_place_let_nobody_in() -> None:
    room = Room(credit=1)
    room.say(enqueue("a"), enqueue("b"))
    room.grant(1, tokens=2 * PLENTY)
    assert room.let_in == ["a"]


def test_what_was_granted_in_one_kind_waits_for_the_other() -> None:
    room = Room(credit=5, tokens=4)
    room.say(enqueue("a", 4), enqueue("b", 4), enqueue("c", 4))
    assert room.let_in == ["a"]
    room.grant(2, tokens=100)
    assert room.let_in == ["a", "b", "c"], "five were granted before"


# --- the figures ---


def test_the_work_that_waits_is_shown() -> None:
    room = Room(costs=SECOND_A_TOKEN)
    room.say(enqueue("a", 3), enqueue("b", 5))
    assert room.figure("rota_waiting_work_seconds") == 8.0
    room.grant(1)
    assert room.figure("rota_waiting_work_seconds") == 5.0
    room.grant(2)
    assert room.figure("rota_waiting_work_seconds") == 0.0
    assert room.waiting() == 0
