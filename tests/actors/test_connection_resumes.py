"""The network blinks: a response outlives its socket and goes on upon another, every event of it once."""

import pytest
from structlog.testing import capture_logs

from protocol.errors import WireError, response_not_found, shutting_down
from protocol.messages import (
    Accepted,
    Cancel,
    CloseConnection,
    Detached,
    Ended,
    GraceOver,
    Moved,
    SetPaused,
    Started,
    Stats,
    WorkerLost,
)
from tests.actors.connection_line import GRACE_S, Line
from tests.actors.connection_rig import MakeRig, Rig


def numbers(rig: Rig) -> list[int]:
    return [event["sequence_number"] for event in rig.events]


# --- a blink ---------------------------------------------------------------------------------------------------------


async def test_a_response_goes_on_where_its_client_was_and_every_event_is_told_once(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun("One, two, three,")
    told = first.events
    await line.lost(first)
    assert first.stays
    assert first.cancels == []
    assert first.scheduler.of(SetPaused) == [SetPaused(request, True, first.now, unread=True)]
    assert line.watched == [Detached(request, 1, first.now + GRACE_S)]

    second = await line.resumed(request, 4)
    assert second.events == told[5:], "the missed ones, as they were"
    assert first.scheduler.of(SetPaused)[1:] == [SetPaused(request, False, first.now)]
    assert line.watched[-1] == Detached(request, 1, None)
    await first.say(request, "four.", first.now)
    first.end(request)
    await line.settle()
    assert numbers(second) == list(range(5, 12))
    assert second.events[-1]["response"]["output"][0]["content"][0]["text"] == "One,two,three,four."
    assert second.events[-1]["response"]["rota"]["finish_reason"] == "stop"


@pytest.mark.parametrize("code", [1000, 1001, 1005])
async def test_a_client_that_says_goodbye_takes_its_resumable_responses_with_it(make_rig: MakeRig, code: int) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first, code)
    assert first.cancels == [Cancel(request, first.now, None)]
    assert len(line.resumables) == 0


