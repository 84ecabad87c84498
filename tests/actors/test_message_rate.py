"""The bucket of messages, and what a socket that sends too many is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.message_rate import MessageRate
from tests.actors.connection_rig import MakeRig


def test_so_many_at_once_and_then_as_time_passes() -> None:
    rate = MessageRate(per_s=2.0, at_once=3)
    assert [rate.take(10.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert rate.take(10.0) == pytest.approx(0.5)
    assert rate.take(10.25) == pytest.approx(0.25)
    assert rate.over == 1.5
    assert rate.take(10.5) == 0.0
    assert rate.over == 1.0
    assert rate.take(11.0) == 0.0
    assert rate.over == 0


def test_a_long_silence_is_not_saved_up() -> None:
    rate = MessageRate(per_s=2.0, at_once=3)
    assert sum(rate.take(1_000.0 * (n > 0)) == 0 for n in range(10)) == 4


@given(st.lists(st.floats(0, 5), max_size=200), st.floats(0.1, 100), st.integers(1, 50))
def test_never_more_than_the_rate_allows(waits: list[float], per_s: float, at_once: int) -> None:
    rate, now, taken = MessageRate(per_s, at_once), 0.0, 0
    for wait in waits:
        now += wait
        taken += rate.take(now) == 0
    assert taken <= at_once + now * per_s + 1e-6


@given(st.floats(0.1, 1_000), st.integers(1, 50), st.floats(2.5, 1_000))
def test_who_goes_on_faster_than_twice_the_rate_has_ever_more_too_many(
    per_s: float, at_once: int, times: float
) -> None:
    """Though it finds room each time that one more is let in."""
    rate, found_room, number = MessageRate(per_s, at_once), 0, 0
    while rate.over <= at_once:
        found_room += rate.take(number / (per_s * times)) == 0
        number += 1
        assert number < 10 * at_once * times / (times - 2) + 10
    assert found_room >= at_once


@given(st.floats(0.1, 1_000), st.integers(1, 50), st.floats(0.1, 1.9))
def test_who_goes_on_more_slowly_is_refused_at_most(per_s: float, at_once: int, times: float) -> None:
    rate = MessageRate(per_s, at_once)
    for number in range(1_000):
        rate.take(number / (per_s * times))
        assert rate.over < 3


async def test_a_request_too_many_is_refused_with_a_time_and_later_ones_are_taken(make_rig: MakeRig) -> None:
    rig = make_rig(messages_per_s=2.0, messages_at_once=2)
    for lane in ("a", "b", "c"):
        rig.create(lane)
    await rig.until(lambda: len(rig.asks) == 2)
    await rig.until(lambda: rig.kinds("c") == ["error:rate_limit_exceeded"])
    error = rig.events[-1]["error"]
    assert error["headers"]["retry-after-ms"] == "500"
    assert "2 messages a second" in error["message"]
    rig.now += 0.5
    await rig.asked("c")
    assert rig.socket.closed == []


async def test_a_cancel_that_finds_its_response_is_never_one_too_many(make_rig: MakeRig) -> None:
    rig = make_rig(messages_per_s=1.0, messages_at_once=40)
    requests = [await rig.running(f"a{n}") for n in range(30)]
    for n in range(15):
        rig.create(f"b{n}")
    await rig.until(lambda: rig.kinds("b14") == ["error:rate_limit_exceeded"])
    for request in requests[:15]:
        rig.send(type="response.cancel", response_id=request)
    for n in range(15, 30):
        rig.send(type="response.cancel", stream_id=f"a{n}")
    await rig.until(lambda: [cancel.request for cancel in rig.cancels] == requests)
    for _ in range(20):
        rig.send(type="response.cancel", response_id="resp_of_nobody")
    await rig.settle()
    assert rig.socket.closed == [], "a cancel may come too late"


@pytest.mark.parametrize("where", ["response_id", "stream_id", "cancelled"])
@pytest.mark.parametrize("capacity", [64, 2])
async def test_who_goes_on_with_cancels_of_nothing_is_let_go(make_rig: MakeRig, where: str, capacity: int) -> None:
    rig = make_rig(capacity=capacity, messages_per_s=1.0, messages_at_once=10)
    request = await rig.running()
    name = {"response_id": "resp_of_nobody", "stream_id": "nobody's"}.get(where, request)
    for _ in range(40):
        rig.send(type="response.cancel", **{"stream_id" if where == "stream_id" else "response_id": name})
    await rig.until(lambda: bool(rig.socket.closed))
    assert rig.socket.closed[0] == (1008, "too many messages")


@pytest.mark.parametrize("frame", ["{", '{"type":"response.create","model":"m","input":"x"}'])
async def test_who_goes_on_is_let_go(make_rig: MakeRig, frame: str) -> None:
    rig = make_rig(messages_per_s=1.0, messages_at_once=5)
    for number in range(30):
        rig.socket.incoming.put_nowait(frame)
        if number % 5 == 0:
            await rig.settle()
    await rig.until(lambda: bool(rig.socket.closed))
    assert rig.socket.closed[0] == (1008, "too many messages")
    said = [kind for kind in rig.kinds() if kind.startswith("error")]
    assert len(said) <= 11, "nothing is answered any more"


@pytest.mark.parametrize("frame", ["{", '{"type":"response.create","model":"m","input":"x"}'])
async def test_a_flood_of_which_some_find_room_is_let_go(make_rig: MakeRig, frame: str) -> None:
    rig = make_rig(messages_per_s=200.0, messages_at_once=20)
    for _ in range(400):
        rig.socket.incoming.put_nowait(frame)
        await rig.settle()
        rig.now += 0.001
        if rig.socket.closed:
            break
    assert rig.socket.closed[0] == (1008, "too many messages")


async def test_who_sends_as_fast_as_it_may_is_kept(make_rig: MakeRig) -> None:
    rig = make_rig(messages_per_s=10.0, messages_at_once=1)
    for _ in range(40):
        rig.send(type="response.steer", previous_response_id="r", input="left")
        await rig.settle()
        rig.now += 0.1001
    assert rig.kinds() == ["steer.failed"] * 40
    assert rig.socket.closed == []
