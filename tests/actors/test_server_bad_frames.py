"""Frames that break the rules of WebSockets, or keep them and are a burden: each costs little, and is answered."""

import asyncio
import contextlib
import struct
import time
import zlib
from collections import Counter
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.reading import TURN_S, Reading
from actors.socket import Socket, SocketGone
from actors.websocket import CONTROL_FRAME, FRAGMENTS_AT_ONCE, HttpConnection
from tests.actors.server_house import House, MakeHouse

UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
TEXT, BINARY, CONTINUED, PING, PONG = 0x1, 0x2, 0x0, 0x9, 0xA


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, masked: bool = True) -> bytes:
    """As a client sends it; its mask changes nothing."""
    first = bytes([(fin << 7) | (reserved << 4) | opcode])
    mask = 0x80 if masked else 0
    if len(payload) < 126:
        size = bytes([mask | len(payload)])
    elif len(payload) < 2**16:
        size = struct.pack(">BH", mask | 126, len(payload))
    else:
        size = struct.pack(">BQ", mask | 127, len(payload))
    return first + size + (bytes(4) if masked else b"") + payload


def close_code(said: bytes) -> int:
    """Of the goodbye that a server has said last."""
    goodbye = said.rfind(b"\x88")
    assert goodbye >= 0, said
    return int.from_bytes(said[goodbye + 2 : goodbye + 4], "big")


async def answer_to(house: House, *frames: bytes, headers: bytes = b"") -> tuple[bytes, bytes]:
    """The head of the answer to an upgrade, and all that was said after it, until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port)
    try:
        async with asyncio.timeout(10):
            writer.write(UPGRADE + headers + b"\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            writer.writelines(frames)
            said = b""
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(65_536):
                    said += piece
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return head, said


BOMB = zlib.compress(b"x" * 100_000_000)[2:-4]
"""A hundred megabytes, said in a hundred kilobytes as permessage-deflate says it."""

BROKEN: dict[str, tuple[bytes, int]] = {
    "compressed": (frame(TEXT, BOMB, reserved=4), 1002),
    "a reserved bit": (frame(TEXT, b"{}", reserved=2), 1002),
    "not masked": (frame(TEXT, b"{}", masked=False), 1002),
    "an unknown opcode": (frame(0x3, b"{}"), 1002),
    "an unknown control opcode": (frame(0xB), 1002),
    "a long ping": (frame(PING, b"x" * 126), 1002),
    "a ping in fragments": (frame(PING, b"x", fin=False), 1002),
    "the rest of nothing": (frame(CONTINUED, b"x"), 1002),
    "a message within a message": (frame(TEXT, b"x", fin=False) + frame(TEXT, b"x"), 1002),
    "a goodbye of one byte": (frame(0x8, b"\x03"), 1002),
    "a goodbye that may not be said": (frame(0x8, struct.pack(">H", 1006)), 1002),
    "text that is not UTF-8": (frame(TEXT, b"\xff"), 1007),
    "half a character": (frame(TEXT, "é".encode()[:1], fin=False) + frame(CONTINUED), 1007),
    "a size over the limit": (b"\x81\xff" + struct.pack(">Q", 2**40) + bytes(4), 1009),
    "a size no number": (b"\x81\xff" + struct.pack(">Q", 2**63) + bytes(4), 1009),
    "fragments over the limit": (frame(TEXT, b"x" * 1_500_000, fin=False) + frame(CONTINUED, b"x" * 1_500_000), 1009),
    "fragments without end": (frame(TEXT, b"x", fin=False) + frame(CONTINUED, b"", fin=False) * 20_000, 1009),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_broken_frame_ends_its_own_socket_with_the_right_code(make_house: MakeHouse, what: str) -> None:
    frames, code = BROKEN[what]
    house = await make_house()
    _, said = await answer_to(house, frames)
    assert close_code(said) == code
    async with asyncio.timeout(5):
        await house.left.wait()


@pytest.mark.parametrize("offer", [b"permessage-deflate", b"permessage-deflate; client_max_window_bits, x-webkit"])
async def test_an_offer_to_compress_is_not_taken(make_house: MakeHouse, offer: bytes) -> None:
    house = await make_house()
    header = b"Sec-WebSocket-Extensions: " + offer + b"\r\n"
    head, said = await answer_to(house, frame(TEXT, BOMB, reserved=4), headers=header)
    assert head.startswith(b"HTTP/1.1 101")
    assert b"extensions" not in head.lower()
    assert close_code(said) == 1002


async def test_the_body_of_a_request_is_neither_inflated_nor_kept(make_house: MakeHouse) -> None:
    house = await make_house()
    head = "POST /v1/responses HTTP/1.1\nHost: x\nContent-Encoding: deflate\nContent-Length: 100000"
    status, _, body = await house.http(head, BOMB[:100_000])
    assert status == 405
    assert b"WebSocket" in body


async def test_a_message_in_some_fragments_is_whole(make_house: MakeHouse) -> None:
    heard: list[bytes | str] = []

    async def hear(socket: Socket, _: str) -> None:
        heard.append(await socket.recv())
        await socket.close(1000, "")

    house = await make_house(hear)
    text = "ünï" * 500
    pieces = [text.encode()[n : n + 1] for n in range(len(text.encode()))]
    frames = [frame(TEXT, pieces[0], fin=False), *[frame(CONTINUED, piece, fin=False) for piece in pieces[1:]]]
    await answer_to(house, *frames, frame(PING, b"still there?"), frame(CONTINUED))
    assert heard == [text]


@pytest.mark.parametrize("what", ["pings", "messages", "fragments"])
async def test_a_flood_of_tiny_frames_holds_the_loop_for_no_more_than_a_few_of_them(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The best of several floods: this machine may do something else meanwhile."""
    flood = {
        "pings": frame(PING) * 40_000,
        "messages": frame(TEXT, b"x") * 35_000,
        "fragments": frame(TEXT, b"", fin=False) + frame(CONTINUED, b"", fin=False) * 40_000,
    }[what]
    held: list[float] = []
    go_on = Reading._go_on

    def timed(self: Reading) -> None:
        began = time.thread_time()
        go_on(self)
        held.append(time.thread_time() - began)

    monkeypatch.setattr(Reading, "_go_on", timed)
    longest = []
    for _ in range(3):
        held.clear()
        house = await make_house()
        await answer_to(house, flood + frame(0x8, struct.pack(">H", 1000)))
        longest.append(max(held))
    assert min(longest) < 0.05, "a flood is read in turns"


