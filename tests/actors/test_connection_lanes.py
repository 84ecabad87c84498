"""Lanes on a socket: one answers in order, several side by side."""

import json

from actors.connection import Connection
from protocol.errors import WireError
from protocol.messages import (
    Ended,
    FrameReceived,
    Refused,
    Stats,
)
from tests.actors.connection_rig import MakeRig


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


async def test_what_waits_counts_as_what_it_takes_in_memory(make_rig: MakeRig) -> None:
    """One smiley, and Python keeps four bytes of every letter beside it."""
    rig = make_rig(waiting_bytes=8_000)
    first = await rig.running("a")
    for text in ("x" * 3_000, "x" * 3_000 + "☺"):
        frame = {"type": "response.create", "model": "m", "stream_id": "a", "input": text}
        rig.socket.incoming.put_nowait(json.dumps(frame, ensure_ascii=False))
    rig.end(first)
    await rig.settle()
    assert len(rig.asks) == 2
    rig.end(rig.asks[1].request)
    await rig.until(lambda: rig.kinds("a")[-1] == "error:server_overloaded")
