"""The law of mailboxes: what overtakes what, what is lost (nothing), and what a cancel does; traced or not."""

import asyncio
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.actor import Actor, Address, Clock, Fate, LaneStatistics, Mailbox
from actors.tracing import TracedMailbox, Tracer
from protocol.messages import Cancel, Credit, SetPaused, Step, Text, TextEnd
from tests.actors.recorders import HandClock

Inbox = Step | Cancel | SetPaused | Credit | Text


def traced(clock: Clock, capacity: int) -> TracedMailbox[Inbox]:
    return TracedMailbox(clock, capacity, "keeper", Tracer(clock, still))


@pytest.fixture(scope="module", autouse=True, params=[Mailbox, traced], ids=["plain", "traced"])
def each_kind_of_mailbox(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test here is run with both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "Mailbox", request.param)
        yield


def step(number: int) -> Step:
    return Step(number, ())


def still() -> float:
    return 0.0


class Keeper(Actor[Inbox]):
    """Keeps what it handles, sets `reached` when it has `goal` of them, and raises on the steps in `fatal`."""

    name: ClassVar[str] = "keeper"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(self, clock: Clock = still, capacity: int = 8, fatal: frozenset[int] = frozenset()) -> None:
        super().__init__(Mailbox(clock, capacity))
        self.fatal = fatal
        self.handled: list[Inbox] = []
        self.lost: list[tuple[Inbox, str]] = []
        self.goal = 0
        self.reached = asyncio.Event()

    def handle(self, message: Inbox) -> None:
        if isinstance(message, Step) and message.step in self.fatal:
            raise ValueError(f"step {message.step}")
        self.handled.append(message)
        if len(self.handled) == self.goal:
            self.reached.set()

    def lose(self, message: Inbox, error: Exception) -> None:
        self.lost.append((message, str(error)))

    async def handle_until(self, count: int) -> None:
        self.goal = count
        self.reached.clear()
        task = asyncio.create_task(self.run())
        async with asyncio.timeout(10):
            await self.reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Fragile(Keeper):
    name: ClassVar[str] = "fragile"
    fate: ClassVar[Fate] = Fate.WORKER


# --- lanes ---


async def test_the_data_lane_is_bounded_and_keeps_its_order() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 3)
    assert [box.offer(step(number)) for number in range(5)] == [True, True, True, False, False]
    assert box.room == 0
    assert [await box.take() for _ in range(3)] == [step(0), step(1), step(2)]
    assert box.room == 3
    assert box.offer(step(9))


async def test_control_overtakes_data_and_text_comes_last() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 3)
    box.tell(Text("r", "hello", (1.0,)))
    box.offer(step(1))
    box.tell(Cancel("r", 1.0))
    assert [type(await box.take()) for _ in range(3)] == [Cancel, Step, Text]


async def test_control_is_taken_though_the_data_lane_is_full() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    assert box.offer(step(1))
    assert not box.offer(step(2))
    box.tell(Cancel("r", 1.0))
    assert await box.take() == Cancel("r", 1.0)


async def test_the_latest_control_message_of_a_key_wins_and_stands_where_it_was_said() -> None:
    clock = HandClock(0.0)
    box: Mailbox[Inbox] = Mailbox(clock, 1)
    box.tell(SetPaused("r", True, 0.0))
    clock.pass_(1.0)
    box.tell(Cancel("q", 1.0))
    clock.pass_(1.0)
    box.tell(SetPaused("r", False, 2.0))
    clock.pass_(1.0)
    assert [await box.take(), await box.take()] == [Cancel("q", 1.0), SetPaused("r", False, 2.0)]
    lane = box.statistics()["control"]
    assert lane.longest_wait_s == 3.0, "the newer one has the age of the older"
    assert lane.waited_s == 5.0


async def test_control_messages_of_other_keys_or_kinds_do_not_replace_one_another() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    said: list[Cancel | SetPaused | Credit] = [Cancel("a", 0), Cancel("b", 0), SetPaused("a", True, 0), Credit(1, 1)]
    for message in said:
        box.tell(message)
    assert [await box.take() for _ in said] == said


