"""A waiting room in which a token of prefill takes 1 ms, and nothing else takes any time.

A request with a prompt of n tokens and no answer is charged n.
"""

import math

from actors.scheduling.bounds import Bounds
from actors.scheduling.demand import Demand
from actors.scheduling.guests import Guest
from actors.scheduling.waiting_room import WaitingRoom
from protocol.messages import CostsLearned, Credit, Released
from tests.actors.recorders import enqueue

COSTS = CostsLearned((0.0, 0.001, 0.0, 0.0, 0.0, 0.0), output_tokens=50.0)
EVERYONE = Credit(1 << 30, 1 << 30)


class Room(WaitingRoom):
    """With short names for what is done to it."""

    def __init__(
        self, places: int = 1000, work_s: float = 1e6, max_running: int = 8, learned: CostsLearned | None = COSTS
    ) -> None:
        super().__init__(Bounds(places, work_s, 60.0), Demand(100, max_running), max_running)
        self.now = 100.0
        self.came = 0
        self.grant(EVERYONE)
        if learned is not None:
            self.learn(learned)

    def come(
        self, prompt: int = 10, socket: int = 1, key: str = "", *, output: int = 0, due_in: float = math.inf
    ) -> Guest:
        self.came += 1
        request = enqueue(
            f"r{self.came}",
            range(10_000 * self.came, 10_000 * self.came + prompt),
            connection=socket,
            tenant=key,
            max_output_tokens=output,
            received_at=self.now,
            ttft_target_s=due_in,
        )
        return self.add(request, self.now)

    def turn(self) -> Guest | None:
        """The next one is let in."""
        guest = self.next(self.now)
        if guest is not None:
            self.let_in(guest, self.now)
        return guest

    def turns(self, count: int) -> list[int]:
        """So many are let in: their sockets."""
        guests = [self.turn() for _ in range(count)]
        return [guest.enqueue.connection for guest in guests if guest is not None]

    def done(self, guest: Guest, output: int = 0) -> None:
        self.released(Released(guest.enqueue.request, self.now, None, guest.tokens, output))
