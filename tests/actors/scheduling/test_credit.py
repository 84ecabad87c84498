"""How many may come in, what they have before them, and what is told of costs."""

import pytest

from actors.scheduling.blocks import BlockPool
from actors.scheduling.costs import Costs
from actors.scheduling.policies import POLICIES, PolicyName
from actors.scheduling.policy import BACKLOG_S, FixedChunk
from actors.scheduling.schedule import Schedule
from actors.scheduling.usual import USUAL_OUTPUT_TOKENS
from protocol.messages import CostsLearned, Credit, SampledToken, StepDone
from tests.actors.recorders import enqueue
from tests.actors.scheduling.scenes import Scene


def granted(scene: Scene, max_running: int = 4) -> int:
    return scene.schedule.credit(max_running).granted


def test_as_many_may_come_as_may_run_and_one_more_for_each_that_ends() -> None:
    scene = Scene(blocks=64)
    assert granted(scene) == 4
    one = scene.add("a", prompt=4, output=8)
    scene.add("b", prompt=4, output=8)
    assert granted(scene) == 4
    scene.step()
    assert granted(scene) == 4
    scene.schedule.end(one, "cancelled")
    assert granted(scene) == 5


def test_a_paused_one_leaves_its_place_to_another() -> None:
    scene = Scene(blocks=64)
    ones = [scene.add(name, prompt=4, output=8) for name in "abcd"]
    scene.step()
    assert granted(scene) == 4
    scene.pause(*ones[:3])
    assert granted(scene) == 7


def test_however_many_are_paused_as_many_may_come_as_may_run() -> None:
    scene = Scene(blocks=64)
    for number in range(20):
        assert granted(scene) == number + 4
        scene.pause(scene.add(f"r{number}", prompt=4, output=8))


def test_a_credit_is_not_taken_back_when_paused_ones_go_on() -> None:
    scene = Scene(blocks=64)
    ones = [scene.add(name, prompt=4, output=8) for name in "abcd"]
    scene.pause(*ones)
    assert granted(scene) == 8
    scene.resume(*ones)
    assert granted(scene) == 8
    for one in ones:
        scene.schedule.end(one, "cancelled")
    assert granted(scene) == 8, "four have come, and four may come"


def test_nobody_may_come_while_one_that_was_to_start_finds_no_memory() -> None:
    scene = Scene(blocks=4)
    before = granted(scene)
    first = scene.add("a", prompt=12, output=4)
    scene.step()
    scene.add("b", prompt=8, output=4)
    assert not scene.schedule.waits_for_memory, "it has not been its turn"
    scene.step()
    assert scene.schedule.waits_for_memory
    scene.schedule.end(first, "cancelled")
    assert granted(scene) == before, "it has not started yet"
    scene.step()
    assert not scene.schedule.waits_for_memory
    assert granted(scene) == before + 1


def test_nobody_may_come_while_a_preempted_one_waits() -> None:
    scene = Scene(blocks=6)
    scene.add("a", prompt=8, output=12)
    later = scene.add("b", prompt=8, output=12)
    before = granted(scene)
    while not later.preemptions:
        scene.step()
    assert scene.schedule.waits_for_memory
    scene.pause(later)
    assert not scene.schedule.waits_for_memory, "a paused one waits for its reader"
    assert granted(scene) == before + 1


@pytest.mark.parametrize("leaves", ["is cancelled", "is paused"])
def test_another_that_finds_no_memory_keeps_the_door_shut_when_the_first_to_find_none(leaves: str) -> None:
    scene = Scene(blocks=4)
    scene.add("a", prompt=12, output=4)
    scene.step()
    short = scene.add("b", prompt=8, output=4)
    scene.step()
    scene.add("c", prompt=8, output=4)
    if leaves == "is paused":
        scene.pause(short)
    else:
        scene.schedule.end(short, "cancelled")
    before = scene.schedule.credit(4)
    scene.step()
    assert scene.schedule.waits_for_memory
    assert scene.schedule.credit(4) == before


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_is_not_short_when_a_step_is_merely_full(policy: PolicyName) -> None:
    scene = Scene(blocks=64, policy=policy, chunk=8, step_tokens=8)
    for name in "abc":
        scene.add(name, prompt=8, output=4)
    scene.step()
    assert not scene.schedule.waits_for_memory


# --- in tokens ---