def in_fragments(text: bytes, size: int) -> bytes:
    pieces = [text[n : n + size] for n in range(0, len(text), size)]
    last = len(pieces) - 1
    return b"".join(frame(CONTINUED if n else TEXT, piece, fin=n == last) for n, piece in enumerate(pieces))


async def listen(socket: Socket, _: str) -> None:
    """To whatever is said, and then to the goodbye."""
    with contextlib.suppress(SocketGone):
        while True:
            await socket.recv()


@pytest.mark.parametrize("what", ["pings", "pongs", "fragments", "empty fragments of one message"])
async def test_whoever_floods_with_frames_is_closed(make_house: MakeHouse, what: str) -> None:
    flood = {
        "pings": frame(PING) * (FRAGMENTS_AT_ONCE // CONTROL_FRAME + 500),
        "pongs": frame(PONG) * (FRAGMENTS_AT_ONCE // CONTROL_FRAME + 500),
        "fragments": in_fragments(b"x" * 1_000, 1) * (FRAGMENTS_AT_ONCE // 1_000 + 3),
        "empty fragments of one message": frame(TEXT, b"", fin=False) + frame(CONTINUED, b"", fin=False) * 20_000,
    }[what]
    house = await make_house(listen)
    _, said = await answer_to(house, flood)
    assert close_code(said) == (1009 if "one message" in what else 1008)


async def test_a_large_message_in_small_fragments_and_some_pings_are_no_flood(make_house: MakeHouse) -> None:
    heard: list[bytes | str] = []

    async def hear(socket: Socket, _: str) -> None:
        heard.extend([await socket.recv() for _ in range(2)])
        await socket.close(1000, "")

    house = await make_house(hear)
    large = b"x" * (2 * 2**20)
    pings = frame(PING, b"still there?") * 300
    _, said = await answer_to(house, in_fragments(large, 2**10), pings, in_fragments(large, 2**10))
    assert heard == [large.decode()] * 2
    assert said.count(b"still there?") == 300
    assert close_code(said) == 1000


async def test_many_floods_are_read_for_no_longer_in_a_turn_than_one(
    make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which every piece takes a whole turn's time."""
    loop = asyncio.get_running_loop()
    ticks, turn = count(), 0
    reading = Reading(loop.call_soon, clock=lambda: next(ticks) * TURN_S)
    monkeypatch.setattr("actors.websocket.reading_of", lambda _: reading)
    read: Counter[int] = Counter()
    read_some = HttpConnection.read_some

    def counted(self: HttpConnection) -> bool:
        read[turn] += 1
        return read_some(self)

    monkeypatch.setattr(HttpConnection, "read_some", counted)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        turns = loop.call_soon(next_turn)
        if enough.is_set():
            turns.cancel()

    enough = asyncio.Event()
    loop.call_soon(next_turn)
    house = await make_house(listen)
    flood = frame(PING) * (FRAGMENTS_AT_ONCE // CONTROL_FRAME - 1) + frame(0x8)
    await asyncio.gather(*[answer_to(house, flood) for _ in range(30)])
    enough.set()
    assert sum(read.values()) > 30 * len(flood) / 2**10
    # A turn may stand between two turns of the reading.
    assert max(read.values()) <= 2 * 2


async def test_what_comes_before_a_flood_and_after_it_is_heard_in_order(make_house: MakeHouse) -> None:
    heard: list[bytes | str] = []

    async def hear(socket: Socket, _: str) -> None:
        with contextlib.suppress(SocketGone):
            while True:
                heard.append(await socket.recv())
                if heard[-1] == "the last":
                    await socket.close(1000, "")

    house = await make_house(hear)
    messages = [f"message {number} {'x' * (number % 300)}" for number in range(3_000)]
    frames = [frame(TEXT, message.encode()) + frame(PING) * (n % 4 == 0) for n, message in enumerate(messages)]
    await answer_to(house, *frames, frame(TEXT, b"the last"))
    assert heard.pop() == "the last"
    assert heard == messages


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                frame,
                st.integers(0, 15),
                st.binary(max_size=140),
                fin=st.booleans(),
                reserved=st.sampled_from([0, 0, 0, 0, 1, 4, 7]),
                masked=st.sampled_from([True, True, True, False]),
            ),
        ),
        max_size=8,
    )
)
async def test_whatever_bytes_follow_an_upgrade_the_socket_ends_and_the_next_one_is_served(
    make_house: MakeHouse, pieces: list[bytes]
) -> None:
    house = await make_house()
    reader, writer = await asyncio.open_connection("127.0.0.1", house.server.port)
    try:
        async with asyncio.timeout(5):
            writer.write(UPGRADE + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            with contextlib.suppress(ConnectionError):
                writer.write(b"".join(pieces))
                writer.write_eof()
                assert b"Traceback" not in await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    async with asyncio.timeout(5):
        await house.left.wait()
    status, _, _ = await house.get("/healthz")
    assert status == 200


async def test_large_messages_that_are_whole_at_once_are_handed_on_one_in_a_turn(make_house: MakeHouse) -> None:
    """What is made of each takes milliseconds, in the turn in which it is handed on."""
    turn, handed_on, all_heard = 0, list[int](), asyncio.Event()

    async def hear(open_: Socket, _: str) -> None:
        with contextlib.suppress(SocketGone):
            while True:
                await open_.recv()
                handed_on.append(turn)
                if len(handed_on) == len(clients):
                    all_heard.set()

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    house = await make_house(hear)
    message = frame(TEXT, b"x" * 40_000)
    clients = [await asyncio.open_connection("127.0.0.1", house.server.port) for _ in range(8)]
    counting = asyncio.create_task(turns())
    try:
        async with asyncio.timeout(20):
            for reader, writer in clients:
                writer.write(UPGRADE + b"\r\n")
                await reader.readuntil(b"\r\n\r\n")
                writer.write(message[:-1])
                await writer.drain()
            for _ in range(200):  # what has been written so far is read meanwhile
                await asyncio.sleep(0)
            assert handed_on == []
            for _, writer in clients:
                writer.write(message[-1:])
            await all_heard.wait()
    finally:
        counting.cancel()
        for _, writer in clients:
            writer.close()
    assert len(set(handed_on)) == len(clients), "several in one turn of the loop"
