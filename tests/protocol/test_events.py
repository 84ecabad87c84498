"""The server's events: as the design's examples have them, and as the official types want them."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.responses_websocket import ResponsesWebSocketAccumulator

from protocol import errors
from protocol.event_shapes import Gaps, Progress
from protocol.events import (
    ResponseEvents,
    Terminal,
    error_event,
    http_error_body,
    retry_headers,
    steer_failed,
)
from protocol.messages import FinishReason, TokenLogprob
from protocol.responses import LOGPROBS, ResponseCreate, ResponseSteer, parse_client_event
from tests.protocol.official import OFFICIAL_TYPES, parse_event, validate_event

HERE = Path(__file__).parent
GOLDEN = [json.loads(line) for line in (HERE / "golden.jsonl").read_text().splitlines()]
VARIANTS = [json.loads(line) for line in (HERE / "variants.jsonl").read_text().splitlines()]
FIGURES: dict[str, Any] = {
    "input_tokens": 9,
    "output_tokens": 3,
    "queue_ms": 41.0,
    "prefill_ms": 12.0,
    "ttft_ms": 55.0,
    "itl_ms": Gaps(20.0, 31.0, 33.0),
    "completed_at": 1732900001,
}
REASONS = get_args(FinishReason)
DOT = TokenLogprob(".", -0.1, ((".", -0.1),))


def events_of(create: ResponseCreate) -> ResponseEvents:
    return ResponseEvents(response_id="resp_1", item_id="msg_1", created_at=1732900000, model="m", create=create)


def terminal(reason: FinishReason, **figures: Any) -> Terminal:
    return Terminal(reason, **(FIGURES | figures))


def ended(reason: FinishReason, text: str = "Hello ✓.", create: ResponseCreate | None = None) -> list[Any]:
    """All events of a response that waited, ran and ended so, each valid against the official types."""
    events = events_of(create or ResponseCreate(model="m"))
    frames = events.created(queued=True) + events.queued(1, 40.0) + events.in_progress()
    for character in text:
        frames += events.text(character, (DOT,))
    error = errors.worker_failed(0) if reason == "failed" else None
    frames += events.finish(terminal(reason, error=error))
    return checked(frames)


def checked(frames: list[bytes]) -> list[Any]:
    for frame in frames:
        validate_event(frame)
    bodies = [json.loads(frame) for frame in frames]
    assert [body["sequence_number"] for body in bodies] == list(range(len(bodies)))
    return bodies


def types(bodies: list[Any]) -> list[str]:
    return [body["type"].removeprefix("response.") for body in bodies]


# --- the design's examples -------------------------------------------------------------------------------------------


def golden_turn(create: ResponseCreate) -> list[Any]:
    events = events_of(create)
    frames = events.created(queued=True) + events.queued(1, 40.0) + events.in_progress()
    for delta in ("Hello", " ✓", "."):
        frames += events.text(delta)
    return checked(frames + events.finish(terminal("stop")))


def test_golden_turn_is_reproduced() -> None:
    assert golden_turn(ResponseCreate(model="m", stream_id="a")) == GOLDEN[1:13]


def test_golden_request_gives_the_golden_turn_with_what_it_asked_for_beside() -> None:
    create = parse_client_event(json.dumps(GOLDEN[0]))
    assert isinstance(create, ResponseCreate)
    bodies = golden_turn(create)
    for body in bodies:
        if "response" in body:
            assert body["response"].pop("max_output_tokens") == 16
    assert bodies == GOLDEN[1:13]


def test_golden_refusal_is_reproduced() -> None:
    create = parse_client_event(json.dumps(GOLDEN[13]))
    assert isinstance(create, ResponseCreate)
    frame = error_event(errors.model_not_found(create.model, ["m"]), create.stream_id)
    validate_event(frame)
    assert json.loads(frame) == GOLDEN[14]


@pytest.mark.parametrize(("index", "reason"), list(enumerate(("length", "cancelled", "deadline", "failed"))))
def test_each_end_in_the_variants_is_reproduced(index: int, reason: FinishReason) -> None:
    body = ended(reason)[-1]
    assert body == {**VARIANTS[index], "sequence_number": body["sequence_number"]}


def test_both_shapes_of_log_probabilities_are_reproduced() -> None:
    events = events_of(ResponseCreate(model="m", include=(LOGPROBS,), top_logprobs=1))
    frames = events.created(queued=True) + events.queued(1, 40.0) + events.in_progress()
    frames += events.text("Hello") + events.text(" ✓") + events.text(".", (DOT,))
    bodies = checked(frames + events.finish(terminal("stop")))
    assert bodies[7] == VARIANTS[4]
    assert bodies[9] == VARIANTS[5]
    assert bodies[8]["logprobs"] == VARIANTS[4]["logprobs"]
    assert bodies[11]["response"]["output"][0]["content"] == [VARIANTS[5]["part"]]


def test_refused_steer_is_reproduced() -> None:
    frame = steer_failed(ResponseSteer("resp_1", "Shorter."))
    validate_event(frame)
    assert json.loads(frame) == VARIANTS[6]


def test_refusal_with_a_retry_time_is_reproduced() -> None:
    frame = error_event(errors.rate_limit_exceeded("The queue is full", 1500), None)
    validate_event(frame)
    assert json.loads(frame) == VARIANTS[7]


def test_every_example_is_valid_itself() -> None:
    for example in GOLDEN + VARIANTS:
        if example["type"] != "response.create":
            validate_event(json.dumps(example))


# --- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("text", ["", "Hello ✓."])
@pytest.mark.parametrize("include", [(), (LOGPROBS,)])
def test_every_end_is_valid_and_deltas_equal_the_text(
    reason: FinishReason, text: str, include: tuple[str, ...]
) -> None:
    bodies = ended(reason, text, ResponseCreate(model="m", include=include, stream_id="a"))
    deltas = "".join(body["delta"] for body in bodies if body["type"] == "response.output_text.delta")
    done = [body["text"] for body in bodies if body["type"] == "response.output_text.done"]
    assert deltas == text
    assert done in ([], [text])
    assert bodies[-1]["response"]["rota"]["delivered_chars"] == len(text)
    assert all(body["stream_id"] == "a" for body in bodies)
    opened = types(bodies).count("output_item.added")
    assert types(bodies).count("output_item.done") == len(done) == opened == len(bodies[-1]["response"]["output"])


@pytest.mark.parametrize("reason", ["stop", "stop_text", "length"])
def test_an_empty_answer_that_ended_by_itself_has_an_empty_item(reason: FinishReason) -> None:
    bodies = ended(reason, "")
    assert types(bodies)[3:-1] == [
        *("output_item.added", "content_part.added"),
        *("output_text.done", "content_part.done", "output_item.done"),
    ]
    assert bodies[-1]["response"]["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize("reason", ["prefilled", "cancelled", "deadline", "failed"])
def test_an_end_before_any_text_has_no_item(reason: FinishReason) -> None:
    bodies = ended(reason, "")
    assert types(bodies)[:3] == ["created", "queued", "in_progress"]
    assert len(bodies) == 4
    assert bodies[-1]["response"]["output"] == []


def test_prefill_only_is_three_events() -> None:
    events = events_of(ResponseCreate(generate=False))
    bodies = checked(events.created(queued=False) + events.finish(terminal("prefilled", output_tokens=0)))
    assert types(bodies) == ["created", "in_progress", "completed"]
    assert bodies[-1]["response"]["rota"]["finish_reason"] == "prefilled"


def test_a_response_cancelled_in_the_queue_never_runs() -> None:
    events = events_of(ResponseCreate())
    bodies = checked(events.created(queued=True) + events.queued(3, 900) + events.finish(Terminal("cancelled")))
    assert types(bodies) == ["created", "queued", "incomplete"]
    assert bodies[-1]["response"]["status"] == "cancelled"
    assert events.finished


def test_a_place_without_an_estimate_names_none() -> None:
    events = events_of(ResponseCreate())
    bodies = checked(events.created(queued=True) + events.queued(3, None))
    assert bodies[-1]["response"]["rota"] == {"position": 3}


def test_text_that_overtakes_the_start_is_preceded_by_it() -> None:
    events = events_of(ResponseCreate())
    bodies = checked(events.created(queued=False) + events.text("a"))
    assert types(bodies) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
    ]
    assert events.in_progress() == []


def test_as_a_prompt_is_read_its_reader_hears_how_much_of_it() -> None:
    events = events_of(ResponseCreate(stream_id="a"))
    frames = events.created(queued=False)
    for read in (512, 4096, 8192):
        frames += events.in_progress(Progress(11_970, read))
    bodies = checked(frames + events.text("a") + events.finish(terminal("stop")))
    assert types(bodies)[:5] == ["created", "in_progress", "in_progress", "in_progress", "output_item.added"]
    assert [body["response"]["rota"] for body in bodies[1:4]] == [
        {"input_tokens": 11_970, "prefilled_tokens": read} for read in (512, 4096, 8192)
    ]
    accumulator = ResponsesWebSocketAccumulator()
    for body in bodies:
        accumulator.add_event(parse_event(json.dumps(body)))
    assert accumulator.get_final_response().output_text == "a"


def test_what_says_nothing_new_of_a_prompt_is_not_sent() -> None:
    events = events_of(ResponseCreate())
    events.created(queued=False)
    events.in_progress(Progress(100, 60))
    assert events.in_progress(Progress(100, 60)) == events.in_progress(Progress(100, 40)) == []
    events.text("a")
    assert events.in_progress(Progress(100, 80)) == [], "there is text already"


def test_a_place_in_the_queue_that_comes_too_late_is_not_sent() -> None:
    events = events_of(ResponseCreate())
    events.created(queued=True)
    events.in_progress()
    assert events.queued(1, 10) == []


def test_an_empty_delta_is_nothing_to_tell() -> None:
    events = events_of(ResponseCreate())
    events.created(queued=False)
    assert events.text("") == []
    assert events.text("", (DOT,)) == []


def test_log_probabilities_without_text_are_told_when_asked_for() -> None:
    events = events_of(ResponseCreate(include=(LOGPROBS,)))
    bodies = checked(events.created(queued=False) + events.text("", (DOT,)))
    assert bodies[-1]["logprobs"][0]["token"] == "."


def test_nothing_follows_the_end() -> None:
    events = events_of(ResponseCreate())
    with pytest.raises(AssertionError):
        events.in_progress()
    events.created(queued=False)
    events.finish(terminal("cancelled"))
    assert events.in_progress() == events.queued(1, 1) == []
    with pytest.raises(AssertionError):
        events.text("a")
    with pytest.raises(AssertionError):
        events.finish(terminal("stop"))


@given(st.lists(st.text(), max_size=8), st.sampled_from(REASONS))
def test_whatever_the_text_deltas_add_up(deltas: list[str], reason: FinishReason) -> None:
    events = events_of(ResponseCreate())
    frames = events.created(queued=False)
    if reason != "prefilled":
        for delta in deltas:
            frames += events.text(delta)
    bodies = [json.loads(frame) for frame in frames + events.finish(Terminal(reason))]
    sent = "".join(body["delta"] for body in bodies if body["type"] == "response.output_text.delta")
    assert sent == events.delivered_text == "".join(b["text"] for b in bodies if b["type"].endswith("text.done"))


@pytest.mark.parametrize("reason", REASONS)
def test_the_official_accumulator_gathers_what_was_sent(reason: FinishReason) -> None:
    text = "" if reason == "prefilled" else "Hello ✓."
    events = events_of(ResponseCreate())
    frames = events.created(queued=True) + events.queued(1, 40.0) + events.text(text)
    frames += events.finish(terminal(reason))
    accumulator = ResponsesWebSocketAccumulator()
    for frame in frames:
        accumulator.add_event(parse_event(frame))
    assert accumulator.get_final_response().output_text == text


# --- what the objects hold -------------------------------------------------------------------------------------------


def test_a_response_repeats_what_was_asked_of_it() -> None:
    asked = {
        "max_output_tokens": 5,
        "metadata": {"a": "b"},
        "previous_response_id": "resp_0",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "flex",
        "temperature": 0.5,
        "top_logprobs": 2,
        "top_p": 0.9,
        "truncation": "auto",
        "user": "u",
    }
    create = parse_client_event(json.dumps({"type": "response.create", "model": "m", "input": "Hi", **asked}))
    assert isinstance(create, ResponseCreate)
    for body in ended("stop", create=create):
        if "response" in body:
            assert body["response"].items() >= asked.items()


def test_the_tier_used_is_shown_instead_of_the_one_asked_for() -> None:
    events = ResponseEvents(
        response_id="r",
        item_id="i",
        created_at=1,
        model="m",
        create=ResponseCreate(service_tier="auto"),
        service_tier="default",
    )
    assert checked(events.created(queued=False))[0]["response"]["service_tier"] == "default"


def test_a_lost_worker_is_told_with_what_had_been_delivered() -> None:
    response = ended("failed")[-1]["response"]
    assert response["error"]["message"] == errors.worker_failed(8).message
    assert response["rota"]["error_code"] == "worker_failed"


def test_a_failure_without_a_reason_is_an_internal_error() -> None:
    events = events_of(ResponseCreate())
    bodies = checked(events.created(queued=False) + events.finish(Terminal("failed")))
    assert bodies[-1]["response"]["rota"]["error_code"] == "internal_error"
    assert bodies[-1]["response"]["error"]["code"] == "server_error"


def test_a_failure_with_a_retry_time_tells_it() -> None:
    events = events_of(ResponseCreate())
    error = errors.server_overloaded("The request waited too long", 2500.2)
    bodies = checked(events.created(queued=True) + events.finish(Terminal("failed", error=error)))
    assert bodies[-1]["response"]["error"]["retry_after_ms"] == 2501


def test_figures_that_never_came_about_are_left_out() -> None:
    events = events_of(ResponseCreate())
    rota = checked(events.created(queued=True) + events.finish(Terminal("cancelled")))[-1]["response"]["rota"]
    assert rota.keys() == {"finish_reason", "queue_ms", "preemptions", "paused_ms", "delivered_chars"}


def test_an_impossible_token_still_has_a_number() -> None:
    events = events_of(ResponseCreate(include=(LOGPROBS,)))
    token = TokenLogprob("é", float("-inf"), (("é", float("-inf")),))
    bodies = checked(events.created(queued=False) + events.text("é", (token,)) + events.finish(terminal("stop")))
    assert bodies[4]["logprobs"][0]["logprob"] == -9999.0
    assert bodies[-1]["response"]["output"][0]["content"][0]["logprobs"][0]["bytes"] == [0xC3, 0xA9]


@pytest.mark.parametrize("code", get_args(errors.ErrorCode))
@pytest.mark.parametrize("lane", [None, "a"])
def test_every_error_is_a_valid_event(code: errors.ErrorCode, lane: str | None) -> None:
    frame = error_event(errors.WireError(code, "What was wrong, and what to do."), lane)
    validate_event(frame)
    assert json.loads(frame).get("stream_id", None) == lane


def test_the_body_of_an_http_refusal_is_the_same_error() -> None:
    error = errors.server_overloaded("It is full", 40.5)
    assert json.loads(http_error_body(error))["error"] == json.loads(error_event(error, None))["error"]
    assert retry_headers(error) == {"retry-after-ms": "41"}
    assert retry_headers(errors.authentication_failed()) == {}


def test_a_steer_is_given_back_as_it_came() -> None:
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Shorter."}]}]
    frame = steer_failed(ResponseSteer("resp_1", items))
    validate_event(frame)
    assert json.loads(frame)["steer"]["input"] == items


def test_the_official_types_are_found_and_are_strict() -> None:
    assert {"response.queued", "error", "response.steer.failed"} <= OFFICIAL_TYPES.keys()
    event = GOLDEN[12]
    without = {name: value for name, value in event["response"].items() if name != "tools"}
    wrong: list[Any] = [
        {**event, "response": without},
        {**event, "sequence_number": "11"},
        {**event, "stream_id": None},
        {**event, "surplus": 1},
    ]
    for body in wrong:
        with pytest.raises((AssertionError, ValueError)):
            validate_event(json.dumps(body))


# --- once more -------------------------------------------------------------------------------------------------------


@given(
    places=st.lists(st.integers(1, 99), max_size=4),
    read=st.lists(st.integers(0, 8), max_size=4),
    deltas=st.lists(st.tuples(st.text(max_size=4), st.integers(0, 2)), max_size=6),
    reason=st.sampled_from(REASONS) | st.none(),
    logprobs=st.booleans(),
    lane=st.none() | st.just("a"),
)
def test_every_event_can_be_made_again_as_it_was(
    places: list[int],
    read: list[int],
    deltas: list[tuple[str, int]],
    reason: FinishReason | None,
    logprobs: bool,
    lane: str | None,
) -> None:
    include = (LOGPROBS,) if logprobs else ()
    events = events_of(ResponseCreate(model="m", resumable=True, include=include, stream_id=lane, metadata={"a": "b"}))
    frames = events.created(queued=bool(places))
    for place in places:
        frames += events.queued(place, 40.0 * place)
    for tokens in read:
        frames += events.in_progress(Progress(9, tokens))
    for text, count in deltas:
        frames += events.text(text, (DOT,) * count)
        assert [events.again(number) for number in range(events.made)] == frames
    if reason is not None:
        frames += events.finish(terminal(reason, error=errors.worker_failed(0) if reason == "failed" else None))
    assert [events.again(number) for number in range(events.made)] == frames
