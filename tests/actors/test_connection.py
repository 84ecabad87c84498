"""What a socket's client is told, in which order, and what the engine hears of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from actors.connection import Connection
from protocol.errors import WireError, shutting_down, worker_failed
from protocol.messages import (
    Accepted,
    Cancel,
    CloseConnection,
    ConnectionClosed,
    Drain,
    Ended,
    FinishReason,
    FrameReceived,
    Moved,
    Refused,
    Released,
    SetPaused,
    Started,
    Stats,
    Text,
    TextEnd,
    TokenLogprob,
    WatchConnection,
    WorkerLost,
)
from tests.actors.connection_rig import Rig

MakeRig = Callable[..., Rig]
OUTPUT = ["output_item.added", "content_part.added", "output_text.delta"]
DONE = ["output_text.done", "content_part.done", "output_item.done"]


@pytest_asyncio.fixture
async def make_rig() -> AsyncIterator[MakeRig]:
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        if not rig.serving.done():
            await rig.leave()


# --- one response ----------------------------------------------------------------------------------------------------


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


async def test_a_lost_worker_ends_the_answer_with_the_text_so_far(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    await rig.say(request, "Hel", rig.now)
    rig.tell(Ended(request, "failed", Stats(), worker_failed(0)))
    rig.tell(Text(request, "lo", (rig.now,)))
    await rig.settle()
    assert rig.kinds()[-4:] == [*DONE, "failed"]
    assert rig.text() == "Hel"
    assert "3 characters" in rig.events[-1]["response"]["error"]["message"]


@pytest.mark.parametrize("here", ["nothing", "some text", "the end", "a cancel"])
async def test_a_worker_lost_after_the_figures_fails_only_answers_whose_text_is_not_whole(
    make_rig: MakeRig, here: str
) -> None:
    rig = make_rig()
    request = await rig.running()
    if here != "nothing":
        await rig.say(request, "Hel", rig.now)
    rig.socket.room.clear()
    if here == "the end":
        await rig.say(request, "l", rig.now)  # which waits for room, and the end behind it
        rig.tell(Text(request, "o", (rig.now,), (), TextEnd("stop", 3)))
    if here == "a cancel":
        rig.send(type="response.cancel")
    await rig.settle()
    rig.tell(Ended(request, "stop", Stats(queued_s=0.5)))
    await rig.settle()
    rig.tell(WorkerLost("a defect", rig.now))
    await rig.settle()
    rig.socket.room.set()
    await rig.settle()
    rig.tell(Text(request, "late", (rig.now,), (), TextEnd("stop", 4)))
    await rig.settle()
    response = rig.events[-1]["response"]
    expected = {"the end": ("completed", "stop"), "a cancel": ("cancelled", "cancelled")}
    assert (response["status"], response["rota"]["finish_reason"]) == expected.get(here, ("failed", "failed"))
    assert response["rota"]["queue_ms"] == 500
    assert rig.text() == {"nothing": "", "the end": "Hello"}.get(here, "Hel")
    assert len(rig.cancels) == (0 if here == "the end" else 1)
    assert not rig.connection._exchange.busy


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


# --- lanes -----------------------------------------------------------------------------------------------------------


async def test_nothing_of_the_next_request_comes_before_the_end_of_the_one_before(make_rig: MakeRig) -> None:
    rig = make_rig()
    first = await rig.running()
    rig.create()
    rig.socket.incoming.put_nowait("{")
    rig.socket.incoming.put_nowait(b"\x00")
    rig.send(type="response.create", model="m", input="x", temperature=9)
    await rig.settle()
    assert rig.kinds() == ["created"]
    assert len(rig.asks) == 1
    rig.end(first)
    await rig.until(lambda: len(rig.asks) == 2)
    second = rig.asks[-1].request
    rig.tell(Refused(second, WireError("rate_limit_exceeded", "Full.", retry_after_ms=10)))
    await rig.settle()
    ends = rig.kinds()[rig.kinds().index("completed") :]
    assert ends == [
        "completed",
        "error:rate_limit_exceeded",
        "error:invalid_json",
        "error:invalid_request_error",
        "error:invalid_request_error",
    ]


async def test_a_refusal_goes_to_the_lane_it_names(make_rig: MakeRig) -> None:
    rig = make_rig()
    await rig.running()
    rig.send(type="response.create", stream_id="b", model="m", input="x", temperature=9)
    rig.send(type="response.create", stream_id="no lane", input="x")
    await rig.settle()
    assert rig.kinds("b") == ["error:invalid_request_error"]
    assert rig.kinds() == ["created"]


async def test_lanes_do_not_wait_for_one_another(make_rig: MakeRig) -> None:
    rig = make_rig()
    first, second = await rig.running("a"), await rig.running("b")
    await rig.say(first, "one", rig.now)
    await rig.say(second, "two", rig.now)
    rig.end(second)
    await rig.settle()
    assert rig.kinds("b")[-1] == "completed"
    assert rig.kinds("a")[-1] == "output_text.delta"


async def test_too_many_lanes_are_refused(make_rig: MakeRig) -> None:
    rig = make_rig(lanes=1)
    await rig.running("a")
    rig.create("b")
    await rig.until(lambda: rig.kinds("b") == ["error:websocket_stream_limit_reached"])


async def test_a_binary_frame_is_refused_and_the_socket_lives_on(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.socket.incoming.put_nowait(b'{"type": "response.create"}')
    await rig.until(lambda: rig.kinds() == ["error:invalid_request_error"])
    await rig.running()


async def test_steering_is_answered_with_its_input(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    rig.send(type="response.steer", previous_response_id=request, input="Shorter.")
    await rig.until(lambda: rig.kinds() == ["created", "steer.failed"])
    assert rig.events[-1]["steer"] == {"previous_response_id": request, "input": "Shorter."}


async def test_frames_beyond_a_full_mailbox_are_refused_in_order_and_cancels_are_not(make_rig: MakeRig) -> None:
    rig = make_rig(capacity=1)
    request = await rig.running()
    await rig.settle()
    # The handler never gets a turn between these, as when one read brings many frames.
    for _ in range(3):
        _put_aside(rig.connection, {"type": "response.create", "model": "m", "input": "x"})
    _put_aside(rig.connection, {"type": "response.cancel", "response_id": request})
    await rig.settle()
    assert [cancel.request for cancel in rig.cancels] == [request]
    rig.tell(Ended(request, "cancelled", Stats()))
    await rig.until(lambda: len(rig.asks) == 2)
    rig.tell(Refused(rig.asks[-1].request, WireError("rate_limit_exceeded", "Full.")))
    await rig.settle()
    assert rig.kinds() == [
        "created",
        "incomplete",
        "error:rate_limit_exceeded",
        "error:server_overloaded",
        "error:server_overloaded",
    ]


def _put_aside(connection: Connection, event: dict[str, object]) -> None:
    """What the reader does with a frame."""
    frame = FrameReceived(json.dumps(event).encode(), 0.0)
    if connection._aside or not connection.mailbox.offer(frame):
        connection._set_aside(frame)


# --- slow readers ----------------------------------------------------------------------------------------------------


async def test_a_slow_reader_gets_fewer_and_bigger_deltas(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    rig.socket.room.clear()
    for word in ("one ", "two ", "three ", "four "):
        await rig.say(request, word, rig.now)
    rig.socket.room.set()
    await rig.until(lambda: rig.text() == "one two three four ")
    assert [event["delta"] for event in rig.events if "delta" in event] == ["one ", "two three four "]


async def test_a_reader_that_falls_behind_pauses_its_response_once_and_resumes_it(make_rig: MakeRig) -> None:
    rig = make_rig(pause_chars=10)
    request = await rig.running()
    rig.socket.room.clear()
    for _ in range(5):
        await rig.say(request, "12345", rig.now)
    assert rig.scheduler.messages == [SetPaused(request, True, rig.now)]
    rig.socket.room.set()
    await rig.until(lambda: len(rig.text()) == 25)
    assert rig.scheduler.messages == [SetPaused(request, True, rig.now), SetPaused(request, False, rig.now)]


async def test_lanes_of_a_slow_reader_take_turns(make_rig: MakeRig) -> None:
    rig = make_rig(turn_bytes=1)
    requests = {lane: await rig.running(lane) for lane in "abc"}
    rig.socket.room.clear()
    for _ in range(3):
        for request in requests.values():
            await rig.say(request, "word ", rig.now)
    rig.socket.room.set()
    await rig.until(lambda: all(rig.text(lane) == "word word word " for lane in requests))
    deltas = [event["stream_id"] for event in rig.events if "delta" in event]
    assert deltas == ["a", "b", "c", "a"]


async def test_a_turn_ends_when_enough_bytes_are_made_and_what_was_not_made_can_be_cancelled(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(turn_bytes=2_000)
    first = await rig.running("a", include=["message.output_text.logprobs"])
    second = await rig.running("b")
    send = rig.socket.send

    async def stop_at_the_big_one(frame: bytes) -> None:
        if len(frame) > 2_000:
            rig.socket.room.clear()
        await send(frame)

    monkeypatch.setattr(rig.socket, "send", stop_at_the_big_one)
    rig.socket.room.clear()
    await rig.say(first, "one ", rig.now)
    rig.tell(Text(first, "two", (rig.now,), (TokenLogprob("two", -0.5, (("x" * 100, -1.0),) * 20),)))
    await rig.say(second, "unwanted", rig.now)
    rig.socket.room.set()
    await rig.settle()
    rig.send(type="response.cancel", stream_id="b")
    await rig.settle()
    rig.socket.room.set()
    await rig.settle()
    assert rig.text("a") == "one two"
    assert rig.text("b") == ""


@pytest.mark.parametrize("lanes", ["a", "abc"])
async def test_big_last_events_close_no_socket(make_rig: MakeRig, lanes: str) -> None:
    rig = make_rig(unsent_bytes=2_000)
    requests = [await rig.running(lane, include=["message.output_text.logprobs"]) for lane in lanes]
    rig.socket.room.clear()
    for request in requests:
        for _ in range(10):
            rig.tell(Text(request, "word ", (rig.now,), (TokenLogprob("word ", -0.5, (("w" * 40, -1.0),) * 20),)))
        rig.end(request, tokens=10)
    await rig.settle()
    rig.socket.room.set()
    await rig.until(lambda: rig.connection._writer.unsent_bytes > 10_000)
    rig.socket.room.clear()
    # They are under way, and others say little things meanwhile.
    for _ in range(3):
        rig.socket.incoming.put_nowait("{")
    await rig.settle()
    rig.socket.room.set()
    await rig.settle()
    assert rig.socket.closed == []
    assert [rig.kinds(lane)[-1] for lane in lanes] == ["completed"] * len(lanes)
    assert rig.kinds() == ["error:invalid_json"] * 3


async def test_requests_that_wait_are_bounded_in_bytes(make_rig: MakeRig) -> None:
    rig = make_rig(waiting_bytes=10_000)
    request = await rig.running("a")
    for _ in range(3):
        rig.create("a", metadata={}, instructions="x" * 4_000)
    await rig.settle()
    rig.create("b", instructions="x" * 4_000)
    await rig.until(lambda: rig.kinds("b") == ["error:server_overloaded"])
    rig.end(request)
    await rig.until(lambda: len(rig.asks) == 2)
    rig.end(rig.asks[1].request)
    await rig.until(lambda: len(rig.asks) == 3)
    rig.end(rig.asks[2].request)
    await rig.until(lambda: rig.kinds("a")[-1] == "error:server_overloaded")
    await rig.asked("b", instructions="x" * 9_000)


async def test_the_end_of_an_answer_waits_for_room_too(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    rig.socket.room.clear()
    await rig.say(request, "one ", rig.now)
    await rig.say(request, "two ", rig.now)
    rig.end(request)
    await rig.settle()
    assert rig.connection._writer.unsent_bytes < 2_000
    rig.socket.room.set()
    await rig.until(lambda: rig.kinds()[-1] == "completed")
    assert rig.text() == "one two "


async def test_the_reaper_hears_of_a_stuck_reader_and_of_its_return(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    rig.socket.room.clear()
    await rig.say(request, "one ", rig.now)
    rig.now += 5

    def stalled() -> float | None:
        watch = rig.reaper.of(WatchConnection)[-1]
        return watch.stalled_since if isinstance(watch.stalled_since, float) else None

    await rig.until(lambda: stalled() == 100.0)
    rig.socket.room.set()
    await rig.until(lambda: stalled() is None)


async def test_too_many_unread_refusals_close_the_socket(make_rig: MakeRig) -> None:
    rig = make_rig(refusals=3)
    await rig.running()
    for _ in range(4):
        rig.socket.incoming.put_nowait("{")
    await rig.until(lambda: bool(rig.socket.closed))
    assert rig.socket.closed[0][0] == 1008
    assert rig.kinds() == ["created", "incomplete", *["error:invalid_json"] * 4]


async def test_control_frames_that_nobody_reads_close_the_socket(make_rig: MakeRig) -> None:
    rig = make_rig(unsent_bytes=2_000)
    rig.socket.room.clear()
    for number in range(20):
        rig.send(type="response.create", stream_id=f"l{number}", model="m", input="x", temperature=9)
    await rig.until(lambda: bool(rig.socket.closed))
    assert rig.socket.closed[0][0] == 1008


# --- cancels ---------------------------------------------------------------------------------------------------------


async def test_a_cancel_closes_the_slot_and_says_what_was_delivered(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    await rig.say(request, "Hello", rig.now)
    rig.socket.room.clear()
    await rig.say(request, " wor", rig.now)
    await rig.say(request, "ld", rig.now)
    rig.send(type="response.cancel", response_id=request)
    await rig.until(lambda: bool(rig.cancels))
    assert rig.cancels == [Cancel(request, rig.now, "Hello wor")]
    rig.socket.room.set()
    await rig.say(request, "!", rig.now)
    rig.send(type="response.cancel", response_id=request)
    await rig.settle()
    assert rig.kinds()[-1] == "output_text.delta"
    rig.tell(Ended(request, "cancelled", Stats(output_tokens=9)))
    await rig.settle()
    assert rig.kinds()[-4:] == [*DONE, "incomplete"]
    assert rig.kinds().count("incomplete") == 1
    assert len(rig.cancels) == 1
    response = rig.events[-1]["response"]
    assert response["status"] == "cancelled"
    assert response["output"][0]["content"][0]["text"] == "Hello wor"
    assert response["usage"]["output_tokens"] == 2


async def test_a_cancelled_answer_that_had_ended_anyway_is_cancelled(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    await rig.say(request, "Hello", rig.now)
    rig.send(type="response.cancel")
    await rig.settle()
    rig.end(request, text=" more")
    await rig.settle()
    assert rig.events[-1]["response"]["status"] == "cancelled"
    assert rig.text() == "Hello"


async def test_a_cancel_stops_even_text_that_was_all_here_but_not_sent(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    await rig.say(request, "Hello", rig.now)
    rig.socket.room.clear()
    await rig.say(request, " wor", rig.now)
    rig.end(request, text="ld")
    await rig.settle()
    rig.send(type="response.cancel", response_id=request)
    await rig.settle()
    rig.socket.room.set()
    await rig.until(lambda: rig.kinds()[-1] == "incomplete")
    assert not rig.text().endswith("ld")
    assert [(cancel.request, cancel.keep) for cancel in rig.cancels] == [(request, rig.text())]


async def test_cancelling_a_lane_ends_what_runs_and_all_that_waits_in_order(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running("a")
    other = await rig.running("b")
    rig.create("a")
    rig.create("a")
    rig.send(type="response.cancel", stream_id="a")
    rig.create("a", metadata={"which": "later"})
    await rig.settle()
    assert [cancel.request for cancel in rig.cancels] == [request]
    assert rig.kinds("a") == ["created"]
    rig.tell(Ended(request, "cancelled", Stats()))
    await rig.until(lambda: len(rig.asks) == 3)
    await rig.settle()
    assert rig.kinds("a") == ["created", "incomplete", "created", "incomplete", "created", "incomplete"]
    assert rig.asks[-1].create.metadata == {"which": "later"}
    assert rig.kinds("b") == ["created"]
    assert other not in [cancel.request for cancel in rig.cancels]


async def test_a_cancel_that_hits_nothing_is_silent(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.send(type="response.cancel")
    rig.send(type="response.cancel", stream_id="nowhere")
    rig.send(type="response.cancel", response_id="resp_999")
    await rig.settle()
    assert rig.events == []
    assert rig.tokeniser.messages == []


async def test_a_cancel_before_anything_was_accepted_still_gets_created_and_its_end(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.asked()
    rig.send(type="response.cancel")
    await rig.until(lambda: bool(rig.cancels))
    rig.tell(Ended(request, "cancelled", Stats()))
    await rig.settle()
    assert rig.kinds() == ["created", "incomplete"]
    assert rig.events[-1]["response"]["usage"]["total_tokens"] == 0


# --- the end of a socket ---------------------------------------------------------------------------------------------


async def test_a_reader_that_goes_takes_its_requests_with_it(make_rig: MakeRig) -> None:
    rig = make_rig()
    first, second = await rig.running("a"), await rig.running("b")
    rig.create("a")
    rig.socket.room.clear()
    await rig.say(first, "unread", rig.now)
    rig.socket.leave()
    await rig.until(lambda: bool(rig.reaper.of(ConnectionClosed)))
    assert rig.cancels == [Cancel(first, rig.now, None), Cancel(second, rig.now, None)]
    assert rig.tokeniser.messages[-1] == ConnectionClosed(7)
    assert len(rig.asks) == 2
    rig.tell(Ended(first, "cancelled", Stats()))
    await rig.settle()
    assert not rig.serving.done()
    rig.end(second)
    await rig.until(rig.serving.done)
    assert rig.kinds("a") == rig.kinds("b") == ["created"]
    assert rig.metrics.registry.get_sample_value("rota_connections") == 0
    assert rig.metrics.registry.get_sample_value("rota_requests_finished_total", {"reason": "cancelled"}) == 2


async def test_a_request_refused_after_its_reader_went_is_let_go(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.asked()
    rig.socket.leave()
    await rig.until(lambda: bool(rig.cancels))
    rig.tell(Refused(request, WireError("rate_limit_exceeded", "Full.")))
    await rig.until(rig.serving.done)


async def test_closing_tells_every_end_first(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running("a")
    rig.create("a")
    await rig.say(request, "Hello", rig.now)
    rig.tell(CloseConnection(7, 1001, "shutting down"))
    await rig.until(lambda: bool(rig.socket.closed))
    assert rig.socket.closed[0] == (1001, "shutting down")
    assert rig.kinds("a")[-6:] == [*DONE, "incomplete", "created", "incomplete"]
    assert rig.cancels == [Cancel(request, rig.now, "Hello")]
    assert not rig.serving.done()
    rig.tell(Ended(request, "cancelled", Stats()))
    await rig.until(rig.serving.done)


async def test_closing_with_an_error_fails_what_runs(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running("a")
    rig.tell(CloseConnection(7, 1001, "shutting down", shutting_down()))
    await rig.until(lambda: bool(rig.socket.closed))
    assert rig.kinds("a") == ["created", "failed"]
    assert rig.events[-1]["response"]["rota"]["error_code"] == "shutting_down"
    assert rig.cancels == [Cancel(request, rig.now, None)]


async def test_closing_does_not_wait_for_ever_for_a_stuck_reader(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    rig.socket.room.clear()
    await rig.say(request, "Hello", rig.now)
    rig.tell(CloseConnection(7, 1008, "nothing was read"))
    await rig.until(lambda: bool(rig.socket.closed))
    assert rig.socket.closed[0][0] == 1008


async def test_what_is_asked_after_the_goodbye_comes_too_late(make_rig: MakeRig) -> None:
    rig = make_rig(close_s=5)
    await rig.running()
    rig.socket.room.clear()
    rig.tell(CloseConnection(7, 1001, "bye"))
    rig.create("late")
    await rig.settle()
    assert len(rig.asks) == 1


async def test_draining_refuses_what_is_new_and_lets_what_runs_end(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running("a")
    rig.tell(Drain(rig.now + 10))
    rig.create("b")
    await rig.until(lambda: rig.kinds("b") == ["error:shutting_down"])
    rig.end(request)
    await rig.until(lambda: rig.kinds("a")[-1] == "completed")


async def test_a_socket_that_opens_while_draining_refuses_from_its_first_frame_on(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.create("a")
    rig.tell(Drain(rig.now + 10))
    await rig.until(lambda: rig.kinds("a") == ["error:shutting_down"])
    assert rig.asks == []
    rig.tell(CloseConnection(7, 1001, "shutting down", shutting_down()))
    await rig.until(rig.serving.done)


async def test_a_handler_that_raises_ends_its_own_socket_only(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    request = await rig.running("a")

    def raise_(*_: object) -> None:
        raise RuntimeError("a defect")

    with capture_logs() as logs:
        monkeypatch.setattr("actors.connection.parse_client_event", raise_)
        rig.create("b")
        await rig.until(lambda: bool(rig.socket.closed))
    assert rig.socket.closed[0] == (1011, "internal error")
    assert rig.kinds("a") == ["created", "failed"]
    assert rig.events[-1]["response"]["rota"]["error_code"] == "internal_error"
    assert [cancel.request for cancel in rig.cancels] == [request]
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["actor.failed"]


async def test_a_task_that_breaks_closes_the_socket(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig()
    request = await rig.running("a")

    async def broken(_: bytes) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(rig.socket, "send", broken)
    with capture_logs():
        await rig.say(request, "Hello", rig.now)
        await rig.until(rig.serving.done)
    assert rig.socket.closed[-1][0] == 1011
    assert [cancel.request for cancel in rig.cancels] == [request]


async def test_a_cancelled_serve_lets_go_of_everything(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running("a")
    rig.serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rig.serving
    assert rig.cancels == [Cancel(request, rig.now, None)]
    assert rig.reaper.messages[-1] == ConnectionClosed(7)
    assert rig.socket.closed[-1][0] == 1001


# --- what the reaper knows -------------------------------------------------------------------------------------------


async def test_the_reaper_knows_whether_a_socket_is_busy_and_when_it_was_last_heard_of(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.now = 101.0
    request = await rig.running()
    busy = rig.reaper.of(WatchConnection)[-1]
    assert busy == WatchConnection(7, 100.0, 101.0, busy=True)
    rig.now = 103.0
    rig.end(request)
    await rig.settle()
    assert rig.reaper.of(WatchConnection)[-1] == WatchConnection(7, 100.0, 103.0, busy=False)
