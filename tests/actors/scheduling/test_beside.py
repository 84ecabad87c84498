"""A long prompt that has been let in keeps out other long ones, and nobody who has little to read."""

import math

import pytest

from actors.scheduling.bounds import Bounds
from actors.scheduling.credits import SMALL
from actors.scheduling.demand import Demand
from actors.scheduling.guests import Guest
from actors.scheduling.policies import PolicyName
from actors.scheduling.waiting_room import WaitingRoom
from actors.simulator.hardware import Hardware, StepCosts
from actors.simulator.simulation import Simulation, setup_for
from protocol.messages import Credit
from protocol.scenario import Arrival, Scenario
from protocol.timeline import Life
from tests.actors.recorders import enqueue
from tests.actors.scheduling.scenes import Scene
from tests.actors.scheduling.test_credit import ROOM, priced

LONG, READ_AHEAD = 10_000, 500


class Room(WaitingRoom):
    """As the scheduler sees it that wants 500 tokens before it: socket 1 has had a long prompt let in."""

    def __init__(self, key: str = "") -> None:
        super().__init__(Bounds(10_000, 1e9, 1e9), Demand(100, 1000), 1000)
        self.came = 0
        self.read = 0
        self.be_read(0)
        self.come(LONG, socket=1, key=key)
        assert self.turn() is not None

    def come(self, prompt: int, socket: int, key: str = "", ttft_target_s: float = math.inf) -> Guest:
        self.came += 1
        tokens = range(self.came * 100_000, self.came * 100_000 + prompt)
        return self.add(
            enqueue(f"r{self.came}", tokens, connection=socket, tenant=key, max_output_tokens=0, received_at=0.0,
                    ttft_target_s=ttft_target_s), 0.0
        )  # fmt: skip

    def be_read(self, tokens: int) -> None:
        self.read += tokens
        self.grant(Credit(1000, self.read + READ_AHEAD))

    def turn(self) -> Guest | None:
        guest = self.next(0.0)
        if guest is not None:
            self.let_in(guest, 0.0)
        return guest

    def turns(self) -> int:
        """How many come in at once."""
        count = 0
        while self.turn() is not None:
            count += 1
        return count


def test_whoever_has_little_to_read_comes_in_beside_a_long_prompt() -> None:
    room = Room()
    guest = room.come(20, socket=2)
    assert not room.may_let_in
    assert room.turn() is guest


@pytest.mark.parametrize("prompt", [20, 500, 2000, 2400, 3000, 9000])
def test_nobody_waits_for_more_to_be_read_than_so_many_times_its_own_prompt(prompt: int) -> None:
    room = Room()
    guest = room.come(prompt, socket=2)
    while (found := room.turn()) is None:
        room.be_read(100)
    assert found is guest
    assert room.read <= SMALL * prompt
    assert (room.read == 0) == (SMALL * prompt <= LONG - READ_AHEAD)


def test_however_many_come_in_beside_it_the_next_one_may_if_it_is_smaller_still() -> None:
    room = Room()
    for prompt in (1000, 300, 100, 30, 10, 3):
        for socket in range(2, 40):
            room.come(prompt, socket=1000 * prompt + socket)
        assert room.turns() > 0, f"not one of {prompt}"
        for guest in list(room):
            room.remove(guest.enqueue.request)
    assert room._credits._beside < LONG


def test_what_has_been_read_of_them_makes_place_for_more() -> None:
    room = Room()
    for socket in range(2, 100):
        room.come(1000, socket=socket)
    before = room.turns()
    assert room.turn() is None
    room.be_read(200)
    assert room.turn() is None
    room.be_read(800)
    assert (before, room.turns()) == (6, 1)


def test_a_client_adds_but_little_to_what_it_has_before_others() -> None:
    room = Room()
    for _ in range(1000):
        room.come(50, socket=1)
    count = room.turns()
    assert 0 < 50 * count <= LONG / SMALL


@pytest.mark.parametrize("key", ["", "another"])
def test_no_client_has_more_read_beside_a_long_prompt_than_that_prompt(key: str) -> None:
    """They come one after the other, each is read at once, and of the long prompt nothing is."""
    room = Room()
    count = 0
    while count < 10_000:
        room.come(100, socket=2, key=key)
        if room.turn() is None:
            break
        room.read += 100
        room.grant(Credit(1000 + count, room.read + READ_AHEAD))
        count += 1
    assert 100 * count == pytest.approx(LONG, abs=200)


