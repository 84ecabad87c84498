"""The frames that are made here are those that the library makes."""

import pytest
from websockets.frames import Frame, Opcode

from actors.websocket import text_frame


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 2**16 - 1, 2**16, 2**17])
def test_a_frame_of_any_length_is_the_librarys_byte_for_byte(length: int) -> None:
    text = b"x" * length
    assert text_frame(text) == Frame(Opcode.TEXT, text).serialize(mask=False)
