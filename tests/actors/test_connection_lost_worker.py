"""A worker that is lost under a socket's requests: each of them ends once, whatever is still said of it."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from protocol.errors import WireError, worker_failed
from protocol.messages import (
    Accepted,
    Control,
    Ended,
    Merging,
    Moved,
    Refused,
    Released,
    Started,
    Stats,
    Text,
    TextEnd,
    WorkerLost,
)
from tests.actors.connection_rig import DONE, MakeRig

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


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


LATE: dict[str, Callable[[str], Control | Merging]] = {
    "refused": lambda request: Refused(request, WireError("rate_limit_exceeded", "Full.")),
    "accepted": lambda request: Accepted(request, 9, 64, 100.0),
    "queued": lambda request: Accepted(request, 9, 64, 100.0, position=2, estimated_wait_s=0.5),
    "moved": lambda request: Moved(request, 1, 0.02),
    "started": lambda request: Started(request, 100.0),
    "text": lambda request: Text(request, "late", (100.0,)),
    "the end of the text": lambda request: Text(request, "late", (100.0,), (), TextEnd("stop", 1)),
    "stopped": lambda request: Ended(request, "stop", Stats(output_tokens=1)),
    "cancelled": lambda request: Ended(request, "cancelled", Stats()),
    "failed": lambda request: Ended(request, "failed", Stats(), WireError("internal_error", "A defect.")),
    "released": lambda request: Released(request, 100.0),
}
"""What may still be under way of a request when its worker is lost, or be said of it by those who start anew."""


@pytest.mark.parametrize(
    ("life", "room"),
    [("asked", False), ("queued", False), ("running", False), ("streaming", False), ("running", True)],
)
@pytest.mark.parametrize("late", LATE)
async def test_whatever_is_said_of_a_request_after_its_worker_was_lost_it_has_failed_once(
    make_rig: MakeRig, late: str, life: str, room: bool
) -> None:
    """Without room, its end is known and not told yet (the simulation's seed 926 was a refusal just then)."""
    rig = make_rig()
    rig.socket.room.clear()
    other = await rig.asked("other")
    rig.tell(Accepted(other, 9, 64, rig.now))  # is what the socket is busy with when it has no room
    request = await rig.asked("a")
    if life != "asked":
        rig.tell(Accepted(request, 9, 64, rig.now, position=2 if life == "queued" else 0))
    if life == "streaming":
        rig.tell(Text(request, "Hel", (rig.now,)))
    rig.create("a")
    if room:
        rig.socket.room.set()
    await rig.settle()
    with capture_logs() as logs:
        rig.tell(WorkerLost("a defect", rig.now))
        await rig.settle()
        rig.tell(LATE[late](request))
        await rig.settle()
        rig.socket.room.set()
        await rig.until(lambda: len(rig.asks) == 3)
        await rig.settle()
    ends = [event for event in rig.events if event["type"] in ENDS and event.get("stream_id") == "a"]
    assert [event["type"] for event in ends] == ["response.failed"]
    assert rig.kinds("a")[0] == "created"
    assert rig.kinds("a")[-1] == "failed"
    assert ends[0]["response"]["id"] == request
    assert ends[0]["response"]["rota"]["error_code"] == "worker_failed"
    assert [entry["request"] for entry in logs if entry["event"] == "request.finished"].count(request) == 1
    assert [cancel.request for cancel in rig.cancels].count(request) == 1


@pytest.mark.parametrize("late", LATE)
async def test_whatever_is_said_of_a_cancelled_request_after_its_worker_was_lost_it_was_cancelled_once(
    make_rig: MakeRig, late: str
) -> None:
    rig = make_rig()
    request = await rig.running("a")
    rig.socket.room.clear()
    rig.send(type="response.cancel", response_id=request)
    await rig.settle()
    rig.tell(WorkerLost("a defect", rig.now))
    await rig.settle()
    rig.tell(LATE[late](request))
    await rig.settle()
    rig.socket.room.set()
    await rig.settle()
    assert rig.kinds("a") == ["created", "incomplete"]
    assert rig.events[-1]["response"]["status"] == "cancelled"
    assert not rig.connection._exchange.busy
