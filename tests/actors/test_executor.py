"""One worker at a time: its messages passed on, its hangs and its end noticed, and another started after a delay."""

import pytest
from structlog.testing import capture_logs

from actors.executor import NOTHING
from protocol.messages import (
    LoadModel,
    ModelFound,
    ModelReady,
    ModelRefused,
    Step,
    StepDone,
    StepFailed,
    WorkerGone,
    WorkerLost,
)
from tests.actors.executor_bench import Bench, done
from tests.actors.recorders import model_ready


async def test_a_worker_is_given_its_model_first_and_its_news_go_to_whom_they_concern() -> None:
    bench = Bench()
    assert bench.child.starts[0][0] == LoadModel("tiny")
    await bench.worker_says(ModelFound("tiny", "/folder"), model_ready())
    assert bench.engine.heard == [ModelFound("tiny", "/folder"), model_ready()]
    assert bench.scheduler.heard == [model_ready()]


async def test_steps_go_to_the_worker_and_their_results_to_the_scheduler() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()), Step(2, ()))
    assert bench.child.steps == [Step(1, ()), Step(2, ())]
    await bench.worker_says(done(1))
    assert bench.scheduler.of(StepDone) == [done(1)]


async def test_a_step_that_was_not_run_is_told_to_the_scheduler_and_is_progress() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()), Step(2, (), behind=1))
    bench.clock.pass_(9.0)
    failed = StepFailed(1, "no memory")
    await bench.worker_says(failed)
    assert bench.scheduler.of(StepFailed) == [failed]
    bench.sweep(9.0)
    assert bench.child.kills == 0
    bench.sweep(2.0)
    assert bench.child.kills == 1, "the one behind it was never answered"


async def test_a_step_for_a_worker_that_is_not_ready_is_dropped() -> None:
    bench = Bench()
    bench.say(Step(1, ()))
    await bench.worker_says(model_ready())
    await bench.worker_ends()
    bench.say(Step(2, ()))
    assert bench.child.steps == []
    bench.sweep(100.0)
    assert bench.child.kills == 0, "and it is not waited for"


async def test_a_result_nobody_waits_for_is_not_passed_on() -> None:
    bench = Bench()
    await bench.worker_says(model_ready(), done(7))
    assert bench.scheduler.of(StepDone) == []


async def test_everyone_is_told_of_a_lost_worker_and_another_starts_after_a_delay() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    with capture_logs() as logs:
        await bench.worker_ends("it was killed by signal 9")
    lost = WorkerLost("it was killed by signal 9", 100.0)
    assert bench.scheduler.heard[-1] == lost
    assert bench.engine.heard[-1] == lost
    assert [(entry["event"], entry["why"]) for entry in logs] == [("worker.lost", "it was killed by signal 9")]
    bench.sweep(0.4)
    assert len(bench.child.starts) == 1
    bench.sweep(0.2)
    assert len(bench.child.starts) == 2
    bench.sweep(5.0)
    assert len(bench.child.starts) == 2, "once"
    assert "rota_worker_restarts_total 1.0" in bench.metrics.exposition().decode()


async def test_what_an_earlier_worker_still_says_is_not_heard() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    await bench.worker_ends()
    bench.sweep(1.0)
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()))
    heard = len(bench.scheduler.heard)
    await bench.worker_says(done(1), model_ready(), worker=0)
    await bench.worker_ends("once more", worker=0)
    assert len(bench.scheduler.heard) == heard
    await bench.worker_says(done(1))
    assert bench.scheduler.heard[-1] == done(1)


async def test_the_delay_doubles_up_to_a_bound_and_a_finished_step_resets_it() -> None:
    bench = Bench()

    async def delay_until_the_next_start() -> float:
        before, since = len(bench.child.starts), bench.clock()
        await bench.worker_ends()
        while len(bench.child.starts) == before:
            bench.sweep(0.25)
        return bench.clock() - since

    assert [await delay_until_the_next_start() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    await bench.worker_says(model_ready())
    assert await delay_until_the_next_start() == 3.0, "to be ready is not yet progress"
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()))
    await bench.worker_says(done(1))
    assert await delay_until_the_next_start() == 0.5


async def test_a_worker_that_makes_no_progress_is_killed() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()))
    bench.sweep(10.0)
    assert bench.child.kills == 0
    with capture_logs() as logs:
        bench.sweep(0.1)
    assert bench.child.kills == 1
    assert logs[0]["event"] == "worker.hung"
    await bench.worker_ends("it was killed by signal 9")
    bench.sweep(0.25)
    assert bench.child.kills == 1


