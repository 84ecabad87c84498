"""What the writer knows of its reader: how much waits, and how much of that the reader has let happen."""

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.writer import PROGRESS_BYTES, Writer


class Gate:
    """A socket that takes a frame for every `open`, and `room` frames that nobody waits for."""

    room = 0

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._room = asyncio.Semaphore(0)

    def open(self) -> None:
        self._room.release()

    async def recv(self) -> bytes | str:
        raise NotImplementedError

    def offer(self, frame: bytes) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.frames.append(frame)
        return True

    async def send(self, frame: bytes) -> None:
        await self._room.acquire()
        self.frames.append(frame)

    async def close(self, code: int, reason: str) -> None:
        raise NotImplementedError


def new_writer(gate: Gate) -> Writer:
    return Writer(gate, clock=lambda: 0.0, stall_s=60.0, on_idle=lambda: None, on_stall=lambda: None)


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_what_is_put_in_one_go_is_no_sign_of_a_slow_reader() -> None:
    gate = Gate()
    writer = new_writer(gate)
    writing = asyncio.create_task(writer.write())
    writer.put([b"x" * 1000, b"y" * 1000])
    writer.put([b"z" * 1000])
    assert (writer.unsent_bytes, writer.behind_bytes) == (3000, 0)
    await turn()
    assert (writer.unsent_bytes, writer.behind_bytes) == (2000, 0)
    writer.put([b"late"])
    assert (writer.unsent_bytes, writer.behind_bytes) == (2004, 4)
    for _ in range(4):
        gate.open()
    await turn()
    assert writer.idle
    assert (writer.unsent_bytes, writer.behind_bytes) == (0, 0)
    writer.drop()
    writing.cancel()


async def test_what_the_socket_has_room_for_is_sent_at_once_and_the_rest_behind_it() -> None:
    gate = Gate()
    writer = new_writer(gate)
    writing = asyncio.create_task(writer.write())
    gate.room = 2
    writer.put([b"1"])
    assert (gate.frames, writer.idle) == ([b"1"], True)
    writer.put([b"2", b"3", b"4"])
    assert (gate.frames, writer.idle, writer.unsent_bytes, writer.behind_bytes) == ([b"1", b"2"], False, 2, 0)
    gate.room = 1
    writer.put([b"5"])
    assert gate.frames == [b"1", b"2"], "nothing overtakes what waits"
    for _ in range(3):
        gate.open()
    await turn()
    assert (gate.frames, writer.idle) == ([b"1", b"2", b"3", b"4", b"5"], True)
    writer.put([b"6"])
    assert gate.frames[-1] == b"6"
    writer.drop()
    writing.cancel()


@given(st.lists(st.one_of(st.integers(1, 3), st.sampled_from(["turn", "take", "room"])), max_size=40))
@settings(deadline=None)
def test_frames_arrive_in_order_whichever_way_they_take(script: list[int | str]) -> None:
    async def play() -> None:
        gate = Gate()
        writer = new_writer(gate)
        writing = asyncio.create_task(writer.write())
        put = 0
        for step in script:
            match step:
                case "turn":
                    await turn()
                case "take":
                    gate.open()
                    await turn()
                case "room":
                    gate.room += 1
                case int():
                    writer.put([str(put + number).encode() for number in range(step)])
                    put += step
        for _ in range(put):
            gate.open()
        await turn()
        assert gate.frames == [str(number).encode() for number in range(put)]
        assert writer.idle
        writer.drop()
        writing.cancel()

    asyncio.run(play())


@settings(deadline=None)
@given(st.lists(st.one_of(st.lists(st.integers(1, 9), max_size=3), st.just("turn"), st.just("take")), max_size=40))
def test_the_reader_is_behind_by_what_came_while_something_waited(script: list[list[int] | str]) -> None:
    async def play() -> None:
        gate = Gate()
        writer = new_writer(gate)
        writing = asyncio.create_task(writer.write())
        await turn()
        unsent: deque[tuple[int, bool]] = deque()
        put = 0
        for step in script:
            match step:
                case "turn":
                    await turn()
                case "take":
                    gate.open()
                    await turn()
                case list():
                    sending = put > len(gate.frames) + len(unsent)
                    writer.put([b"x" * size for size in step])
                    unsent.extend((size, sending) for size in step)
                    put += len(step)
            while step in ("turn", "take") and unsent and put - len(unsent) <= len(gate.frames):
                unsent.popleft()
            assert writer.unsent_bytes == sum(size for size, _ in unsent)
            assert writer.behind_bytes == sum(size for size, late in unsent if late)
        writer.drop()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    asyncio.run(play())


class Watched:
    """A writer whose clock is turned by hand, and what it says of its reader."""

    def __init__(self, gate: Gate) -> None:
        self.now = 100.0
        self.writer = Writer(
            gate, clock=lambda: self.now, stall_s=0.001, on_idle=lambda: None, on_stall=lambda: self._told.set()
        )
        self._told = asyncio.Event()

    async def told(self) -> float | None:
        """Since when it is stalled, when it says so next."""
        await self._told.wait()
        self._told.clear()
        return self.writer.stalled_since


async def test_a_reader_who_takes_but_a_trickle_is_as_good_as_stuck() -> None:
    gate = Gate()
    watched = Watched(gate)
    writing = asyncio.create_task(watched.writer.write())
    frame = b"x" * (PROGRESS_BYTES // 4)
    watched.writer.put([frame] * 12)
    watched.now = 110.0
    assert await watched.told() == 100.0
    for now in (115.0, 120.0, 125.0):
        watched.now = now
        gate.open()
        await turn()
        assert watched.writer.stalled_since == 100.0, "one frame is no progress"
    watched.now = 130.0
    gate.open()
    assert await watched.told() is None
    watched.now = 131.0
    assert await watched.told() == 130.0, "and from there it counts again"
    watched.writer.drop()
    writing.cancel()


async def test_a_reader_who_has_taken_all_there_is_is_not_stuck_however_little_it_was() -> None:
    gate = Gate()
    watched = Watched(gate)
    writing = asyncio.create_task(watched.writer.write())
    watched.writer.put([b"a", b"b"])
    watched.now = 110.0
    assert await watched.told() == 100.0
    gate.open()
    gate.open()
    assert await watched.told() is None
    watched.now = 150.0
    watched.writer.put([b"c"])
    watched.now = 151.0
    assert await watched.told() == 150.0
    watched.writer.drop()
    writing.cancel()
