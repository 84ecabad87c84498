"""One response on a socket: what its client is told, in which order, and what the engine hears of it."""

import pytest
from structlog.testing import capture_logs

from protocol.errors import WireError
from protocol.messages import (
    Accepted,
    Ended,
    FinishReason,
    Moved,
    Refused,
    Released,
    Started,
    Stats,
    Text,
    TextEnd,
    TokenLogprob,
)
from tests.actors.connection_rig import DONE, OUTPUT, MakeRig


async def test_a_whole_turn_with_a_wait(make_rig: MakeRig) -> None:
    rig = make_rig()
    with capture_logs() as logs:
        request = await rig.asked("a")
        rig.tell(Accepted(request, 9, 64, rig.now, position=2, estimated_wait_s=0.04))
        await rig.settle()
        rig.tell(Moved(request, 1, 0.02))
        await rig.settle()
        rig.tell(Started(request, rig.now))
        rig.now += 0.055
        await rig.say(request, "Hello", rig.now)
        await rig.say(request, " ✓", rig.now + 0.02)
        rig.tell(Ended(request, "stop", Stats(0.041, 0.012, rig.now, 4, 3, 1, 0.5)))
        await rig.settle()
        assert rig.kinds("a") == ["created", "queued", "queued", "in_progress", *OUTPUT, "output_text.delta"]
        rig.tell(Text(request, ".", (rig.now + 0.053,), (), TextEnd("stop", 3)))
        await rig.settle()
    assert rig.kinds("a")[-5:] == ["output_text.delta", *DONE, "completed"]
    assert [event["sequence_number"] for event in rig.events] == list(range(len(rig.events)))
    assert rig.events[0]["response"]["status"] == "queued"
    assert rig.events[1]["response"]["rota"] == {"position": 2, "estimated_wait_ms": 40}
    response = rig.events[-1]["response"]
    assert response["id"] == request == "resp_1"
    assert response["created_at"] == 1_732_900_000
    assert response["output"][0]["id"] == "msg_1"
    assert response["output"][0]["content"][0]["text"] == rig.text("a") == "Hello ✓."
    assert response["usage"]["input_tokens"] == 9
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert response["usage"]["output_tokens"] == 3
    assert response["rota"] == {
        "finish_reason": "stop",
        "queue_ms": 41,
        "prefill_ms": 12,
        "ttft_ms": 55,
        "itl_ms": {"p50": 20, "p99": 33, "max": 33},
        "preemptions": 1,
        "paused_ms": 500,
        "delivered_chars": 8,
        "service_tier": "default",
        "targets": {"ttft_ms": 5000, "itl_ms": 250},
        "met": {"ttft": True, "itl": True},
    }
    (finished,) = [entry for entry in logs if entry["event"] == "request.finished"]
    assert finished["request"] == request
    assert finished["first_token_ms"] == finished["first_text_ms"] == 55
    assert finished["finish_reason"] == "stop"
    assert rig.metrics.registry.get_sample_value("rota_requests_finished_total", {"reason": "stop"}) == 1
    assert rig.metrics.registry.get_sample_value("rota_input_tokens_total") == 9
    assert rig.metrics.registry.get_sample_value("rota_ttft_seconds_count") == 1
    assert rig.metrics.registry.get_sample_value("rota_inter_token_gap_seconds_count") == 2


async def test_what_the_tokeniser_is_asked(make_rig: MakeRig) -> None:
    rig = make_rig()
    await rig.asked("a", seed=7)
    (ask,) = rig.asks
    assert (ask.request, ask.connection, ask.tenant, ask.received_at) == ("resp_1", 7, "shop", 100.0)
    assert (ask.create.seed, ask.create.stream_id) == (7, "a")


@pytest.mark.parametrize("tenant", ["shop", ""])
async def test_the_log_names_the_key_and_the_wait_in_the_lane(make_rig: MakeRig, tenant: str) -> None:
    rig = make_rig(tenant=tenant)
    with capture_logs() as logs:
        first = await rig.running("a")
        rig.create("a")
        await rig.settle()
        rig.now += 2
        rig.end(first)
        await rig.until(lambda: len(rig.asks) == 2)
        rig.end(rig.asks[1].request)
        await rig.settle()
    finished = [entry for entry in logs if entry["event"] == "request.finished"]
    assert [entry["lane_ms"] for entry in finished] == [0, 2000]
    assert [entry.get("key") for entry in finished] == [tenant or None] * 2
    assert ("key" in finished[0]) == bool(tenant)


