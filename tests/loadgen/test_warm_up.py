"""The first requests to a server, and what they tell."""

import pytest
from websockets.sync.server import ServerConnection

from loadgen.client import Unreachable
from loadgen.lanes import LaneSocket
from loadgen.warm_up import Lengths, text, warm_up
from tests.loadgen.lane_server import LENGTHS, answer, input_tokens, lane
from tests.loadgen.scripted_server import Body, begin, end, refusal, say, scripted_server, usage


async def test_the_first_requests_tell_how_long_a_prompt_must_be() -> None:
    def chatty(connection: ServerConnection, asked: Body) -> None:
        begin(lane(connection, asked), "Hello")
        end(lane(connection, asked), usage=usage(1, 41 + 2 * (input_tokens(asked) - 30)))

    with scripted_server(chatty) as server:
        socket = await LaneSocket.open(server.url, None)
        lengths = await warm_up(socket, "m", 7, 12_000)
        await socket.close()
    assert lengths == Lengths(41.0, 2.0)
    assert lengths.pieces(12_041) == 6_000
    assert lengths.pieces(10) == 8, "a prompt is never empty"


async def test_no_first_request_is_longer_than_the_longest_of_the_scenario() -> None:
    with scripted_server(answer) as server:
        socket = await LaneSocket.open(server.url, None)
        assert await warm_up(socket, "m", 7, 400) == LENGTHS
        assert await warm_up(socket, "m", 7, 50) == LENGTHS
        await socket.close()
    assert [input_tokens(asked) for asked in server.requests] == [120, 330, 330, 120, 121, 121]


async def test_a_server_that_answers_no_first_request_is_told_in_a_sentence() -> None:
    def refuse(connection: ServerConnection, asked: Body) -> None:
        say(lane(connection, asked), refusal("context_length_exceeded", "Too long."))

    with scripted_server(refuse) as server:
        socket = await LaneSocket.open(server.url, None)
        with pytest.raises(Unreachable, match=r"came to nothing: Too long\."):
            await warm_up(socket, "m", 7, 12_000)
        await socket.close()


@pytest.mark.parametrize("pieces", [8, 100, 1500, 12_000])
def test_a_text_has_as_many_pieces_as_asked(pieces: int) -> None:
    assert input_tokens({"input": text(7, 3, pieces)}) == pieces + 30
    assert text(7, 3, pieces)[:12] != text(7, 4, pieces)[:12]
