"""The input of a request: OpenAI's shapes of a message, and the exact path of everything else."""

import json
from typing import Any

import pytest

from protocol.errors import Refusal
from protocol.events import ResponseEvents, Terminal
from protocol.input_items import MOST_ITEMS, Message, read_input
from protocol.messages import TokenLogprob
from protocol.responses import LOGPROBS, ResponseCreate

TEXT = {"type": "input_text", "text": "Hi"}


def test_a_string_stays_a_string() -> None:
    assert read_input("Hi") == "Hi"


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_each_role_may_speak_with_or_without_a_type(role: str) -> None:
    with_type = read_input([{"type": "message", "role": role, "content": "Hi"}])
    without = read_input([{"role": role, "content": "Hi"}])
    assert with_type == without == (Message(role, "Hi"),)  # type: ignore[arg-type]


def test_the_parts_of_a_message_are_joined() -> None:
    parts = [TEXT, {"type": "output_text", "text": " there", "annotations": [], "logprobs": None}]
    assert read_input([{"role": "user", "content": parts}]) == (Message("user", "Hi there"),)
    assert read_input([{"role": "user", "content": []}]) == (Message("user", ""),)


def test_nulls_are_absent() -> None:
    item = {"type": None, "role": "user", "content": [{**TEXT, "unheard_of": None}], "unheard_of": None}
    assert read_input([item]) == (Message("user", "Hi"),)


def test_a_response_s_own_output_is_accepted_as_it_came() -> None:
    events = ResponseEvents(
        response_id="r", item_id="i", created_at=1, model="m", create=ResponseCreate(include=(LOGPROBS,))
    )
    frames = events.created(False) + events.text("Hi", (TokenLogprob("Hi", -0.5, (("Hi", -0.5),)),))
    frames += events.finish(Terminal("length"))
    output = json.loads(frames[-1])["response"]["output"]
    assert read_input([*output, {**output[0], "phase": "final_answer"}]) == (Message("assistant", "Hi"),) * 2


def message(*content: Any, **fields: Any) -> list[Any]:
    return [{"role": "user", "content": "before"}, {"role": "user", "content": list(content), **fields}]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (3, "input"),
        ({"role": "user", "content": "Hi"}, "input"),
        (["Hi"], "input[0]"),
        ([{"role": "user", "content": "Hi"}, None], "input[1]"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type"),
        ([{"type": "function_call_output", "call_id": "c", "output": "x"}], "input[0].type"),
        ([{"type": 3}], "input[0].type"),
        ([{"content": "Hi"}], "input[0].role"),
        ([{"role": "tool", "content": "Hi"}], "input[0].role"),
        ([{"role": ["user"], "content": "Hi"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 3}], "input[0].content"),
        ([{"role": "user", "content": TEXT}], "input[0].content"),
        ([{"role": "user", "content": "Hi", "name": "Ada"}], "input[0].name"),
        (message(TEXT, 3), "input[1].content[1]"),
        (message(TEXT, {"type": "input_image", "image_url": "x"}), "input[1].content[1].type"),
        (message({"type": "refusal", "refusal": "x"}), "input[1].content[0].type"),
        (message({"type": ["input_text"], "text": "Hi"}), "input[1].content[0].type"),
        (message({"text": "Hi"}), "input[1].content[0].type"),
        (message({"type": "input_text"}), "input[1].content[0].text"),
        (message({"type": "input_text", "text": 3}), "input[1].content[0].text"),
        (message({**TEXT, "prompt_cache_breakpoint": {}}), "input[1].content[0].prompt_cache_breakpoint"),
    ],
)
def test_anything_else_is_refused_by_its_path(given: object, path: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_input(given)
    error = caught.value.error
    assert (error.code, error.param) == ("unsupported_input", path)
    assert error.message.startswith(f"'{path}': ")


def test_messages_and_parts_are_bounded_together() -> None:
    half = MOST_ITEMS // 2
    one = {"role": "user", "content": ""}
    fits = [*[one] * (half - 1), {"role": "user", "content": [TEXT] * half}]
    assert len(read_input(fits)) == half
    assert len(read_input([one] * MOST_ITEMS)) == MOST_ITEMS
    for given in ([*fits, one], [one] * (MOST_ITEMS + 1), [{"role": "user", "content": [TEXT] * MOST_ITEMS}]):
        with pytest.raises(Refusal) as caught:
            read_input(given)
        error = caught.value.error
        assert (error.code, error.param) == ("invalid_request_error", "input")
        assert f"input holds 4,097 messages and parts; it may hold {MOST_ITEMS:,}." in error.message
