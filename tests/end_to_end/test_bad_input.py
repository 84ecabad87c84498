"""Whatever a client sends, it is told what was wrong with it, and the socket lives on."""

import json

import pytest

from tests.end_to_end.client import Client, Event, connected
from tests.end_to_end.server import Server

Wrong = tuple[str | bytes, str, str | None]


def create(**fields: object) -> str:
    body = {"type": "response.create", "model": "legible", "input": "Hello", "max_output_tokens": 1, **fields}
    return json.dumps(body)


WRONG: dict[str, Wrong] = {
    "not JSON": ("hello", "invalid_json", None),
    "half a frame": ('{"type": "response.create"', "invalid_json", None),
    "nothing": ("", "invalid_json", None),
    "a list": ("[]", "invalid_request_error", None),
    "a number": ("7", "invalid_request_error", None),
    "NaN": (create(temperature=float("nan")), "invalid_json", None),
    "Infinity": (create(temperature=float("inf")), "invalid_json", None),
    "a lone surrogate": (create(input="\ud83d"), "invalid_json", None),
    "a lone surrogate in a name": (create(**{"\ud83d": 1}), "invalid_json", None),
    "a binary frame": (create().encode(), "invalid_request_error", None),
    "no type": (json.dumps({"model": "legible"}), "invalid_request_error", "type"),
    "an unknown event": (json.dumps({"type": "response.explode"}), "invalid_request_error", "type"),
    "a type of the wrong type": (json.dumps({"type": 7}), "invalid_request_error", "type"),
    "an unknown model": (create(model="gpt-0"), "model_not_found", "model"),
    "empty input": (create(input=""), "invalid_request_error", "input"),
    "no messages": (create(input=[]), "invalid_request_error", "input"),
    "input of the wrong type": (create(input=7), "unsupported_input", "input"),
    "content of the wrong type": (
        create(input=[{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_text"}]}]),
        "unsupported_input",
        "input[1].content[0].text",
    ),
    "an image": (
        create(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        "unsupported_input",
        "input[0].content[0].type",
    ),
    "an unknown role": (create(input=[{"role": "tool", "content": "a"}]), "unsupported_input", "input[0].role"),
    "a prompt over the context": (create(input="x" * 9000), "context_length_exceeded", "input"),
    "an answer over the context": (create(max_output_tokens=9000), "context_length_exceeded", "max_output_tokens"),
    "max_output_tokens 0": (create(max_output_tokens=0), "invalid_request_error", "max_output_tokens"),
    "max_output_tokens -1": (create(max_output_tokens=-1), "invalid_request_error", "max_output_tokens"),
    "max_output_tokens a fraction": (create(max_output_tokens=1.5), "invalid_request_error", "max_output_tokens"),
    "max_output_tokens a string": (create(max_output_tokens="7"), "invalid_request_error", "max_output_tokens"),
    "max_output_tokens enormous": (create(max_output_tokens=2**70), "invalid_request_error", "max_output_tokens"),
    "temperature 3": (create(temperature=3), "invalid_request_error", "temperature"),
    "temperature -0.1": (create(temperature=-0.1), "invalid_request_error", "temperature"),
    "top_p 0": (create(top_p=0), "invalid_request_error", "top_p"),
    "top_logprobs 21": (create(top_logprobs=21), "invalid_request_error", "top_logprobs"),
    "an empty stop text": (create(stop=[""]), "invalid_request_error", "stop[0]"),
    "tools": (create(tools=[{"type": "function", "name": "f"}]), "unsupported_parameter", "tools"),
    "a misspelt field": (create(temprature=1), "unsupported_parameter", "temprature"),
    "metadata of the wrong type": (create(metadata={"a": 1}), "invalid_request_error", "metadata"),
    "a bad lane": (create(stream_id="no spaces"), "invalid_stream_id", "stream_id"),
    "an unknown parent": (
        create(previous_response_id="resp_of_nobody"),
        "previous_response_not_found",
        "previous_response_id",
    ),
}


@pytest.fixture
async def told_off(server: Server, client: Client) -> Client:
    assert server.model == "legible"
    return client


async def test_every_mistake_is_named_and_the_socket_lives_on(told_off: Client) -> None:
    for what, (frame, code, param) in WRONG.items():
        await told_off.send(frame)
        answer = await told_off.answer()
        assert answer.terminal["type"] == "error", f"{what} was answered"
        error = answer.error
        assert (error["code"], error.get("param")) == (code, param), what
        assert error["message"].endswith((".", "?")), what
        if param is not None:
            assert param in error["message"] or code != "invalid_request_error", what
    assert (await told_off.ask("Still there?", max_output_tokens=2)).reason == "length"


async def test_the_sentence_has_the_numbers(told_off: Client) -> None:
    error = (await told_off.ask("x" * 9000, max_output_tokens=256)).error
    for number in ("9,0", "256", "8,192"):
        assert number in error["message"]


async def test_a_mistake_on_one_lane_does_not_touch_another(told_off: Client) -> None:
    good, bad = told_off.lane("good"), told_off.lane("bad")
    await good.create("Keep going.", max_output_tokens=60, ignore_eos=True)
    for _ in range(5):
        assert (await bad.ask("x", temperature=3)).error["code"] == "invalid_request_error"
    assert (await good.answer()).usage["output_tokens"] == 60


async def test_a_refusal_keeps_its_place_on_its_lane(told_off: Client) -> None:
    await told_off.create("Take your time.", max_output_tokens=40, ignore_eos=True)
    await told_off.create("x", temperature=3)
    await told_off.create("And then?", max_output_tokens=2)
    assert (await told_off.answer()).reason == "length"
    assert (await told_off.answer()).error["param"] == "temperature"
    assert (await told_off.answer()).reason == "length"


async def test_a_refused_continuation_leaves_its_parent_usable(told_off: Client) -> None:
    parent = await told_off.ask("Hello.", max_output_tokens=4)
    refused = await told_off.ask("x" * 9000, previous_response_id=parent.id, max_output_tokens=4)
    assert refused.error["code"] == "context_length_exceeded"
    assert (await told_off.ask("Again.", previous_response_id=parent.id, max_output_tokens=2)).reason == "length"


async def test_a_frame_of_20_megabytes_closes_its_socket_with_1009_and_no_other(server: Server) -> None:
    async with connected(server) as client, connected(server) as other:
        await other.create("Keep going.", max_output_tokens=60, ignore_eos=True)
        await client.send(create(input="x" * 20_000_000))
        assert await client.closed() == 1009
        assert (await other.answer()).usage["output_tokens"] == 60


async def test_of_200_lanes_at_once_128_are_answered_and_the_others_told_why(client: Client) -> None:
    lanes = [client.lane(f"lane-{number}") for number in range(200)]
    for lane in lanes:
        await lane.create("Hello", max_output_tokens=2, ignore_eos=True)
    answers = [await lane.answer() for lane in lanes]
    refused = [answer for answer in answers if answer.terminal["type"] == "error"]
    assert [answer.reason for answer in answers if answer not in refused] == ["length"] * (200 - len(refused))
    assert {answer.error["code"] for answer in refused} == {"websocket_stream_limit_reached"}
    assert 0 < len(refused) <= 72
    assert (await client.ask("Still there?", max_output_tokens=2)).reason == "length"


async def test_steering_is_declined_with_the_input_echoed(client: Client) -> None:
    await client.send({"type": "response.steer", "previous_response_id": "resp_1", "input": "left"})
    event: Event = await client.event()
    assert event["type"] == "response.steer.failed"
    assert event["error"]["code"] == "steering_not_supported"
    assert event["steer"]["input"] == "left"
