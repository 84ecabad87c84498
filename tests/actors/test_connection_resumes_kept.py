"""How long and how much is kept of a response that nobody reads, and who of its readers is waited for."""

import asyncio

from protocol.messages import (
    Cancel,
    Drain,
    Ended,
    SetPaused,
    Stats,
    Text,
)
from tests.actors.connection_line import Line
from tests.actors.connection_rig import MakeRig

# --- pauses ----------------------------------------------------------------------------------------------------------


async def test_a_reader_who_was_behind_before_the_blink_is_let_run_when_he_has_caught_up(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun(pause_chars=8)
    first.socket.room.clear()
    await first.say(request, "a long text", first.now)
    await first.say(request, ", and more", first.now)
    assert first.scheduler.of(SetPaused) == [SetPaused(request, True, first.now)]
    await line.lost(first)
    assert first.scheduler.of(SetPaused)[1:] == [SetPaused(request, True, first.now, unread=True)]
    second = await line.resumed(request, 5)
    assert second.text("a").endswith(", and more")
    assert first.scheduler.of(SetPaused)[2:] == [SetPaused(request, False, first.now)]


async def test_a_new_reader_who_is_slow_too_pauses_it_and_lets_it_run_again(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun(pause_chars=8, turn_bytes=1)
    await line.lost(first)
    second = line.connect()
    second.socket.room.clear()
    second.send(type="response.resume", response_id=request, starting_after=3)
    await line.settle()
    paused = [(one.paused, one.unread) for one in first.scheduler.of(SetPaused)]
    assert paused == [(True, True), (True, False)], "one event of those it missed waits for room, and the others for it"
    first.tell(Text(request, "in flight until now", ()))
    await line.settle()
    second.socket.room.set()
    await line.settle()
    assert second.text("a") == "One,twoin flight until now"
    assert first.scheduler.of(SetPaused)[2:] == [SetPaused(request, False, first.now)]


# --- how much is kept ------------------------------------------------------------------------------------------------


async def test_more_than_may_be_kept_are_cancelled(make_rig: MakeRig) -> None:
    line = Line(make_rig, per_key=1)
    first, one = await line.begun()
    other = await first.running("b", resumable=True)
    await line.lost(first)
    assert first.cancels == [Cancel(other, first.now, None)]
    assert line.resumables.find("shop", one) is not None


async def test_what_has_ended_gives_way_to_what_has_not(make_rig: MakeRig) -> None:
    line = Line(make_rig, per_key=1)
    first, one = await line.begun()
    first.end(one)
    await line.settle()
    await line.lost(first)
    second, other = await line.begun()
    await line.lost(second)
    assert line.resumables.find("shop", one) is None
    assert line.resumables.find("shop", other) is not None
    await first.until(first.serving.done)


async def test_no_more_bytes_are_kept_than_may_be(make_rig: MakeRig) -> None:
    line = Line(make_rig, per_key_bytes=100_000)
    first, short = await line.begun()
    long = await first.running("b", resumable=True)
    await first.say(long, "long" * 10_000, first.now)
    await line.lost(first)
    assert first.cancels == [Cancel(long, first.now, None)]
    assert line.resumables.find("shop", short) is not None


async def test_draining_ends_what_nobody_reads_and_not_what_is_read_elsewhere(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, one = await line.begun()
    await line.lost(first)
    await line.resumed(one, 5)
    third, other = await line.begun()
    await line.lost(third)
    for rig in line.rigs.values():
        rig.tell(Drain(rig.now + 10))
    await line.settle()
    assert first.cancels == []
    assert third.cancels == [Cancel(other, third.now, None)]
    third.tell(Ended(other, "cancelled", Stats()))
    first.end(one)
    async with asyncio.timeout(5):
        await asyncio.gather(first.serving, third.serving)
    assert line.rigs[2].kinds("a")[-1] == "completed"
