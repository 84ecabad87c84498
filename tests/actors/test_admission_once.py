"""Whatever happens, everyone who came is handed over or released exactly once, within the credits."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages import (
    Accepted,
    Cancel,
    CloseStream,
    CostsLearned,
    Credit,
    Drain,
    Ended,
    Enqueue,
    Expire,
    Forget,
    Moved,
    Refused,
    Released,
    Watch,
)
from tests.actors.recorders import enqueue
from tests.actors.test_admission import Room

DEADLINES_S = (None, None, 1.0, 5.0, 1000.0)
TARGETS_S = (1.0, 8.0, 1e9)
FROM_CLIENTS = ("come", "come", "come", "early cancel", "cancel", "gone")
FROM_OTHERS = ("credit", "tokens", "release", "costs", "patience", "deadline", "sweep", "pass", "drain")
Act = st.tuples(st.sampled_from(FROM_CLIENTS + FROM_OTHERS), st.integers(0, 99), st.integers(0, 99))


class Life:
    """A room, all who came to it, and who is on the device now."""

    def __init__(self, places: int, max_running: int) -> None:
        self.room = Room(places=places, max_running=max_running, wait_s=20.0, work_s=60.0, tell_every_s=0.25)
        self.most_of_one = max_running - max_running // 16
        self.came: dict[str, Enqueue] = {}
        self.done: set[str] = set()
        self.granted = Credit(0, 0)

    @property
    def inside(self) -> list[str]:
        return [request for request in self.room.let_in if request not in self.done]

    @property
    def waiting(self) -> list[str]:
        gone = {*self.room.let_in, *self.room.released}
        return [request for request in self.came if request not in gone]

    def act(self, what: str, number: int, other: int) -> None:
        room, now = self.room, self.room.clock()
        request = list(self.came)[number % len(self.came)] if self.came else None
        match what:
            case "come":
                self.come(number, other)
            case "early cancel":
                room.say(Cancel(f"r{len(self.came)}", now))
                self.come(number, other)
            case "credit":
                self.grant(number % 3, 0)
            case "tokens":
                self.grant(0, number)
            case "release" if self.inside:
                self.release(self.inside[number % len(self.inside)], number, other)
            case "sweep":
                room.sweep()
            case "pass":
                room.clock.pass_(number / 20)
            case "costs":
                room.say(CostsLearned((0.01, number / 99, 0.0, 0.0, other / 999, 0.0), 1.0 + other))
            case "gone" if number < 25:
                room.directory.remove(3)
            case "drain" if number < 10:
                room.say(Drain(1e6))
            case "cancel" if request is not None:
                room.say(Cancel(request, now))
            case "patience" if request is not None:
                room.say(Expire(request, now, waiting=True))
            case "deadline" if request is not None and self.came[request].deadline_at is not None:
                room.say(Expire(request, now, waiting=False))
            case _:
                pass

    def come(self, number: int, other: int) -> None:
        now = self.room.clock()
        deadline_s = DEADLINES_S[other % 5]
        request = enqueue(
            f"r{len(self.came)}",
            1 + number % 12,
            connection=1 + other % 3,
            received_at=now,
            deadline_at=None if deadline_s is None else now + deadline_s,
            ttft_target_s=TARGETS_S[number % 3],
        )
        self.came[request.request] = request
        self.room.say(request)

    def grant(self, number: int, tokens: int) -> None:
        self.granted = Credit(self.granted.granted + number, self.granted.tokens + tokens)
        self.room.say(self.granted)

    def release(self, request: str, computed: int, output: int) -> None:
        self.done.add(request)
        self.room.say(Released(request, self.room.clock(), computed_tokens=computed, output_tokens=output))

    def check_credits(self) -> None:
        tokens = [len(self.came[request].tokens) // 4 for request in self.room.let_in]
        assert len(tokens) <= self.granted.granted
        assert not tokens or sum(tokens[:-1]) < self.granted.tokens, "only the last one goes over"
        on_device = Counter(self.came[request].connection for request in self.inside)
        assert max(on_device.values(), default=0) <= self.most_of_one
        if len(tokens) < self.granted.granted and sum(tokens) < self.granted.tokens:
            waiting = {self.came[request].connection for request in self.waiting}
            assert all(on_device[one] == self.most_of_one for one in waiting), "a credit lies idle"

    def check_places(self) -> None:
        """Everybody knows the newest place, and no two the same."""
        room = self.room
        assert room.waiting() == len(self.waiting)
        told = {
            message.request: message.position
            for box in room.connections.values()
            for message in box.heard
            if isinstance(message, Accepted | Moved)
        }
        listed = [request for request in self.waiting if self.came[request].connection in room.directory]
        assert len({told[request] for request in listed}) == len(listed)
        assert all(1 <= told[request] <= len(self.waiting) for request in listed)

    def check_ends(self) -> None:
        room = self.room
        assert Counter(room.let_in + room.released) == Counter(list(self.came))
        assert Counter(forgotten.request for forgotten in room.tokeniser.of(Forget)) == Counter(room.released)
        assert Counter(closed.request for closed in room.detokeniser.of(CloseStream)) == Counter(room.released)
        watched = [watch.request for watch in room.reaper.of(Watch)]
        assert len(watched) == len(set(watched))
        assert set(room.let_in) <= set(watched)
        for number, box in room.connections.items():
            mine = Counter(request for request in room.released if self.came[request].connection == number)
            told = Counter(message.request for message in box.heard if isinstance(message, Ended | Refused))
            assert told == Counter(message.request for message in box.of(Released))
            assert told == mine if number in room.directory else told <= mine, "and told so once"


@settings(max_examples=400, deadline=None)
@given(acts=st.lists(Act, max_size=80), places=st.integers(0, 9), max_running=st.sampled_from([1, 16]))
def test_every_request_is_handed_over_or_released_exactly_once(
    acts: list[tuple[str, int, int]], places: int, max_running: int
) -> None:
    life = Life(places, max_running)
    for act in acts:
        life.act(*act)
        assert len(life.waiting) <= places
        life.check_credits()
    life.room.sweep(1.0)
    life.check_places()
    while life.waiting:
        before = len(life.waiting)
        for request in life.inside:
            life.release(request, 1, 1)
        life.grant(1, 1000)
        life.check_credits()
        assert len(life.waiting) < before, "whoever waits is let in in the end"
    assert life.room.waiting() == 0
    assert life.room.figure("rota_waiting_work_seconds") == 0.0
    life.check_ends()
