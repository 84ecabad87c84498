"""What a scripted server says to requests that each name a lane.

Knows how `stream_id` comes back, and a way to count tokens: one a piece, and thirty around them.
"""

import json
import re
from typing import cast

from websockets.sync.server import ServerConnection

from loadgen.warm_up import Lengths
from tests.loadgen.scripted_server import Body, begin, end, usage

LENGTHS = Lengths(30.0, 1.0)
"""Of the server below: a token a piece, and thirty around them."""


class _Lane:
    """A socket on which everything names a lane."""

    def __init__(self, connection: ServerConnection, lane: str) -> None:
        self._connection = connection
        self._lane = lane

    def send(self, event: str) -> None:
        self._connection.send(json.dumps({**json.loads(event), "stream_id": self._lane}))


def lane(connection: ServerConnection, asked: Body) -> ServerConnection:
    return cast(ServerConnection, _Lane(connection, asked["stream_id"]))


def input_tokens(asked: Body) -> int:
    return len(re.findall(r"[A-Za-z]+|[0-9]|[^\w\s]", asked["input"])) + 30


def finish(connection: ServerConnection, asked: Body, output_tokens: int = 3) -> None:
    end(lane(connection, asked), usage=usage(output_tokens, input_tokens(asked)))


def answer(connection: ServerConnection, asked: Body) -> None:
    begin(lane(connection, asked), "Hello", " there", ".")
    finish(connection, asked)
