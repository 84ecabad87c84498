"""The wire fuzzed from outside: whatever a client sends, it hears events and typed errors, and the server goes on."""

from typing import get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from tests.end_to_end.client import Client, connected
from tests.end_to_end.server import Server
from tests.protocol.nasty_frames import LARGEST_OF_EACH_KIND, frames


def sendable(frame: bytes) -> str | bytes:
    """As text, where it is any; else in a binary frame."""
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return frame


async def still_served(client: Client) -> None:
    """On a lane of its own. What was said before it has been read by then, and was checked as it was heard."""
    answer = await client.lane("still-there").ask("Still there?", max_output_tokens=2, ignore_eos=True)
    assert answer.reason == "length"
    for event in client.heard:
        if event["type"] == "error":
            assert event["error"]["code"] in get_args(ErrorCode)
            assert "Traceback" not in event["error"]["message"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(frames().filter(lambda frame: b"steer" not in frame), max_size=30))
async def test_no_frames_end_a_socket_or_go_without_a_typed_answer(server: Server, sent: list[bytes]) -> None:
    async with connected(server) as client:
        for frame in sent:
            await client.send(sendable(frame))
        await still_served(client)


async def test_the_largest_frame_of_each_kind_is_answered_and_the_socket_lives_on(server: Server) -> None:
    async with connected(server) as client:
        for kind, make in LARGEST_OF_EACH_KIND.items():
            made = make()
            heard = len(client.heard)
            await client.send(sendable(made) if isinstance(made, bytes) else made)
            await still_served(client)
            answers = [event["type"] for event in client.heard[heard:] if event.get("stream_id") != "still-there"]
            assert answers, f"{kind} was not answered"
    await server.empty()