async def test_text_joins_the_text_that_waits() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    box.tell(Text("a", "he", (1.0,)))
    box.tell(Text("b", "x", (1.5,)))
    box.tell(Text("a", "llo", (2.0, 3.0), (), TextEnd("stop", 3)))
    assert await box.take() == Text("a", "hello", (1.0, 2.0, 3.0), (), TextEnd("stop", 3))
    assert await box.take() == Text("b", "x", (1.5,))


async def test_nothing_follows_the_end_of_an_answer() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    box.tell(Text("a", "he", (1.0,), (), TextEnd("stop", 1)))
    with pytest.raises(AssertionError, match="nothing follows"):
        box.tell(Text("a", "llo", (2.0,)))


async def test_a_cleared_mailbox_has_forgotten_every_lane() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    box.offer(step(1))
    box.tell(Cancel("r", 0))
    box.tell(Text("r", "x", ()))
    box.clear()
    box.offer(step(2))
    assert await box.take() == step(2)
    assert {name: lane.depth for name, lane in box.statistics().items()} == {"control": 0, "data": 0, "slots": 0}


def test_a_message_in_the_wrong_lane_is_a_defect() -> None:
    address = Keeper().address
    with pytest.raises(AssertionError, match="Cancel does not travel in the data lane"):
        address.offer(Cancel("r", 0))
    with pytest.raises(AssertionError, match="Text does not travel in the data lane"):
        address.offer(Text("r", "x", ()))
    with pytest.raises(AssertionError, match="Step may be refused: offer it"):
        address.tell(step(1))


async def test_statistics_tell_depth_high_water_refusals_and_waits_of_each_lane() -> None:
    clock = HandClock(0.0)
    box: Mailbox[Inbox] = Mailbox(clock, 2)
    box.offer(step(1))
    clock.pass_(2.0)
    box.offer(step(2))
    box.offer(step(3))
    box.tell(Cancel("a", 0))
    box.tell(Cancel("b", 0))
    box.tell(Cancel("a", 1))
    box.tell(Text("a", "x", ()))
    box.tell(Text("a", "y", ()))
    assert box.statistics() == {
        "control": LaneStatistics(depth=2, high_water=2, taken=0, refused=0, waited_s=0, longest_wait_s=0),
        "data": LaneStatistics(depth=2, high_water=2, taken=0, refused=1, waited_s=0, longest_wait_s=0),
        "slots": LaneStatistics(depth=1, high_water=1, taken=0, refused=0, waited_s=0, longest_wait_s=0),
    }
    clock.pass_(1.0)
    for _ in range(5):
        await box.take()
    assert box.statistics() == {
        "control": LaneStatistics(depth=0, high_water=2, taken=2, refused=0, waited_s=2, longest_wait_s=1),
        "data": LaneStatistics(depth=0, high_water=2, taken=2, refused=1, waited_s=4, longest_wait_s=3),
        "slots": LaneStatistics(depth=0, high_water=1, taken=1, refused=0, waited_s=1, longest_wait_s=1),
    }


# --- taking ---


async def test_take_waits_for_a_message() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    taking = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not taking.done()
    box.tell(Credit(1, 1))
    assert await taking == Credit(1, 1)


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_mailbox_has_one_taker(turns: int) -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    first = asyncio.create_task(box.take())
    for _ in range(turns):
        await asyncio.sleep(0)
    second = asyncio.create_task(box.take())
    with pytest.raises(AssertionError, match="one taker"):
        await asyncio.wait_for(second, 10)
    box.tell(Credit(1, 1))
    assert await first == Credit(1, 1)


async def test_a_cancelled_take_can_be_followed_by_another() -> None:
    box: Mailbox[Inbox] = Mailbox(still, 1)
    taking = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    box.tell(Credit(1, 1))
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert await box.take() == Credit(1, 1)


async def test_others_get_a_turn_before_every_message() -> None:
    keeper = Keeper(capacity=100)
    for number in range(100):
        keeper.mailbox.offer(step(number))
    task = asyncio.create_task(keeper.run())
    for turn in range(50):
        assert len(keeper.handled) <= turn
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_handler_sees_nothing_of_the_context_of_whoever_sent() -> None:
    whose = ContextVar("whose", default="nobody's")
    seen: list[str] = []

    class Looking(Keeper):
        def handle(self, message: Inbox) -> None:
            seen.append(whose.get())
            super().handle(message)

    keeper = Looking()
    whose.set("its own")
    task = asyncio.create_task(keeper.run())
    await asyncio.sleep(0)
    for number in range(2):
        whose.set("the sender's")
        keeper.address.offer(step(number))
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == ["its own"] * 2