def test_nobody_is_overtaken_by_more_than_it_is_itself() -> None:
    room = Room()
    first = room.come(2500, socket=2, ttft_target_s=10.0)
    came = 0
    for socket in range(3, 1000):
        room.come(100, socket=socket, ttft_target_s=20.0)
        if room.turn() is None:
            break
        room.read += 100
        room.grant(Credit(1000 + came, room.read + READ_AHEAD))
        came += 1
    assert room.get(first.enqueue.request) is first
    assert 100 * came == 2500
    while (found := room.turn()) is None:
        room.be_read(100)
    assert found is first


def test_without_a_place_in_number_nobody_comes_in() -> None:
    room = WaitingRoom(Bounds(100, 1e9, 1e9), Demand(100, 8), 8)
    room.grant(Credit(1, 100))
    for number, prompt in enumerate((5000, 10)):
        room.add(enqueue(f"r{number}", prompt, connection=number), 0.0)
    first = room.next(0.0)
    assert first is not None
    room.let_in(first, 0.0)
    assert room.next(0.0) is None
    room.grant(Credit(2, 100))
    assert room.next(0.0) is not None


# --- what the scheduler says of it ---


def test_credits_say_by_how_much_those_who_are_here_have_more_before_them_than_is_wanted() -> None:
    scene = priced()
    scene.add("a", prompt=ROOM, output=8)
    assert scene.schedule.credit(64).tokens == ROOM
    scene.add("b", prompt=2000, output=8)
    assert scene.schedule.credit(64).tokens == ROOM
    assert scene.schedule.backlog_tokens == ROOM + 2000, "2,500 have come, 2,000 more than credits"


def test_credits_are_not_taken_back() -> None:
    scene = Scene(blocks=1024, chunk=100, step_tokens=100)
    before = scene.schedule.credit(64)
    scene.schedule.costs = priced().schedule.costs
    scene.add("a", prompt=3000, output=8)
    assert scene.schedule.credit(64) == before


# --- all together, in virtual time ---


SLOW = Hardware(
    name="slow",
    about="Two cores of a server. A prompt of 16,000 tokens takes 41 s.",
    step=StepCosts(
        base_s=0.0625,
        prefill_token_s=4.4e-4,
        prefill_pair_s=2.46e-7,
        prefill_context_s=9.9e-6,
        decode_row_s=1.02e-3,
        decode_context_s=5.2e-6,
    ),
    overhead_s=0.002,
    spread=0.05,
    blocks=11_650,
    max_context=16_384,
)


def run(policy: PolicyName, *arrivals: Arrival) -> dict[str, Life]:
    timeline = Simulation(Scenario("beside", arrivals), policy, setup_for(SLOW)).run()
    return {life.name: life for life in timeline.lives}


LONGEST_CHUNK_S = 2.5
"""512 tokens at the end of 16,000. One is read when the short prompt comes, and another in the step that reads it."""


@pytest.mark.parametrize("prompt", [20, 500])
@pytest.mark.parametrize("at_s", [0.0, 1.0, 10.0, 30.0])
@pytest.mark.parametrize("client", ["a", "b"])
def test_under_slack_a_short_prompt_waits_for_two_chunks_of_a_long_one_at_most(
    prompt: int, at_s: float, client: str
) -> None:
    found = run(
        "slack",
        Arrival("long", 16_000, 50, client="a", ttft_target_s=100.0),
        Arrival("b", prompt, 20, at_s=at_s, client=client, ttft_target_s=5.0),
    )
    assert found["b"].ttft_s is not None
    assert found["b"].ttft_s < 2 * LONGEST_CHUNK_S
    assert found["long"].finished


@pytest.mark.parametrize("policy", ["slack", "fixed_chunk", "prefill_first"])
def test_a_short_prompt_is_not_refused_for_another_clients_long_ones(policy: PolicyName) -> None:
    longs = [Arrival(f"a{number}", 16_000, 1, client="a", ttft_target_s=600.0) for number in range(4)]
    found = run(policy, *longs, Arrival("b", 20, 20, at_s=1.0, client="b", ttft_target_s=5.0))
    assert found["b"].finished
    assert found["b"].token_times[0] < found["a1"].token_times[0], "it waits for one of them, at most"
    assert found["b"].met == (policy == "slack")


def test_a_flood_of_short_prompts_leaves_a_long_one_its_share() -> None:
    """Beside a client that asks for as much as the device can do, it takes about twice as long as alone."""
    alone = run("slack", Arrival("long", 8000, 1, client="a", ttft_target_s=100.0))["long"].ttft_s
    flood = [Arrival(f"b{number}", 400, 1, at_s=0.3 * number, client="b", ttft_target_s=3.0) for number in range(120)]
    beside = run("slack", Arrival("long", 8000, 1, client="a", ttft_target_s=100.0), *flood)["long"].ttft_s
    assert alone is not None
    assert beside is not None
    assert beside < 3 * alone
