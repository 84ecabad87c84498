"""The waiting room in any order of arrivals, ends, credits and turns, beside a plain account of who is where."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.scheduling.bounds import Bounds
from actors.scheduling.demand import Demand
from actors.scheduling.guests import Guest
from actors.scheduling.waiting_room import WaitingRoom
from protocol.messages import CostsLearned, Credit, Released
from tests.actors.recorders import enqueue


class Guests(RuleBasedStateMachine):
    """Everyone is let in or removed exactly once, and released exactly once after that."""

    @initialize(max_running=st.integers(1, 40), places=st.integers(1, 12))
    def open(self, max_running: int, places: int) -> None:
        self.most_of_one = max(1, max_running - max(1, max_running // 16))
        self.bounds = Bounds(places, 2.0, 60.0)
        self.room = WaitingRoom(self.bounds, Demand(64, max_running), max_running)
        self.now = 100.0
        self.came = 0
        self.waiting: dict[str, Guest] = {}
        self.inside: dict[str, Guest] = {}
        self.let_in = 0
        self.let_in_tokens = 0
        self.granted = Credit(0, 0)

    # --- rules ---

    @rule(
        prompt=st.integers(1, 300),
        output=st.integers(0, 100),
        socket=st.integers(1, 3),
        key=st.sampled_from(["", "k"]),
        ttft_target_s=st.sampled_from([0.05, 1.0, 1.0, 60.0]),
    )
    def come(self, prompt: int, output: int, socket: int, key: str, ttft_target_s: float) -> None:
        self.came += 1
        request = enqueue(
            f"r{self.came}",
            range(self.came * 1000, self.came * 1000 + prompt),
            connection=socket,
            tenant=key,
            max_output_tokens=output,
            received_at=self.now + 1e-6 * self.came,
            ttft_target_s=ttft_target_s,
        )
        guest = self.room.add(request, self.now)
        assert self.room.get(request.request) is guest
        assert self.room.place(guest, self.now).guest is guest
        self.waiting[request.request] = guest
        if self.room.overfull(guest) is not None:
            self.refuse(request.request)
        elif len(self.waiting) > 1:
            assert self.room.work_s <= self.bounds.work_s + 1e-6
        assert len(self.waiting) <= self.bounds.places

    def refuse(self, request: str) -> None:
        assert self.room.remove(request) is self.waiting.pop(request)
        assert self.room.remove(request) is None

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.refuse(data.draw(st.sampled_from(sorted(self.waiting))))

    @rule(seconds=st.sampled_from([0.01, 0.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=st.integers(0, 5), tokens=st.integers(0, 500))
    def grant(self, number: int, tokens: int) -> None:
        self.granted = Credit(self.granted.granted + number, self.granted.tokens + tokens)
        self.room.grant(self.granted)

    @rule(token_s=st.sampled_from([0.0, 1e-4, 1e-3]), base_s=st.sampled_from([0.0, 0.01]))
    def learn(self, token_s: float, base_s: float) -> None:
        if token_s or base_s:
            self.room.learn(CostsLearned((base_s, token_s, 0.0, 0.0, base_s, 0.0), 20.0))
            assert self.room.can_tell

    @rule()
    def let_in_as_many_as_may(self) -> None:
        while self.room.may_let_in:
            guest = self.room.next(self.now)
            if guest is None:
                mine = [self.running(each) for each in self.waiting.values()]
                assert all(running >= self.most_of_one for running in mine), "nobody is let in though somebody may be"
                break
            assert self.running(guest) < self.most_of_one
            self.room.let_in(guest, self.now)
            request = guest.enqueue.request
            self.inside[request] = self.waiting.pop(request)
            self.let_in += 1
            self.let_in_tokens += guest.tokens

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), output=st.integers(0, 100))
    def release(self, data: st.DataObject, output: int) -> None:
        self.release_one(data.draw(st.sampled_from(sorted(self.inside))), output)

    def release_one(self, request: str, output: int) -> None:
        assert self.room.is_inside(request)
        released = Released(request, self.now, None, self.inside.pop(request).tokens, output)
        self.room.released(released)
        assert not self.room.is_inside(request)
        self.room.released(released)

    # --- the plain account ---

    def running(self, guest: Guest) -> int:
        return sum(each.client == guest.client for each in self.inside.values())

    @invariant()
    def everyone_is_somewhere_once(self) -> None:
        if not hasattr(self, "room"):
            return
        room = self.room
        assert len(room) == len(self.waiting)
        assert list(room) == list(self.waiting.values())
        assert all(room.is_inside(request) for request in self.inside)
        assert not any(room.is_inside(request) for request in self.waiting)
        assert room.may_let_in == (self.let_in < self.granted.granted and self.let_in_tokens < self.granted.tokens)
        assert math.isclose(room.work_s, sum(guest.work_s for guest in self.waiting.values()), abs_tol=1e-9)
        places = list(room.places(self.now))
        assert [place.position for place in places] == list(range(1, len(self.waiting) + 1))
        assert {place.guest.number for place in places} == {guest.number for guest in self.waiting.values()}
        waits = [place.wait_s for place in places]
        assert waits == sorted(waits)
        assert all(0 <= wait < math.inf for wait in waits)

    @invariant()
    def the_first_place_is_the_next_to_go_in(self) -> None:
        """As far as nobody is or will be late, everybody may have one more on the device, and there are credits."""
        if not hasattr(self, "room"):
            return
        guest = self.room.next(self.now)
        free = all(self.running(each) < self.most_of_one for each in self.waiting.values())
        places = list(self.room.places(self.now))
        if any(each.late or each.first_token_due < self.now + 30 for each in self.waiting.values()):
            return
        if free and places and self.room.may_let_in and places[-1].wait_s < 20:
            assert guest is places[0].guest

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return
        self.room.grant(Credit(1 << 30, 1 << 30))
        self.granted = Credit(1 << 30, 1 << 30)
        while self.waiting:
            self.let_in_as_many_as_may()
            self.everyone_is_somewhere_once()
            for request in sorted(self.inside):
                self.release_one(request, 3)
        assert self.room.work_s == 0
        assert self.let_in <= self.came


Guests.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestGuests = Guests.TestCase
