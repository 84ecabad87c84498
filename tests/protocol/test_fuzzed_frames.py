"""Whatever comes in a frame, it is an event or a typed error, and soon."""

import time
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings

from protocol.errors import ErrorCode
from protocol.event_shapes import ErrorBody
from protocol.events import error_event, steer_failed
from protocol.responses import Rejected, ResponseCreate, ResponseSteer, parse_client_event
from tests.protocol.nasty_frames import LARGEST, LARGEST_OF_EACH_KIND, frames
from tests.protocol.official import validate_event

LONGEST_S = 0.05
"""That one frame may hold the event loop."""
LONGEST_MESSAGE = 4_000
"""Characters: what is repeated of a frame is a part of it."""


def check(frame: bytes) -> str:
    """That it became an event, or an error that a client can read. Says which."""
    event = parse_client_event(frame)
    if isinstance(event, Rejected):
        said = error_event(event.error, event.stream_id)
        validate_event(said)
        error = msgspec.convert(msgspec.json.decode(said)["error"], ErrorBody)
        assert error.code in get_args(ErrorCode)
        assert error.message.endswith((".", "?"))
        assert len(error.message) <= LONGEST_MESSAGE
        assert "Traceback" not in error.message
        return error.code
    if isinstance(event, ResponseCreate):
        assert parse_client_event(msgspec.json.encode(event)) == event
    if isinstance(event, ResponseSteer):
        # Not looked at by OpenAI's types: what is given back is as wrong as it came.
        assert msgspec.json.decode(steer_failed(event))["steer"]["input"] == event.input
    return type(event).__name__


@settings(max_examples=500)
@given(frames())
def test_every_frame_is_an_event_or_a_typed_error(frame: bytes) -> None:
    check(frame)


@pytest.mark.parametrize("kind", LARGEST_OF_EACH_KIND)
def test_no_frame_holds_the_loop(kind: str) -> None:
    made = LARGEST_OF_EACH_KIND[kind]()
    frame = made if isinstance(made, bytes) else made.encode()
    assert len(frame) <= LARGEST
    check(frame)
    # Of several, as soon as one is quick enough: this machine may do something else meanwhile, which makes it slower.
    assert any(_seconds(frame) < LONGEST_S for _ in range(20))


def _seconds(frame: bytes) -> float:
    """Of this thread's own time."""
    began = time.thread_time()
    event = parse_client_event(frame)
    if isinstance(event, Rejected):
        error_event(event.error, event.stream_id)
    return time.thread_time() - began