async def test_what_did_not_opt_in_is_cancelled_at_once_beside_what_did(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, kept = await line.begun()
    other = await first.running("b")
    await line.lost(first)
    assert first.cancels == [Cancel(other, first.now, None)]
    second = await line.resumed(other, 0, "b")
    assert second.kinds("b") == ["error:response_not_found"]
    assert line.resumables.find("shop", kept) is not None


async def test_a_socket_that_answers_no_ping_is_lost_like_one_that_is_gone(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, _ = await line.begun()
    await line.lost(first, 1011)
    assert first.cancels == []


async def test_with_no_grace_nothing_is_kept(make_rig: MakeRig) -> None:
    line = Line(make_rig, grace_s=0.0)
    first, request = await line.begun()
    await line.lost(first)
    assert first.cancels == [Cancel(request, first.now, None)]


async def test_after_the_grace_it_is_cancelled_and_cannot_be_resumed(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    first.tell(GraceOver(request, first.now + GRACE_S - 1))
    await line.settle()
    assert first.cancels == [], "not yet"
    first.tell(GraceOver(request, first.now + GRACE_S))
    await line.settle()
    assert first.cancels == [Cancel(request, first.now, None)]
    second = await line.resumed(request, 4)
    assert second.kinds("a") == ["error:response_not_found"]
    first.tell(Ended(request, "cancelled", Stats()))
    await first.until(first.serving.done)
    assert len(line.resumables) == 0


async def test_with_another_key_it_is_as_if_it_had_never_been(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    for asked in (request, "resp_never"):
        stranger = await line.resumed(asked, 4, tenant="ben")
        assert stranger.kinds("a") == ["error:response_not_found"]
        error = stranger.events[0]["error"]
        assert error["message"] == response_not_found(asked).message
    assert (await line.resumed(request, 4)).kinds("a")[0] == "output_text.delta"


async def test_without_a_number_it_is_told_from_its_first_event_on(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    told = first.events
    await line.lost(first)
    assert (await line.resumed(request, None)).events == told


async def test_a_number_that_was_never_told_is_refused_and_leaves_the_response_as_it_is(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    second = await line.resumed(request, 99)
    assert second.events[0]["error"]["param"] == "starting_after"
    assert (await line.resumed(request, 5)).kinds("a") == []
    await first.say(request, "!", first.now)
    await line.settle()
    assert line.rigs[3].text("a") == "!"


async def test_the_log_says_how_often_it_was_lost_and_resumed(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    second = await line.resumed(request, 5)
    await line.lost(second)
    with capture_logs() as logs:
        await line.resumed(request, 5)
        first.end(request)
        await line.settle()
    (finished,) = [entry for entry in logs if entry["event"] == "request.finished"]
    assert (finished["detached"], finished["resumed"]) == (2, 2)
    assert (finished["request"], finished["connection"], finished["finish_reason"]) == (request, 1, "stop")
    assert first.metrics.registry.get_sample_value("rota_detaches_total") == 2
    assert first.metrics.registry.get_sample_value("rota_resumes_total") == 2


# --- in any state ----------------------------------------------------------------------------------------------------


async def test_while_it_waits_it_keeps_its_place_and_hears_of_it(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first = line.connect()
    request = await first.asked("a", resumable=True)
    first.tell(Accepted(request, 9, 64, first.now, 2, None))
    await line.settle()
    await line.lost(first)
    first.tell(Moved(request, 1, None))
    await line.settle()
    second = await line.resumed(request, 1)
    assert second.kinds("a") == ["queued"]
    assert second.events[0]["response"]["rota"]["position"] == 1
    first.tell(Started(request, first.now))
    await line.settle()
    assert second.kinds("a") == ["queued", "in_progress"]


async def test_what_ended_while_nobody_read_it_is_told_to_whoever_comes_back(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    first.end(request, text=" three.")
    await line.settle()
    second = await line.resumed(request, 5)
    assert second.kinds("a")[0] == "output_text.delta"
    assert second.kinds("a")[-1] == "completed"
    assert second.text("a") == " three."


async def test_a_worker_lost_in_the_meantime_is_told_to_whoever_comes_back(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    first.tell(WorkerLost("killed", first.now))
    await line.settle()
    second = await line.resumed(request, 5)
    assert second.kinds("a")[-1] == "failed"
    assert second.events[-1]["response"]["rota"]["error_code"] == "worker_failed"


async def test_an_end_that_went_into_a_dead_socket_can_be_told_again(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    first.end(request)
    await line.settle()
    told = first.events
    assert told[-1]["type"] == "response.completed"
    await line.lost(first)
    assert first.scheduler.of(SetPaused) == []
    second = await line.resumed(request, 4)
    assert second.events == told[5:]
    second.create("a")
    await line.settle()
    assert len(second.asks) == 1, "its lane is free again"
    third = await line.resumed(request, len(told) - 1)
    third.create("a")
    await line.settle()
    assert len(third.asks) == 1, "nothing was missed, and nothing is waited for"


async def test_what_has_ended_is_forgotten_after_the_grace(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    first.end(request)
    await line.settle()
    first.tell(GraceOver(request, first.now + GRACE_S))
    await line.settle()
    assert len(line.resumables) == 0
    await line.lost(first)
    await first.until(first.serving.done)


async def test_reading_an_end_again_does_not_renew_its_time(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    first.end(request)
    await line.settle()
    await line.lost(first)
    kept_until = first.now + GRACE_S
    assert line.watched[-1] == Detached(request, 1, kept_until)
    watched = len(line.watched)
    first.now += GRACE_S / 2
    for _ in range(3):
        reader = await line.resumed(request, 0)
        assert reader.kinds("a")[-1] == "completed"
        await line.lost(reader)
    assert len(line.watched) == watched, "nobody was told another time"
    first.now = kept_until
    first.tell(GraceOver(request, first.now))
    await line.settle()
    assert line.resumables.find("shop", request) is None
    await first.until(first.serving.done)


async def test_whoever_reads_an_end_when_its_time_is_over_reads_it_to_its_end(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun(turn_bytes=1)
    first.end(request)
    await line.settle()
    told = first.events
    await line.lost(first)
    reader = line.connect()
    reader.socket.room.clear()
    reader.send(type="response.resume", response_id=request, starting_after=0, stream_id="a")
    await line.settle()
    first.now += GRACE_S
    first.tell(GraceOver(request, first.now))
    await line.settle()
    reader.socket.room.set()
    await reader.until(lambda: reader.events == told[1:])
    await line.settle()
    assert line.resumables.find("shop", request) is None
    await first.until(first.serving.done)


# --- two sockets -----------------------------------------------------------------------------------------------------


async def test_the_newer_socket_takes_it_from_one_that_is_only_half_dead(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    first.create("a")
    await line.settle()
    second = await line.resumed(request, 5)
    assert first.kinds("a")[-1] == "error:response_resumed_elsewhere"
    assert len(first.asks) == 2, "the lane there is free for whoever waited"
    await first.say(request, "!", first.now)
    await line.settle()
    assert (first.text("a"), second.text("a")) == ("One,two", "!")
    third = await line.resumed(request, 6)
    assert second.kinds("a")[-1] == "error:response_resumed_elsewhere"
    await line.lost(second)
    await line.lost(first)
    await first.say(request, "?", first.now)
    await line.settle()
    assert third.text("a") == "?"
    assert Cancel(request, first.now, None) not in first.cancels


async def test_it_waits_for_its_lane_as_a_request_would(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    second = line.connect()
    other = await second.running("a")
    second.send(type="response.resume", response_id=request, starting_after=4)
    await line.settle()
    assert second.kinds("a") == ["created"]
    second.end(other)
    await line.settle()
    assert second.kinds("a")[-2:] == ["completed", "output_text.delta"]


async def test_its_reader_cancels_it_from_wherever_he_is(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    second = await line.resumed(request, 5)
    second.send(type="response.cancel", stream_id="a")
    await line.settle()
    assert first.cancels == [Cancel(request, first.now, "One,two")]
    first.tell(Ended(request, "cancelled", Stats()))
    await line.settle()
    assert second.kinds("a")[-1] == "incomplete"
    assert second.events[-1]["response"]["status"] == "cancelled"


async def test_a_reader_from_afar_who_says_goodbye_takes_it_with_him(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    second = await line.resumed(request, 5)
    await line.lost(second, 1001)
    assert first.cancels == [Cancel(request, first.now, None)]
    first.tell(Ended(request, "cancelled", Stats()))
    await first.until(first.serving.done)


async def test_a_socket_that_is_closed_tells_the_end_of_what_it_reads_from_afar_first(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    second = await line.resumed(request, 5, close_s=5)
    second.tell(CloseConnection(2, 1001, "shutting down", shutting_down()))
    await second.until(lambda: bool(second.socket.closed))
    assert second.kinds("a")[-1] == "failed"
    assert second.events[-1]["response"]["rota"]["error_code"] == "shutting_down"
    assert first.cancels == [Cancel(request, first.now, None)]


@pytest.mark.parametrize("error", [None, shutting_down()], ids=["cancelled", "failed"])
@pytest.mark.parametrize("engine_first", [False, True], ids=["before the engine lets go", "after"])
async def test_who_comes_for_a_response_that_its_closing_socket_has_just_ended_hears_its_end(
    make_rig: MakeRig, error: WireError | None, engine_first: bool
) -> None:
    line = Line(make_rig)
    first, request = await line.begun(close_s=5)
    other = await first.running("b", resumable=True)
    first.socket.room.clear()  # its goodbye waits for a reader
    with capture_logs() as said:
        first.tell(CloseConnection(1, 1008, "too much is left unread", error))
        if engine_first:
            first.end(request)
        second = await line.resumed(request, 0)
        first.end(request)
        first.end(other)
        await line.settle()
    assert [line for line in said if line["log_level"] in ("error", "critical")] == []
    assert numbers(second) == list(range(1, numbers(second)[-1] + 1))
    assert second.kinds("a")[-1] == ("incomplete" if error is None else "failed")


async def test_a_home_that_fails_ends_what_is_read_elsewhere(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(make_rig)
    first, request = await line.begun()
    await line.lost(first)
    second = await line.resumed(request, 5)
    monkeypatch.setattr(first.connection._exchange, "said", lambda _: 1 / 0)
    first.tell(Moved(request, 1, None))
    await line.settle()
    assert second.kinds("a")[-1] == "failed"
    assert first.cancels == [Cancel(request, first.now, None)]
