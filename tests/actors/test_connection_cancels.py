"""A cancel: what was delivered stands, nothing comes after it, and the engine hears of it once."""

from protocol.messages import (
    Cancel,
    Ended,
    Stats,
)
from tests.actors.connection_rig import DONE, MakeRig


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
