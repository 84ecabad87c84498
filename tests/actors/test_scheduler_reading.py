"""What readers hear while their prompts are read: how much of them, now and then, and nothing once there is a token."""

from actors.scheduling.reading import TOLD_EVERY_S
from protocol.messages import Cancel, PromptRead, SampledToken, Started, StepDone, WorkerLost
from tests.actors.recorders import enqueue, model_ready
from tests.actors.test_scheduler import Desk


def read(desk: Desk, request: str = "r") -> list[int]:
    return [one.prefilled_tokens for one in desk.connection.of(PromptRead) if one.request == request]


def run(desk: Desk, steps: int, step_s: float) -> None:
    """So many steps, each of which takes so long by the engine's clock."""
    for _ in range(steps):
        step = desk.step()
        desk.clock.pass_(step_s)
        desk.finish(step)


def test_of_a_long_prompt_it_is_told_every_half_second_how_much_is_read() -> None:
    desk = Desk(chunk=4)
    desk.say(enqueue("r", 40, max_output_tokens=3))
    run(desk, 9, 0.25)
    assert desk.connection.of(Started) == [Started("r", 100.0, prefilled_tokens=0)]
    assert read(desk) == [8, 16, 24, 32]
    run(desk, 3, 0.25)
    assert read(desk) == [8, 16, 24, 32], "its first token is there"
    assert TOLD_EVERY_S == 0.5


def test_it_is_told_no_oftener_however_short_the_steps() -> None:
    desk = Desk(chunk=1)
    desk.say(enqueue("r", 100, max_output_tokens=1))
    run(desk, 99, 1 / 64)
    assert read(desk) == [32, 64, 96]


def test_a_prompt_that_is_read_within_half_a_second_is_told_of_once() -> None:
    desk = Desk(chunk=4)
    desk.say(enqueue("r", 20, max_output_tokens=1))
    run(desk, 5, 0.09)
    assert len(desk.connection.of(Started)) == 1
    assert read(desk) == []


def test_a_step_that_takes_long_and_reads_all_is_not_told_of() -> None:
    desk = Desk()
    desk.say(enqueue("r", 40, max_output_tokens=0), enqueue("other", 40, max_output_tokens=2))
    run(desk, 2, 5.0)
    assert read(desk) == read(desk, "other") == []


def test_what_the_cache_holds_counts_as_read() -> None:
    desk = Desk(chunk=8)
    desk.say(enqueue("first", 32, max_output_tokens=1))
    run(desk, 4, 0.1)
    desk.say(enqueue("r", 64, max_output_tokens=1))
    run(desk, 3, 0.6)
    assert desk.connection.of(Started)[-1].prefilled_tokens == 32
    assert read(desk) == [40, 48, 56]


def test_each_hears_of_its_own_prompt() -> None:
    desk = Desk(chunk=8)
    desk.say(enqueue("r", 24, max_output_tokens=1), enqueue("other", range(500, 524), max_output_tokens=1))
    run(desk, 6, 0.6)
    assert read(desk) == [8, 16]
    assert read(desk, "other") == [8, 16]


def test_one_that_was_preempted_is_told_nothing_that_it_heard_before() -> None:
    desk = Desk(blocks=10, chunk=2)
    desk.say(enqueue("r", 8, max_output_tokens=20), enqueue("late", range(500, 524), max_output_tokens=1))
    while not desk.figure("rota_preemptions_total"):
        run(desk, 1, 0.6)
        desk.take_tokens()
    before = read(desk, "late")
    assert len(before) > 1, "it was preempted in the midst of its prompt"
    while desk.released != ["r", "late"]:
        run(desk, 1, 0.6)
        desk.take_tokens()
    told = read(desk, "late")
    assert told[: len(before)] == before
    assert told == sorted(set(told))
    assert told[-1] == 22


def test_nobody_hears_of_a_prompt_that_nobody_reads_any_more() -> None:
    desk = Desk(chunk=4)
    desk.say(enqueue("r", 40), enqueue("lost", range(500, 540)))
    step = desk.step()
    desk.clock.pass_(1.0)
    desk.say(Cancel("r", 101.0))
    desk.finish(step)
    desk.say(WorkerLost("it ended", 101.0), model_ready())
    desk.clock.pass_(1.0)
    desk.say(StepDone(9, (SampledToken(1),), 0.1))
    assert desk.connection.of(PromptRead) == []
