"""One response's events, whatever the order in which the engine speaks."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.answer import Answer
from actors.targets import Goal
from protocol.errors import WireError, internal_error
from protocol.messages import Accepted, Ended, FinishReason, Moved, Started, Stats, Text, TextEnd
from protocol.responses import ResponseCreate, ServiceTier
from tests.protocol.official import validate_event

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


GOAL = Goal("default", 5.0, 0.25)


def new_answer(lane: str | None = None, goal: Goal = GOAL, **fields: Any) -> Answer:
    return Answer("resp_1", ResponseCreate(stream_id=lane, **fields), 10.0, 1_732_900_000, "m", goal)


def accepted(position: int = 0) -> Accepted:
    return Accepted("resp_1", 9, 64, 10.0, position)


def text(words: str, *times: float, end: TextEnd | None = None) -> Text:
    return Text("resp_1", words, times, (), end)


def ended(reason: FinishReason, error: WireError | None = None) -> Ended:
    return Ended("resp_1", reason, Stats(), error)


def kinds(frames: list[bytes]) -> list[str]:
    return [json.loads(frame)["type"].removeprefix("response.") for frame in frames]


def test_text_is_joined_until_it_is_taken() -> None:
    answer = new_answer()
    answer.accepted(accepted())
    assert not answer.ready
    answer.add(text("one ", 11.0))
    answer.add(text("two", 12.0))
    assert answer.ready
    assert answer.unsent_chars == 7
    frames = answer.take(13.0, 0)
    assert json.loads(frames[-1])["delta"] == "one two"
    assert (answer.unsent_chars, answer.delivered_text, answer.output_tokens) == (0, "one two", 2)
    assert answer.gaps == [1.0]
    assert answer.first_text_at == 13.0


def test_text_before_anything_else_still_comes_after_created() -> None:
    answer = new_answer()
    answer.add(text("Hi", 11.0))
    assert kinds(answer.take(12.0, 0))[:2] == ["created", "in_progress"]
    assert kinds(answer.accepted(accepted())) == []
    assert answer.started(Started("resp_1", 12.0)) == []


def test_usage_counts_up_to_the_token_that_ended_the_answer() -> None:
    answer = new_answer()
    answer.accepted(accepted())
    answer.add(text("Hi", 11.0, 11.1, 11.2, 11.3, end=TextEnd("stop_text", 2)))
    answer.end(Ended("resp_1", "length", Stats(output_tokens=4)))
    response = json.loads(answer.take(12.0, 1_732_900_002)[-1])["response"]
    assert response["usage"]["output_tokens"] == 2
    assert response["rota"]["finish_reason"] == "stop_text"
    assert response["completed_at"] == 1_732_900_002


def test_quantiles_are_gaps_that_were_really_there() -> None:
    answer = new_answer()
    times = [11.0]
    for gap in [0.01] * 98 + [0.5, 0.9]:
        times.append(times[-1] + gap)
    answer.add(text("x", *times, end=TextEnd("stop", 101)))
    answer.end(ended("stop"))
    rota = json.loads(answer.take(12.0, 0)[-1])["response"]["rota"]
    assert rota["itl_ms"] == {"p50": 10, "p99": 500, "max": 900}


@pytest.mark.parametrize(
    ("asked", "used"), [("auto", "default"), ("flex", "flex"), ("ultrafast", "priority"), (None, "default")]
)
def test_every_event_with_a_response_shows_the_tier_used(asked: ServiceTier | None, used: str) -> None:
    answer = new_answer(goal=Goal(used, 5.0, 0.25), service_tier=asked)
    frames = [*answer.accepted(accepted(2)), *answer.started(Started("resp_1", 12.0))]
    answer.add(text("Hi", 11.0, end=TextEnd("stop", 1)))
    answer.end(ended("stop"))
    frames += answer.take(12.0, 0)
    for frame in frames:
        validate_event(frame)
    responses = [event["response"] for event in map(json.loads, frames) if "response" in event]
    assert [response.get("service_tier") for response in responses] == [used] * 4


@pytest.mark.parametrize(
    ("taken_at", "second_at", "met"),
    [
        (12.0, 11.2, {"ttft": True, "itl": True}),
        (12.5, 11.2, {"ttft": False, "itl": True}),
        (12.0, 11.3, {"ttft": True, "itl": False}),
        (12.0, None, {"ttft": True}),
    ],
)
def test_the_end_tells_the_targets_used_and_whether_each_was_met(
    taken_at: float, second_at: float | None, met: dict[str, bool]
) -> None:
    answer = new_answer(goal=Goal("fast", 2.0, 0.2))
    times = [11.0] if second_at is None else [11.0, second_at]
    answer.add(text("Hi", *times, end=TextEnd("stop", len(times))))
    answer.end(ended("stop"))
    rota = json.loads(answer.take(taken_at, 0)[-1])["response"]["rota"]
    assert (rota["service_tier"], rota["targets"]) == ("fast", {"ttft_ms": 2000, "itl_ms": 200})
    assert rota["met"] == met
    logged = answer.figures()
    assert (logged.service_tier, logged.ttft_target_ms, logged.itl_target_ms) == ("fast", 2000, 200)
    assert (logged.ttft_met, logged.itl_met) == (met.get("ttft"), met.get("itl"))


def test_an_answer_without_text_has_met_and_missed_nothing() -> None:
    answer = new_answer()
    answer.accepted(accepted())
    answer.end(ended("failed"))
    assert json.loads(answer.take(99.0, 0)[-1])["response"]["rota"]["met"] == {}


def test_a_place_in_the_queue_is_told_only_while_it_waits() -> None:
    answer = new_answer()
    assert answer.moved(Moved("resp_1", 3, 0.1)) == []
    assert kinds(answer.accepted(accepted(2))) == ["created", "queued"]
    assert kinds(answer.moved(Moved("resp_1", 1, 0.1))) == ["queued"]
    assert kinds(answer.started(Started("resp_1", 12.0))) == ["in_progress"]
    assert answer.moved(Moved("resp_1", 1, 0.1)) == []


def test_how_much_is_read_is_told_of_the_whole_prompt() -> None:
    answer = new_answer()
    assert answer.read(4) == [], "nothing was created yet"
    answer.accepted(accepted())
    frames = answer.started(Started("resp_1", 12.0, prefilled_tokens=4)) + answer.read(8)
    assert kinds(frames) == ["in_progress", "in_progress"]
    told = [json.loads(frame)["response"]["rota"] for frame in frames]
    assert told == [{"input_tokens": 9, "prefilled_tokens": read} for read in (4, 8)]
    answer.cancel()
    assert answer.read(8) == []


def test_a_failure_keeps_its_error_code() -> None:
    answer = new_answer()
    answer.end(ended("failed", internal_error()))
    assert kinds(answer.take(12.0, 0)) == ["created", "failed"]
    assert answer.figures().error_code == "internal_error"


def test_an_answer_that_was_finished_early_keeps_its_reason() -> None:
    answer = new_answer()
    answer.finish("failed", internal_error(), 0)
    answer.end(ended("cancelled"))
    assert not answer.ready
    assert answer.figures().finish_reason == "failed"


SPEECH = st.sampled_from(
    ["accepted", "queued", "moved", "started", "read", "text", "end", "ended", "gone", "cancel", "take"]
)


@pytest.mark.parametrize("reason", ["cancelled", "failed"])
@settings(deadline=None)
@given(script=st.lists(SPEECH, max_size=30))
def test_any_order_makes_one_valid_response(reason: FinishReason, script: list[str]) -> None:
    answer = new_answer("a")
    frames: list[bytes] = []
    said, over, cancelled_at = "", False, None

    def take() -> None:
        if answer.ready:
            frames.extend(answer.take(20.0, 1_732_900_002))

    for step, what in enumerate([*script, "gone", "take"]):
        match what:
            case "accepted" if not answer.exists:
                frames += answer.accepted(accepted())
            case "queued" if not answer.exists:
                frames += answer.accepted(accepted(2))
            case "moved":
                frames += answer.moved(Moved("resp_1", 1, 0.1))
            case "started":
                frames += answer.started(Started("resp_1", 10.0))
            case "read":
                frames += answer.read(step % 9)
            case "text" if not over:
                answer.add(text(f"{step} ", 10.0 + step))
                said += f"{step} "
            case "end" if not over:
                answer.add(text("", 10.0 + step, end=TextEnd("stop", 3)))
                over = True
            case "ended" if answer.ended is None and over:
                answer.end(ended("stop"))
            case "gone" if answer.ended is None:
                answer.end(ended("stop") if over else ended(reason, internal_error() if reason == "failed" else None))
            case "cancel":
                if answer.cancel():
                    cancelled_at = len(frames)
            case "take":
                take()
    events = [json.loads(frame) for frame in frames]
    for frame in frames:
        validate_event(frame)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    progress = [event["response"].get("rota") for event in events if event["type"] == "response.in_progress"]
    read = [rota["prefilled_tokens"] for rota in progress if rota is not None]
    assert read == sorted(set(read))
    shown = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert said.startswith(shown)
    if cancelled_at is not None:
        assert not any("delta" in event for event in events[cancelled_at:])
        assert events[-1]["response"]["status"] in ("cancelled", "failed")
    elif over and events[-1]["type"] == "response.completed":
        assert shown == said
    assert answer.figures().finish_reason == events[-1]["response"]["rota"]["finish_reason"]
