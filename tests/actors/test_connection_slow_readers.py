"""A client that reads slowly, or not at all: it costs little, and nobody else waits for it."""

import asyncio

import pytest

from protocol.messages import (
    SetPaused,
    Text,
    TokenLogprob,
    WatchConnection,
)
from tests.actors.connection_rig import MakeRig


async def test_a_slow_reader_gets_fewer_and_bigger_deltas(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    rig.socket.room.clear()
    for word in ("one ", "two ", "three ", "four "):
        await rig.say(request, word, rig.now)
    rig.socket.room.set()
    await rig.until(lambda: rig.text() == "one two three four ")
    assert [event["delta"] for event in rig.events if "delta" in event] == ["one ", "two three four "]


async def test_a_reader_with_room_has_each_text_within_the_turn_it_comes_in(make_rig: MakeRig) -> None:
    rig = make_rig(pause_chars=10)
    request = await rig.running()
    for number, text in enumerate(("one ", "two ", "more than a reader may be behind with "), 1):
        rig.tell(Text(request, text, (rig.now,)))
        await asyncio.sleep(0)
        assert len([event for event in rig.events if "delta" in event]) == number
    assert rig.text() == "one two more than a reader may be behind with "
    assert rig.scheduler.messages == [], "nothing was paused"


async def test_text_goes_either_way_in_order(make_rig: MakeRig) -> None:
    rig = make_rig()
    request = await rig.running()
    for number in range(20):
        (rig.socket.room.clear if number % 3 else rig.socket.room.set)()
        rig.tell(Text(request, f"{number} ", (rig.now,)))
        if number % 2:
            await asyncio.sleep(0)
    rig.socket.room.set()
    rig.end(request)
    await rig.until(lambda: rig.kinds()[-1] == "completed")
    assert rig.text() == "".join(f"{number} " for number in range(20))
    assert [event["sequence_number"] for event in rig.events] == list(range(len(rig.events)))


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


async def test_log_probabilities_that_nobody_reads_pause_a_response_too(make_rig: MakeRig) -> None:
    rig = make_rig(pause_chars=5_000)
    request = await rig.running(include=["message.output_text.logprobs"], top_logprobs=20)
    rig.socket.room.clear()
    for _ in range(5):
        rig.tell(Text(request, "a", (rig.now,), (TokenLogprob("a", -0.5, (("b", -1.0),) * 20),)))
        await rig.settle()
    assert rig.scheduler.messages == [SetPaused(request, True, rig.now)]


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
    offer = rig.socket.offer

    def stop_at_the_big_one(frame: bytes) -> bool:
        if len(frame) > 2_000:
            rig.socket.room.clear()
        return offer(frame)

    monkeypatch.setattr(rig.socket, "offer", stop_at_the_big_one)
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
