"""Many responses resumed on one socket: each is told in its turn, whole and once, however large their ends are."""

from collections.abc import Sequence
from random import Random

import pytest

from protocol.messages import CloseConnection
from tests.actors.connection_line import Line
from tests.actors.connection_rig import MakeRig, Rig


async def finished(line: Line, many: int, words: int = 200) -> tuple[Rig, list[str]]:
    """A connection that is lost, and so many resumable responses that have ended on it, on lanes `a0`, `a1`, ..."""
    rig = line.connect()
    requests = []
    for number in range(many):
        request = await rig.running(f"a{number}", resumable=True)
        await rig.say(request, f"{number} " * words, rig.now)
        rig.end(request)
        requests.append(request)
    await line.settle()
    await line.lost(rig)
    return rig, requests


def resume(rig: Rig, request: str, after: int = -1) -> None:
    named = {} if after < 0 else {"starting_after": after}
    rig.send(type="response.resume", response_id=request, stream_id="r", **named)


def numbers(rig: Rig, lane: str) -> list[int]:
    return [event["sequence_number"] for event in rig.events if event.get("stream_id") == lane]


def last_numbers(rig: Rig, many: int) -> list[int]:
    return [numbers(rig, f"a{number}")[-1] for number in range(many)]


@pytest.mark.parametrize("unsent_bytes", [500, 20_000])
async def test_ends_that_are_large_are_told_in_turn_to_a_reader_that_takes_them(
    make_rig: MakeRig, unsent_bytes: int
) -> None:
    """More of them than may be left unread, by far, and at first there is no room for any."""
    line = Line(make_rig)
    first, requests = await finished(line, 12, words=1_000)
    last = last_numbers(first, 12)
    second = line.connect(unsent_bytes=unsent_bytes, turn_bytes=1_000)
    second.socket.room.clear()
    for number, request in enumerate(requests):
        resume(second, request, last[number] - 2)
    await line.settle()
    assert second.socket.closed == []
    assert second.events == []
    second.socket.room.set()
    await line.settle()
    assert second.socket.closed == []
    for number in range(12):
        assert numbers(second, f"a{number}") == [last[number] - 1, last[number]]
    assert [event["type"] for event in second.events].count("response.completed") == 12


async def stuck(line: Line, requests: Sequence[str], *, unsent_bytes: int) -> Rig:
    """A socket on which all of these are to go on, and which takes nothing."""
    rig = line.connect(unsent_bytes=unsent_bytes, turn_bytes=1_000)
    rig.socket.room.clear()
    for request in requests:
        resume(rig, request)
    await line.settle()
    return rig


async def test_while_there_is_no_room_little_is_held_of_what_was_relayed(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    _, requests = await finished(line, 20, words=1_000)
    second = await stuck(line, requests, unsent_bytes=30_000)
    relays = second.connection._exchange._relays
    assert len(relays) == 19, "one was handed to the writer, which waits"
    assert relays._held_bytes < 30_000 + 15_000
    second.socket.room.set()
    await line.settle()
    assert len(relays) == relays._held_bytes == 0
    assert not relays.ready


@pytest.mark.parametrize("seed", range(8))
async def test_every_event_is_told_once_and_in_order_however_room_comes_and_goes(make_rig: MakeRig, seed: int) -> None:
    random = Random(seed)
    line = Line(make_rig)
    first, requests = await finished(line, 8, words=random.choice([3, 200, 2_000]))
    last = last_numbers(first, 8)
    running = [await line.begun("One, two, three") for _ in range(3)]
    for rig, _ in running:
        await line.lost(rig)
    second = line.connect(unsent_bytes=random.choice([1, 5_000, 100_000]), turn_bytes=random.choice([1, 500, 16_384]))
    after = [random.randrange(-1, number) for number in last]
    for number in random.sample(range(8), 8):
        resume(second, requests[number], after[number])
        if random.random() < 0.5:
            second.socket.room.clear()
        for _ in range(random.randrange(4)):
            await line.settle()
        second.socket.room.set()
    await line.settle()
    for number in range(8):
        assert numbers(second, f"a{number}") == list(range(after[number] + 1, last[number] + 1))
    assert second.socket.closed == []


async def test_those_that_go_on_share_the_socket_with_large_ends(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    _, requests = await finished(line, 5, words=1_000)
    home, request = await line.begun()
    await line.lost(home)
    second = line.connect(unsent_bytes=100, turn_bytes=100)
    second.socket.room.clear()
    for one in requests:
        resume(second, one)
    resume(second, request)
    await line.settle()
    second.socket.room.set()
    await line.settle()
    await home.say(request, "three", home.now)
    home.end(request)
    await line.settle()
    assert numbers(second, "a") == list(range(len(numbers(second, "a"))))
    assert second.kinds("a")[-1] == "completed"
    assert second.text("a") == "One,twothree"


async def test_taken_over_by_another_socket_it_is_held_no_more(make_rig: MakeRig) -> None:
    line = Line(make_rig)
    _, requests = await finished(line, 3, words=1_000)
    second = await stuck(line, requests, unsent_bytes=1_000)
    third = line.connect()
    for request in requests:
        resume(third, request)
    await line.settle()
    assert [kind for n in range(3) for kind in third.kinds(f"a{n}") if kind == "completed"] == ["completed"] * 3
    second.socket.room.set()
    await line.settle()
    for number in range(3):
        assert numbers(third, f"a{number}")[0] == 0
        ends = second.kinds(f"a{number}")[-1]
        assert ends in ("completed", "error:response_resumed_elsewhere")
    assert second.socket.closed == []


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_socket_that_is_closed_meanwhile_tells_no_event_behind_a_gap(make_rig: MakeRig, keeps: bool) -> None:
    line = Line(make_rig)
    first, requests = await finished(line, 6, words=1_000)
    last = last_numbers(first, 6)
    second = await stuck(line, requests, unsent_bytes=1_000)
    second.tell(CloseConnection(2, 1001, "old enough", None, keeps))
    await line.settle()
    second.socket.room.set()
    await second.until(lambda: bool(second.socket.closed))
    await line.settle()
    assert second.socket.closed[0] == (4006 if keeps else 1001, "old enough")
    third = line.connect()
    for number, request in enumerate(requests):
        told = numbers(second, f"a{number}")
        assert told == list(range(len(told)))
        if not told or told[-1] < last[number]:
            resume(third, request, len(told) - 1)
    await line.settle()
    for number in range(6):
        assert numbers(second, f"a{number}") + numbers(third, f"a{number}") == list(range(last[number] + 1))
