"""A socket that has lived as long as one may: what can be resumed is kept for the next one, and the rest ends."""

from protocol import errors
from protocol.messages import Cancel, CloseConnection, Drain, Ended, SetPaused, Stats
from tests.actors.connection_line import Line
from tests.actors.connection_rig import MakeRig, Rig

REASON = "a connection lasts 60 minutes"


async def grown_old(line: Line, rig: Rig, number: int = 1) -> None:
    rig.tell(CloseConnection(number, 1001, REASON, errors.websocket_connection_expired(3600.0), keeps=True))
    await rig.until(lambda: bool(rig.socket.closed))
    await line.settle()


async def test_a_resumable_response_goes_on_upon_the_next_socket_and_every_event_is_told_once(
    make_rig: MakeRig,
) -> None:
    line = Line(make_rig)
    first, request = await line.begun("One, two,")
    await grown_old(line, first)
    assert first.socket.closed[0] == (4006, REASON)
    assert first.kinds("a")[-1] == "output_text.delta", "it is not told to have ended"
    assert first.cancels == []
    assert first.scheduler.of(SetPaused) == [SetPaused(request, True, first.now, unread=True)]
    told = len(first.events)
    second = await line.resumed(request, told - 1)
    await first.say(request, "three.", first.now)
    first.end(request)
    await line.settle()
    assert [event["sequence_number"] for event in second.events] == list(range(told, told + 5))
    assert second.events[-1]["response"]["output"][0]["content"][0]["text"] == "One,two,three."
    line.out_of_grace(first, request)
    await first.until(first.serving.done)


async def test_what_cannot_be_resumed_fails_and_says_why_beside_what_can(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    other = await first.running("b")
    await grown_old(line, first)
    assert first.socket.closed[0][0] == 4006
    assert first.kinds("b")[-1] == "failed"
    assert first.events[-1]["response"]["rota"]["error_code"] == "websocket_connection_limit_reached"
    assert first.cancels == [Cancel(other, first.now, None)]
    assert line.resumables.find("shop", request) is not None


async def test_what_waits_behind_it_in_its_lane_is_not_told_of_before_its_end(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, _ = await line.begun()
    told = first.kinds("a")
    first.create("a")
    await line.settle()
    await grown_old(line, first)
    assert first.kinds("a") == told, "it had not begun: its client sees its socket closed, and may ask again"


async def test_where_nothing_is_kept_the_socket_is_closed_as_ever(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    plain = line.connect()
    await plain.running("a")
    await grown_old(line, plain)
    idle = line.connect()
    await grown_old(line, idle, 2)
    assert [rig.socket.closed[0][0] for rig in (plain, idle)] == [1001, 1001]
    await idle.until(idle.serving.done)


async def test_an_end_that_may_not_have_arrived_can_be_told_again(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun("One,")
    first.end(request)
    await line.settle()
    told = first.events
    await grown_old(line, first)
    assert first.socket.closed[0][0] == 1001
    second = await line.resumed(request, len(told) - 2)
    assert second.events == told[-1:]


async def test_of_a_server_that_drains_nothing_is_kept(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    first.tell(Drain(first.now + 10))
    await grown_old(line, first)
    assert first.socket.closed[0][0] == 1001
    assert first.kinds("a")[-1] == "failed"
    assert first.cancels == [Cancel(request, first.now, None)]


async def test_a_response_at_home_elsewhere_moves_on_too(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun("One,")
    await line.lost(first)
    second = await line.resumed(request, len(first.events) - 1)
    await first.say(request, "two,", first.now)
    await line.settle()
    await grown_old(line, second, 2)
    assert second.socket.closed[0][0] == 4006
    third = await line.resumed(request, len(first.events) + len(second.events) - 1)
    await first.say(request, "three.", first.now)
    first.end(request)
    await line.settle()
    told = [event["sequence_number"] for rig in (first, second, third) for event in rig.events]
    assert told == list(range(len(told)))
    assert third.kinds("a")[-1] == "completed"


async def test_one_that_nobody_comes_back_for_is_let_go_with_its_grace(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await grown_old(line, first)
    line.out_of_grace(first, request)
    await line.settle()
    assert first.cancels == [Cancel(request, first.now, None)]
    first.tell(Ended(request, "cancelled", Stats()))
    await first.until(first.serving.done)
    assert len(line.resumables) == 0
