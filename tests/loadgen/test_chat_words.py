import msgspec
import pytest

from loadgen.chat_wire import Answer, events
from loadgen.chat_words import cost, ending, standing, time_of, why
from tests.loadgen import scripted_server as server
from tests.loadgen.scripted_server import ROTA, Body, usage


def heard(*said: Body) -> Answer:
    answer = Answer()
    for event in said:
        answer.hear(events.decode(msgspec.json.encode(event)))
    return answer


def created() -> Body:
    return {"type": "response.created", "response": server.response("queued")}


def ended(kind: str, **more: object) -> Body:
    return {"type": f"response.{kind}", "response": server.response(kind, **more)}


def queued(**rota: float) -> str | None:
    said = {"type": "response.queued", "response": server.response("queued", rota=rota)}
    return standing(events.decode(msgspec.json.encode(said)), None)


@pytest.mark.parametrize(("ms", "text"), [(0.4, "0 ms"), (41.4, "41 ms"), (999.0, "999 ms"), (1234.0, "1.2 s")])
def test_a_time_is_as_long_as_it_needs_to_be(ms: float, text: str) -> None:
    assert time_of(ms) == text


def test_who_waits_hears_the_place_and_the_estimate() -> None:
    assert queued(position=3, estimated_wait_ms=1200.0) == "number 3 in the queue, about 1.2 s"
    assert queued(position=1) == "next in the queue"
    assert queued() == "waiting"


def test_who_is_served_hears_how_much_is_read() -> None:
    event = events.decode(msgspec.json.encode({"type": "response.in_progress", "response": server.response("x")}))
    assert standing(event, 1234) == "reading about 1,234 tokens"
    assert standing(event, None) == "reading"
    assert standing(events.decode(b'{"type":"response.output_text.delta","delta":"x"}'), 5) is None


def test_who_is_served_by_rota_hears_how_much_of_the_prompt_is_read() -> None:
    def read(tokens: int) -> str | None:
        response = server.response("x") | {"rota": {"input_tokens": 11_970, "prefilled_tokens": tokens}}
        frame = msgspec.json.encode({"type": "response.in_progress", "response": response})
        return standing(events.decode(frame), 1234)

    assert read(0) == "reading 11,970 tokens"
    assert read(4096) == "reading, 4,096 of 11,970 tokens"


@pytest.mark.parametrize(
    ("kind", "reason", "words"),
    [
        ("completed", "stop", "End of answer"),
        ("completed", "stop_text", "Stop text"),
        ("incomplete", "length", "Output limit"),
        ("incomplete", "deadline", "Deadline"),
        ("incomplete", "cancelled", "Stopped by the server"),
        ("incomplete", "new\x1b[0m", "Ended: new[0m"),
    ],
)
def test_every_end_has_words(kind: str, reason: str, words: str) -> None:
    assert why(heard(created(), ended(kind, rota={**ROTA, "finish_reason": reason}))) == words


def test_what_the_person_stopped_was_stopped_by_you_unless_it_had_ended() -> None:
    answer = heard(created(), ended("incomplete", rota={**ROTA, "finish_reason": "cancelled"}))
    answer.stopped = True
    assert why(answer) == "Stopped by you"
    late = heard(created(), ended("completed", rota={**ROTA, "finish_reason": "stop"}))
    late.stopped = True
    assert why(late) == "End of answer"


def test_a_server_that_is_no_rota_says_why_too() -> None:
    assert why(heard(created(), ended("completed"))) == "End of answer"
    assert (
        why(heard(created(), ended("incomplete", incomplete_details={"reason": "max_output_tokens"}))) == "Output limit"
    )


def test_a_failure_is_one_line_without_control_characters() -> None:
    error = {"code": "server_error", "message": "The worker\nstopped.\x1b[2J"}
    answer = heard(created(), ended("failed", error=error, rota={**ROTA, "error_code": "worker_failed"}))
    assert why(answer) == "Failed: The worker stopped.[2J"
    assert answer.code == "worker_failed"
    refused = heard(server.refusal("server_overloaded", "The queue is full."))
    assert ending(refused) == "Refused: The queue is full."
    assert why(heard(created(), ended("failed"))) == "Failed: the server does not say why"


def test_the_cost_is_told_in_full() -> None:
    rota = {
        **ROTA,
        "itl_ms": {"p50": 20.0, "p99": 31.0, "max": 1500.0},
        "preemptions": 1,
        "targets": {"ttft_ms": 50.0, "itl_ms": 100.0},
        "met": {"ttft": False, "itl": True},
    }
    answer = heard(created(), server.delta("x"), ended("incomplete", usage=usage(121, 1200, 1024), rota=rota))
    assert answer.first_text_s is not None
    answer.ended_s = answer.first_text_s + 2.0
    assert ending(answer) == (
        "Output limit · 1,200 tokens in (1,024 cached) · 121 out · first token 55 ms · 60.0 tokens/s · "
        "gaps 20 ms, 99 % 31 ms, worst 1.5 s · queue 41 ms · preempted once · target missed: first token (50 ms)"
    )


@pytest.mark.parametrize(
    ("met", "words"),
    [
        ({"ttft": True, "itl": True}, "targets met"),
        ({"ttft": True}, "targets met"),
        ({"ttft": False, "itl": False}, "target missed: first token and gaps (100 ms)"),
        ({}, None),
    ],
)
def test_targets_are_met_or_named(met: Body, words: str | None) -> None:
    rota = {"finish_reason": "stop", "targets": {"itl_ms": 100.0}, "met": met}
    costs = cost(heard(created(), ended("completed", rota=rota)))
    assert costs == (words or "")


def test_one_token_has_no_rate() -> None:
    answer = heard(created(), server.delta("x"), ended("completed", usage=usage(1)))
    assert "tokens/s" not in cost(answer)
