"""What the scheduler counts, learns and reports: audits, gauges, what steps cost, what each request took."""

import pytest
from msgspec import structs

from actors.scheduler import LEARNED_EVERY
from actors.scheduling.usual import USUAL_OUTPUT_TOKENS
from protocol.messages import (
    AuditReport,
    AuditRequest,
    Cancel,
    CostsLearned,
    Ended,
    Expire,
    FinishStream,
    Released,
    StepDone,
    WorkerLost,
)
from tests.actors.recorders import enqueue, model_ready, tokens_in
from tests.actors.test_scheduler import CALIBRATION, DEVICE, Desk


def test_the_audit_reports_blocks_and_all_it_still_holds() -> None:
    desk = Desk(blocks=8)
    desk.say(enqueue("a", 6, max_output_tokens=4), enqueue("b", 4, max_output_tokens=4))
    desk.say(Cancel("a", 100.0), AuditRequest(105.0))
    report = desk.reaper.of(AuditReport)[-1]
    assert (report.at, report.free, report.cached, report.used, report.total) == (105.0, 6, 0, 2, 8)
    assert sorted(report.requests) == ["a", "b"]


def test_the_gauges_show_blocks_and_lives() -> None:
    desk = Desk(blocks=8, chunk=8)
    desk.say(enqueue("a", 4, max_output_tokens=4), enqueue("b", range(50, 66), max_output_tokens=4))
    desk.finish(desk.step())
    text = desk.metrics.exposition().decode()
    assert 'rota_kv_blocks{state="used"} 6.0' in text
    assert 'rota_kv_blocks{state="free"} 2.0' in text
    assert 'rota_requests{state="decoding"} 1.0' in text
    assert 'rota_requests{state="prefilling"} 1.0' in text
    assert "rota_step_tokens_sum 13.0" in text, "4 alone, then 1 and a chunk of 8"
    assert "rota_step_seconds_count 1.0" in text
    assert "rota_output_tokens_total 1.0" in text


def test_the_gauges_of_free_cached_and_used_blocks_add_up() -> None:
    desk = Desk(blocks=8)

    def shown() -> dict[str, float | None]:
        value = desk.metrics.registry.get_sample_value
        return {state: value("rota_kv_blocks", {"state": state}) for state in ("free", "cached", "used")}

    assert shown() == {"free": 8, "cached": 0, "used": 0}
    desk.say(enqueue("a", 9, max_output_tokens=1))
    assert shown() == {"free": 5, "cached": 0, "used": 3}
    desk.finish(desk.step())
    assert shown() == {"free": 6, "cached": 2, "used": 0}
    desk.say(enqueue("b", 9, max_output_tokens=1))
    assert shown() == {"free": 5, "cached": 0, "used": 3}
    desk.say(AuditRequest(105.0))
    report = desk.reaper.of(AuditReport)[-1]
    assert (report.free, report.cached, report.used, report.total) == (5, 0, 3, 8)
    desk.finish(desk.step())
    assert shown() == {"free": 6, "cached": 2, "used": 0}
    desk.say(AuditRequest(105.0))
    report = desk.reaper.of(AuditReport)[-1]
    assert (report.free, report.cached, report.used, report.total) == (6, 2, 0, 8)
    desk.say(WorkerLost("it ended", 106.0), model_ready(blocks=10))
    assert shown() == {"free": 10, "cached": 0, "used": 0}


def test_the_end_says_how_much_of_the_prompt_was_found() -> None:
    desk = Desk()
    desk.say(enqueue("a", 9, max_output_tokens=1))
    desk.finish(desk.step())
    desk.say(enqueue("b", 9, max_output_tokens=1))
    step = desk.step()
    assert [(chunk.start, tokens_in(chunk.tokens)) for chunk in step.chunks] == [(8, [18])]
    desk.finish(step)
    desk.say(structs.replace(enqueue("c", 9, max_output_tokens=1), tenant="other"))
    desk.finish(desk.step())
    assert [ended.stats.cached_tokens for ended in desk.connection.of(Ended)] == [0, 8, 0]


