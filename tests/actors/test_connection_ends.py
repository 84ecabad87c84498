"""The end of a socket, whoever brings it about; and what the reaper knows of it until then."""

import asyncio

import pytest
from structlog.testing import capture_logs

from protocol.errors import WireError, shutting_down
from protocol.messages import (
    Cancel,
    CloseConnection,
    ConnectionClosed,
    Drain,
    Ended,
    Refused,
    Stats,
    WatchConnection,
)
from tests.actors.connection_rig import DONE, MakeRig


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
    rig.socket.room.clear()
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