async def test_the_end_waits_for_the_figures_and_for_the_text(make_rig: MakeRig) -> None:
    rig = make_rig()
    first = await rig.running("a")
    rig.tell(Text(first, "Hi", (rig.now,), (), TextEnd("length", 1)))
    await rig.settle()
    assert rig.kinds("a")[-1] == "output_text.delta"
    rig.tell(Ended(first, "length", Stats()))
    await rig.settle()
    assert rig.kinds("a")[-1] == "incomplete"
    second = await rig.running("b")
    rig.tell(Ended(second, "stop", Stats()))
    await rig.settle()
    assert rig.kinds("b") == ["created"]
    rig.tell(Text(second, "", (rig.now,), (), TextEnd("stop_text", 1)))
    await rig.settle()
    assert rig.kinds("b")[-1] == "completed"
    assert rig.events[-1]["response"]["rota"]["finish_reason"] == "stop_text"


async def test_prefill_only_completes_without_output(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running(generate=False)
    rig.end(request, "prefilled", 0)
    await rig.settle()
    assert rig.kinds() == ["created", "in_progress", "completed"]
    assert rig.events[-1]["response"]["output"] == []


@pytest.mark.parametrize(
    ("reason", "kind", "status"),
    [
        ("length", "incomplete", "incomplete"),
        ("deadline", "incomplete", "incomplete"),
        ("stop", "completed", "completed"),
    ],
)
async def test_each_natural_end_has_its_event(make_rig: MakeRig, reason: FinishReason, kind: str, status: str) -> None:
    rig = make_rig()
    request = await rig.running()
    await rig.say(request, "Hel", rig.now)
    rig.end(request, reason)
    await rig.settle()
    assert rig.kinds()[-1] == kind
    assert rig.events[-1]["response"]["status"] == status
    assert rig.events[-1]["response"]["rota"]["finish_reason"] == reason


async def test_a_deadline_passed_in_the_queue_is_a_failed_response(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.asked()
    rig.tell(Accepted(request, 9, 64, rig.now, position=1))
    error = WireError("deadline_exceeded", "Too late.")
    rig.tell(Ended(request, "failed", Stats(), error))
    await rig.settle()
    assert rig.kinds() == ["created", "queued", "failed"]
    assert rig.events[-1]["response"]["error"] == {"code": "server_error", "message": "Too late."}
    assert rig.events[-1]["response"]["rota"]["error_code"] == "deadline_exceeded"


async def test_log_probabilities_follow_their_text(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running(include=["message.output_text.logprobs"])
    rig.tell(Text(request, "Hi", (rig.now,), (TokenLogprob("Hi", -0.5),)))
    await rig.settle()
    assert rig.events[-1]["logprobs"][0]["logprob"] == -0.5


async def test_a_refused_request_gets_an_error_on_its_lane(make_rig: MakeRig) -> None:
    rig = make_rig()
    with capture_logs() as logs:
        request = await rig.asked("a")
        rig.tell(Refused(request, WireError("context_length_exceeded", "Too long.", "input")))
        await rig.settle()
    assert rig.kinds("a") == ["error:context_length_exceeded"]
    assert [entry["code"] for entry in logs if entry["event"] == "request.refused"] == ["context_length_exceeded"]
    labels = {"code": "context_length_exceeded"}
    assert rig.metrics.registry.get_sample_value("rota_requests_refused_total", labels) == 1


async def test_a_full_tokeniser_is_said_at_once_and_the_lane_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.tokeniser.full = True
    rig.create("a")
    await rig.until(lambda: rig.kinds("a") == ["error:server_overloaded"])
    assert rig.events[0]["error"]["retry_after_ms"] > 0
    rig.tokeniser.full = False
    await rig.running("a")


async def test_messages_about_requests_nobody_knows_are_dropped(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.tell(Text("resp_x", "Hi", ()))
    rig.tell(Ended("resp_x", "stop", Stats()))
    rig.tell(Released("resp_x", rig.now))
    await rig.settle()
    assert rig.events == []