async def test_a_worker_killed_for_a_hang_is_lost_for_the_hang_and_the_next_one_for_reasons_of_its_own() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()))
    bench.sweep(10.1)
    await bench.worker_ends("it was killed by signal 9")
    bench.sweep(1.0)
    bench.sweep(20.1)
    await bench.worker_ends("it was killed by signal 9")
    bench.sweep(1.0)
    await bench.worker_ends("it was killed by signal 9")
    assert [lost.message for lost in bench.engine.of(WorkerLost)] == [
        "the worker process made no progress for 10 s and was killed",
        "the worker process had not loaded the model within 20 s and was killed",
        "it was killed by signal 9",
    ]


async def test_a_worker_without_work_is_asked_whether_it_is_there_and_killed_when_it_is_not() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    heard = len(bench.scheduler.heard)
    for times in range(1, 4):
        bench.sweep(4.9)
        assert len(bench.child.steps) == times - 1, "it is not asked all the time"
        bench.sweep(0.1)
        assert bench.child.steps == [NOTHING] * times
        bench.sweep(9.9)
        await bench.worker_says(done(NOTHING.step))
    assert len(bench.scheduler.heard) == heard, "nobody else asked"
    bench.sweep(5.0)
    bench.sweep(10.0)
    assert (bench.child.kills, len(bench.child.steps)) == (0, 4)
    with capture_logs() as logs:
        bench.sweep(0.1)
    assert (bench.child.kills, logs[0]["event"]) == (1, "worker.hung")


async def test_a_worker_that_works_is_not_asked_whether_it_is_there() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    for step in range(1, 9):
        bench.say(Step(step, ()))
        bench.sweep(6.0)
        await bench.worker_says(done(step))
        bench.sweep(4.0)
    assert NOTHING not in bench.child.steps


async def test_an_answer_to_nothing_is_no_progress_that_shortens_the_delay() -> None:
    bench = Bench()
    for wanted in (0.5, 1.0, 2.0):
        await bench.worker_says(model_ready())
        bench.sweep(5.0)
        await bench.worker_says(done(NOTHING.step))
        starts = len(bench.child.starts)
        await bench.worker_ends()
        bench.sweep(wanted - 0.01)
        assert len(bench.child.starts) == starts
        bench.sweep(0.01)
        assert len(bench.child.starts) == starts + 1


async def test_a_steps_time_counts_from_when_it_could_begin() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    bench.say(Step(1, ()), Step(2, ()))
    bench.clock.pass_(9.0)
    await bench.worker_says(done(1))
    bench.sweep(9.0)
    assert bench.child.kills == 0
    bench.sweep(1.5)
    assert bench.child.kills == 1


async def test_a_first_worker_that_refuses_its_model_is_the_end_and_is_not_started_again() -> None:
    bench = Bench()
    await bench.worker_says(ModelRefused("There is no such model."))
    await bench.worker_ends("it ended with exit code 3")
    assert bench.engine.heard == [ModelRefused("There is no such model.")]
    bench.sweep(1000.0)
    assert len(bench.child.starts) == 1


async def test_a_later_worker_that_refuses_is_tried_again() -> None:
    bench = Bench()
    await bench.worker_says(model_ready())
    await bench.worker_ends()
    bench.sweep(1.0)
    with capture_logs() as logs:
        await bench.worker_says(ModelRefused("Too little memory is free."))
    assert [(entry["event"], entry["why"]) for entry in logs] == [("worker.refused", "Too little memory is free.")]
    assert bench.engine.of(ModelRefused) == []
    await bench.worker_ends("it ended with exit code 3")
    bench.sweep(10.0)
    assert len(bench.child.starts) == 3
    await bench.worker_says(model_ready())
    assert len(bench.engine.of(ModelReady)) == 2


async def test_a_first_worker_that_ends_without_a_word_is_started_again() -> None:
    bench = Bench()
    await bench.worker_ends()
    bench.sweep(1.0)
    assert len(bench.child.starts) == 2


@pytest.mark.parametrize("worker", [0, 2])
def test_the_end_of_another_worker_is_not_this_ones(worker: int) -> None:
    bench = Bench()
    bench.say(WorkerGone(worker, "it ended"))
    assert bench.scheduler.heard == []
