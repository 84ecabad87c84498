import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.http1 import LARGEST_CHUNK, EventStream, Garbled, pieces, read_head


async def read(data: bytes) -> tuple[int, list[bytes], bool]:
    """Status, body in its pieces, and whether the connection is kept."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    head = await read_head(reader)
    return head.status, [piece async for piece in pieces(reader, head)], head.kept_alive


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_chunked_body_comes_in_its_chunks_and_the_connection_is_kept() -> None:
    body = b"5;why=not\r\nHello\r\nB\r\n12345\r\n7890\r\n0\r\nTrailer: x\r\n\r\n"
    assert await read(CHUNKED + body) == (200, [b"Hello", b"12345\r\n7890"], True)


async def test_a_body_of_known_length_ends_with_it() -> None:
    assert await read(b"HTTP/1.1 404 Not Found\r\ncontent-LENGTH: 4\r\n\r\ngonemore") == (404, [b"gone"], True)
    assert await read(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n") == (204, [], True)


async def test_a_body_of_unknown_length_ends_with_the_connection() -> None:
    assert await read(b"HTTP/1.1 200 OK\r\n\r\nto the end") == (200, [b"to the end"], False)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
async def test_a_server_may_close_after_its_answer(head: bytes) -> None:
    assert await read(head + b"Content-Length: 2\r\n\r\nok") == (200, [b"ok"], False)


async def test_interim_answers_are_passed_over() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert await read(interim + b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx") == (200, [b"x"], True)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 201 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        CHUNKED + b"-5\r\nHello\r\n",
        CHUNKED + b"0x5\r\nHello\r\n",
        CHUNKED + b"\r\nHello\r\n",
        CHUNKED + b"5\r\nHello!!",
        CHUNKED + f"{LARGEST_CHUNK + 1:x}\r\n".encode(),
        b"a" * 2**17,
    ],
)
async def test_what_is_not_http_is_garbled(data: bytes) -> None:
    with pytest.raises(Garbled):
        await read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHell",
        CHUNKED,
        CHUNKED + b"5\r\nHel",
        CHUNKED + b"5\r\nHello\r\n",
        CHUNKED + b"0\r\n",
    ],
)
async def test_a_connection_that_ends_before_the_answer_is_told_from_garble(data: bytes) -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await read(data)


def test_events_are_read_whatever_the_pieces() -> None:
    text = ": a comment\n\ndata: one\n\nevent: x\ndata:two\ndata: lines\r\n\r\nid: 3\n\ndata: ✓\n\ndata: cut".encode()
    whole = EventStream().feed(text)
    assert whole == [b"one", b"two\nlines", "✓".encode()]
    for size in range(1, len(text)):
        stream = EventStream()
        found = [event for at in range(0, len(text), size) for event in stream.feed(text[at : at + size])]
        assert found == whole


@given(st.lists(st.binary()))
def test_any_bytes_are_events_or_none(parts: list[bytes]) -> None:
    stream = EventStream()
    for part in parts:
        stream.feed(part)