@pytest.mark.parametrize("change", [{}, {"folder": "/elsewhere"}, {"rope": "yarn"}])
def test_a_new_worker_finds_nothing_of_the_old_ones_cache(change: dict[str, str]) -> None:
    desk = Desk()
    desk.say(enqueue("a", 9, max_output_tokens=1))
    desk.finish(desk.step())
    desk.say(WorkerLost("it ended", 101.0), structs.replace(model_ready(), **change))
    desk.say(enqueue("b", 9, max_output_tokens=1))
    desk.finish(desk.step())
    assert [ended.stats.cached_tokens for ended in desk.connection.of(Ended)] == [0, 0]


def test_names_tell_models_and_their_rope_settings_apart() -> None:
    readies = [model_ready(), structs.replace(model_ready(), folder="/x"), structs.replace(model_ready(), rope="yarn")]
    desks = [Desk(ready=False) for _ in readies]
    for desk, ready in zip(desks, readies, strict=True):
        desk.say(ready, enqueue("r", 9))
    sequences = [desk.actor._schedule.get("r") for desk in desks]
    assert len({one.names(1, 4)[0] for one in sequences if one is not None}) == 3


def test_queued_counts_who_waits_here_beside_who_waits_in_the_room() -> None:
    desk = Desk(blocks=4)

    def queued() -> float | None:
        return desk.metrics.registry.get_sample_value("rota_requests", {"state": "queued"})

    desk.metrics.count_queued("admission", 3)
    desk.say(enqueue("a", 12, max_output_tokens=2), enqueue("b", 12))
    assert queued() == 4, "a runs, and b waits for memory"
    desk.metrics.count_queued("admission", 0)
    assert queued() == 1
    desk.finish(desk.step())
    desk.finish(desk.step())
    assert desk.ends == [("a", "length")]
    assert queued() == 0


def test_the_time_in_the_queue_includes_the_waiting_room() -> None:
    desk = Desk()
    desk.clock.pass_(30.0)
    desk.say(enqueue("r", 4, max_output_tokens=1, received_at=99.0, accepted_at=100.0))
    desk.finish(desk.step())
    assert desk.connection.of(Ended)[0].stats.queued_s == 30.0


def test_the_time_from_cancel_to_release_is_counted() -> None:
    desk = Desk()
    desk.say(enqueue("r", 4))
    step = desk.step()
    desk.say(Cancel("r", 100.0))
    desk.clock.pass_(0.25)
    desk.finish(step)
    assert "rota_cancel_to_release_seconds_sum 0.25" in desk.metrics.exposition().decode()


# --- what each request took ---


def took(desk: Desk, request: str) -> tuple[int, int]:
    """Prompt tokens that were run, and tokens sampled."""
    (released,) = (released for released in desk.admission.of(Released) if released.request == request)
    assert [other for other in desk.reaper.of(Released) if other.request == request] == [released]
    return released.computed_tokens, released.output_tokens


@pytest.mark.parametrize(("output", "sampled"), [(3, 3), (0, 0)])
def test_a_release_says_what_was_read_and_written(output: int, sampled: int) -> None:
    desk = Desk()
    desk.say(enqueue("r", 9, max_output_tokens=output))
    desk.run()
    assert took(desk, "r") == (9, sampled)


def test_what_was_found_in_the_cache_is_not_counted_as_read() -> None:
    desk = Desk()
    for name in "ab":
        desk.say(enqueue(name, 9, max_output_tokens=2))
        desk.run()
    assert [took(desk, name) for name in "ab"] == [(9, 2), (1, 2)]


def test_what_was_read_again_after_a_preemption_counts_once() -> None:
    desk = Desk(blocks=5)
    desk.say(enqueue("a", 8, max_output_tokens=9), enqueue("b", range(50, 54), max_output_tokens=9))
    desk.run()
    assert desk.figure("rota_preemptions_total")
    assert [took(desk, name) for name in "ab"] == [(8, 9), (4, 9)]