ROOM = int(BACKLOG_S / 0.001)


def priced(token_s: float = 0.001) -> Scene:
    """A scene in which prefill takes so long, and nothing else takes any time."""
    scene = Scene(blocks=1024, chunk=100, step_tokens=100)
    scene.schedule.costs = Costs(coefficients=(0, token_s, 0, 0, 0, 0))
    return scene


def test_so_much_prefill_may_come_in_as_is_done_in_a_given_time() -> None:
    scene = priced()
    assert scene.schedule.credit(64).tokens == ROOM
    scene.add("a", prompt=300, output=8)
    assert scene.schedule.credit(64).tokens == ROOM


def test_what_is_read_of_it_makes_room_for_more() -> None:
    scene = priced()
    scene.add("a", prompt=ROOM, output=8)
    for tokens in range(100, ROOM, 100):
        scene.plan()
        assert scene.schedule.credit(64).tokens == ROOM + tokens - 100, "its result is not in"
        scene.complete()
        scene.schedule.costs = Costs(coefficients=(0, 0.001, 0, 0, 0, 0))
        assert scene.schedule.credit(64).tokens == ROOM + tokens


def test_where_a_token_takes_longer_than_that_one_prompt_may_come_at_a_time() -> None:
    scene = priced(token_s=2.0)
    assert scene.schedule.credit(64).tokens == 1
    scene.add("a", prompt=5, output=8)
    assert scene.schedule.credit(64).tokens == 1, "the next may come when this one has been read"
    scene.step()
    scene.schedule.costs = Costs(coefficients=(0, 2.0, 0, 0, 0, 0))
    assert scene.schedule.credit(64).tokens == 6


def test_while_nothing_is_known_any_number_of_tokens_may_come() -> None:
    assert Scene(blocks=4).schedule.credit(64) == Credit(64, 1 << 20)


def test_the_backlog_is_what_is_left_to_read() -> None:
    scene = Scene(blocks=64, chunk=8, step_tokens=64)
    backlog = []
    one = scene.add("a", prompt=20, output=4)
    backlog.append(scene.schedule.backlog_tokens)
    for _ in range(4):
        scene.step()
        backlog.append(scene.schedule.backlog_tokens)
    assert backlog == [20, 12, 4, 0, 0], "an answer's next token is no prefill"
    other = scene.add("b", prompt=7, output=4)
    assert scene.schedule.backlog_tokens == 7
    scene.pause(other)
    assert scene.schedule.backlog_tokens == 0
    scene.resume(other)
    assert scene.schedule.backlog_tokens == 7
    scene.schedule.end(other, "cancelled")
    scene.schedule.end(one, "cancelled")
    assert scene.schedule.backlog_tokens == 0


def test_what_the_cache_holds_is_no_backlog() -> None:
    scene = Scene(blocks=64)
    scene.add("a", prompt=list(range(20)), output=0)
    scene.run()
    scene.add("b", prompt=[*range(20), 50, 51], output=4)
    assert scene.schedule.backlog_tokens == 2


def test_a_preempted_one_is_backlog_again() -> None:
    scene = Scene(blocks=6)
    scene.add("a", prompt=8, output=12)
    later = scene.add("b", prompt=8, output=12)
    while not later.preemptions:
        scene.step()
    assert scene.schedule.backlog_tokens == len(later.tokens)


# --- what is told of costs ---


def test_costs_are_told_with_the_length_of_a_usual_answer() -> None:
    costs = Costs(coefficients=(0.01, 0.001, 0, 0, 0.002, 0))
    schedule = Schedule(BlockPool(64, 4), FixedChunk(64), 64, costs=costs)
    assert schedule.learned() == CostsLearned((0.01, 0.001, 0, 0, 0.002, 0), USUAL_OUTPUT_TOKENS)
    for name in "abc":
        schedule.add(enqueue(name, 4, max_output_tokens=1), 0.0)
    schedule.add(enqueue("prefill only", 4, max_output_tokens=0), 0.0)
    step = schedule.plan(0.0)
    assert step is not None
    schedule.complete(StepDone(step.step, (SampledToken(7),) * 3, 0.0), 0.0)
    usual = USUAL_OUTPUT_TOKENS
    for _ in range(3):
        usual = 0.95 * usual + 0.05 * 1
    assert schedule.learned().output_tokens == pytest.approx(usual)