Move = st.sampled_from(["turn", "step", "cancel message", "cancel task"])


@settings(max_examples=300, deadline=None)
@given(moves=st.lists(Move, max_size=40))
def test_a_task_cancelled_at_any_await_leaves_no_message_half_handled_and_loses_none(moves: list[str]) -> None:
    async def scenario() -> None:
        keeper = Keeper(capacity=100)
        task = asyncio.create_task(keeper.run())
        said = 0
        for number, move in enumerate(moves):
            match move:
                case "turn":
                    await asyncio.sleep(0)
                case "step":
                    assert keeper.address.offer(step(number))
                    said += 1
                case "cancel message":
                    keeper.address.tell(Cancel(str(number), 0))
                    said += 1
                case _:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    task = asyncio.create_task(keeper.run())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if said > len(keeper.handled):
            await keeper.handle_until(said)
        steps = [number for number, move in enumerate(moves) if move == "step"]
        assert [message.step for message in keeper.handled if isinstance(message, Step)] == steps
        cancels = [str(number) for number, move in enumerate(moves) if move == "cancel message"]
        assert [message.request for message in keeper.handled if isinstance(message, Cancel)] == cancels

    asyncio.run(scenario())


# --- cycles ---


class Relay(Actor[Step | Credit]):
    """Answers each step with two for the next in the ring, so that every lane of the ring is soon full."""

    name: ClassVar[str] = "relay"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(self) -> None:
        super().__init__(Mailbox(still, 2))
        self.next: Address[Step | Credit]
        self.steps = 0
        self.refused = 0
        self.full = asyncio.Event()
        self.rung = asyncio.Event()

    def handle(self, message: Step | Credit) -> None:
        match message:
            case Step():
                self.steps += 1
                for _ in range(2):
                    if not self.next.offer(message):
                        self.refused += 1
                        self.full.set()
            case Credit():
                self.rung.set()
                if message.granted:
                    self.next.tell(Credit(message.granted - 1, 1))


async def test_a_cycle_of_full_mailboxes_does_not_deadlock() -> None:
    ring = [Relay() for _ in range(3)]
    for index, relay in enumerate(ring):
        relay.next = ring[(index + 1) % len(ring)].address
        relay.mailbox.offer(step(index))
    tasks = [asyncio.create_task(relay.run()) for relay in ring]
    async with asyncio.timeout(10):
        for relay in ring:
            await relay.full.wait()
        before = [relay.steps for relay in ring]
        ring[0].address.tell(Credit(2, 2))
        for relay in ring:
            await relay.rung.wait()
    assert all(relay.steps - old <= 4 for relay, old in zip(ring, before, strict=True)), "control waited behind data"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- the two fates ---


async def test_an_actor_whose_fate_is_its_own_loses_one_message_and_lives_on() -> None:
    keeper = Keeper(fatal=frozenset({2}))
    for number in (1, 2, 3):
        keeper.mailbox.offer(step(number))
    await keeper.handle_until(2)
    assert keeper.handled == [step(1), step(3)]
    assert keeper.lost == [(step(2), "step 2")]


async def test_an_actor_of_the_worker_ends_with_the_error_and_leaves_the_rest_unhandled() -> None:
    fragile = Fragile(fatal=frozenset({2}))
    for number in (1, 2, 3):
        fragile.mailbox.offer(step(number))
    with pytest.raises(ValueError, match="step 2"):
        await fragile.run()
    assert fragile.handled == [step(1)]
    assert fragile.lost == []
    assert fragile.mailbox.statistics()["data"].depth == 1


async def test_an_actor_that_does_not_say_how_it_loses_a_message_ends() -> None:
    class Silent(Keeper):
        lose = Actor.lose

    silent = Silent(fatal=frozenset({1}))
    silent.mailbox.offer(step(1))
    with pytest.raises(ValueError, match="step 1"):
        await silent.run()