@pytest.mark.parametrize("end", ["cancelled", "deadline", "stop text", "worker lost"])
def test_however_it_ends_a_release_says_what_it_took(end: str) -> None:
    desk = Desk()
    desk.say(enqueue("r", 9, max_output_tokens=9, deadline_at=200.0))
    desk.run(3)
    match end:
        case "cancelled":
            desk.say(Cancel("r", 100.0))
        case "deadline":
            desk.say(Expire("r", 200.0, waiting=False))
        case "stop text":
            desk.say(FinishStream("r", 100.0))
        case _:
            desk.say(WorkerLost("it ended", 100.0))
    desk.run()
    assert took(desk, "r") == (9, 3)


def test_one_that_never_ran_took_nothing() -> None:
    desk = Desk(blocks=4)
    desk.say(enqueue("other", 12, max_output_tokens=4), enqueue("r", 12))
    desk.say(Cancel("r", 100.0))
    assert took(desk, "r") == (0, 0)


# --- what steps cost ---


def test_what_steps_cost_is_told_when_a_model_is_ready() -> None:
    desk = Desk(ready=False)
    assert desk.admission.heard == []
    desk.say(model_ready(calibration=CALIBRATION))
    (learned,) = desk.admission.of(CostsLearned)
    assert learned.coefficients == pytest.approx(DEVICE.coefficients, abs=1e-6)
    assert learned.output_tokens == USUAL_OUTPUT_TOKENS
    desk.say(WorkerLost("it ended", 101.0), model_ready())
    assert not any(desk.admission.of(CostsLearned)[-1].coefficients), "nothing is known of the new one yet"


def test_it_is_told_again_every_so_many_steps() -> None:
    desk = Desk(blocks=200)
    desk.say(enqueue("r", 4, max_output_tokens=500))
    for times in (1, 2, 3):
        assert len(desk.admission.of(CostsLearned)) == times
        desk.run(LEARNED_EVERY - 1)
        assert len(desk.admission.of(CostsLearned)) == times
        desk.run(1)
    assert LEARNED_EVERY == 16


def test_what_steps_take_is_learned_without_a_calibration() -> None:
    desk = Desk(blocks=2000, chunk=30)
    for number in range(8):
        desk.say(enqueue(f"{number}", range(100 * number, 100 * number + 97), max_output_tokens=12))
        desk.run()
    assert desk.learned.chunk_s(0, 30) == pytest.approx(DEVICE.chunk_s(0, 30), rel=0.3)


def test_the_usual_answer_follows_the_answers_that_come() -> None:
    desk = Desk(blocks=200)
    for number in range(20):
        desk.say(enqueue(f"{number}", 4, max_output_tokens=5))
        desk.run()
    usual = [learned.output_tokens for learned in desk.admission.of(CostsLearned)]
    assert usual == sorted(usual, reverse=True)
    assert 5 < usual[-1] < USUAL_OUTPUT_TOKENS / 2


def test_how_far_predictions_are_off_is_shown() -> None:
    desk = Desk(blocks=200, calibration=CALIBRATION)
    desk.say(enqueue("r", 4, max_output_tokens=500))
    desk.run(60)
    exact = desk.figure("rota_step_cost_error_ratio")
    assert exact is not None
    assert 0 < exact < 0.05
    for step in range(30):
        desk.finish(desk.step(), took_s=0.004 if step % 2 else 0.001)
        desk.take_tokens()
    worse = desk.figure("rota_step_cost_error_ratio")
    assert worse is not None
    assert worse > 2 * exact


def test_a_result_of_a_step_that_was_lost_teaches_nothing() -> None:
    desk = Desk(calibration=CALIBRATION)
    desk.say(enqueue("r", 4))
    step = desk.step()
    desk.say(WorkerLost("it ended", 101.0), model_ready(calibration=CALIBRATION))
    before = desk.actor._schedule.costs.coefficients.copy()
    desk.say(StepDone(step.step, (), 99.0))
    assert desk.actor._schedule.costs.coefficients == before
