"""The client's events: what is accepted and what becomes of it, and the exact error for everything else."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.events import error_event, steer_failed
from protocol.input_items import Message
from protocol.responses import (
    LOGPROBS,
    PromptCacheOptions,
    Rejected,
    ResponseCancel,
    ResponseCreate,
    ResponseResume,
    ResponseSteer,
    Targets,
    messages_of,
    parse_client_event,
)
from tests.protocol.official import validate_event

TEXT = {"type": "input_text", "text": "Hi"}


def create(**fields: Any) -> ResponseCreate:
    event = parse_client_event(json.dumps({"type": "response.create", "model": "m", "input": "Hi", **fields}))
    assert isinstance(event, ResponseCreate), event
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=ResponseCreate) == event
    assert parse_client_event(msgspec.json.encode(event)) == event
    return event


def rejected(**fields: Any) -> Rejected:
    body = {"type": "response.create", "model": "m", "input": "Hi", "stream_id": "a", **fields}
    event = parse_client_event(json.dumps(body))
    assert isinstance(event, Rejected), event
    validate_event(error_event(event.error, event.stream_id))
    assert event.error.message.endswith((".", "?"))
    return event


# --- accepted --------------------------------------------------------------------------------------------------------


def test_every_field_is_taken_over() -> None:
    fields = {
        "instructions": "Be brief.",
        "previous_response_id": "resp_1",
        "stream_id": "a-b_c.9",
        "generate": True,
        "max_output_tokens": 16,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_logprobs": 3,
        "metadata": {"k": "v"},
        "truncation": "auto",
        "service_tier": "flex",
        "store": False,
        "user": "u",
        "safety_identifier": "s" * 128,
        "prompt_cache_key": "k",
        "seed": -(2**63),
        "top_k": 0,
        "min_p": 1,
        "ignore_eos": True,
        "deadline_ms": 1500,
    }
    event = create(
        **fields,
        include=[LOGPROBS],
        stop=["\n", "END"],
        targets={"ttft_ms": 200, "itl_ms": 50.5},
        prompt_cache_options={"prewarm": False, "mode": "implicit", "ttl": "30m"},
    )
    assert {name: getattr(event, name) for name in fields} == fields
    assert event.include == (LOGPROBS,)
    assert event.stop == ("\n", "END")
    assert event.targets == Targets(200.0, 50.5)
    assert event.prompt_cache_options == PromptCacheOptions(False, "implicit", "30m")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("stream", True), ("background", False), ("tools", []), ("tool_choice", "auto"), ("tool_choice", "none")),
        *(("include", []), ("text", {"format": {"type": "text"}}), ("text", {}), ("text", {"format": None})),
        *(("parallel_tool_calls", True), ("parallel_tool_calls", False), ("stream_options", {})),
        *(("stream_options", {"include_obfuscation": False}), ("prompt_cache_retention", "24h")),
        *(("conversation", None), ("reasoning", {"effort": None, "summary": None}), ("context_management", [])),
        *(("unheard_of", None), ("targets", {"ttft_ms": None, "unheard_of": None}), ("stop", [])),
    ],
)
def test_harmless_values_make_no_difference(name: str, value: object) -> None:
    plain = create()
    event = create(**{name: value})
    assert msgspec.structs.replace(event, targets=None) == plain


def test_null_means_absent_everywhere() -> None:
    nulls = dict.fromkeys((*ResponseCreate.__struct_fields__, "tools", "reasoning", "unheard_of"))
    assert create(**{**nulls, "model": "m", "input": "Hi"}) == create()


def test_a_single_stop_text_may_stand_alone() -> None:
    assert create(stop="END").stop == ("END",)


def test_either_target_may_stand_alone() -> None:
    assert create(targets={"ttft_ms": 200}).targets == Targets(200.0, None)
    assert create(targets={"itl_ms": 0.5, "ttft_ms": None}).targets == Targets(None, 0.5)
    assert create(targets={}).targets == Targets()


def test_accessors_say_what_the_fields_mean() -> None:
    assert not create().prefill_only
    assert create(generate=False).prefill_only
    assert create(prompt_cache_options={"prewarm": True}).prefill_only
    assert not create(generate=True, prompt_cache_options={"prewarm": False}).prefill_only
    assert create().logprobs is None
    assert create(top_logprobs=5).logprobs is None
    assert create(include=[LOGPROBS]).logprobs == 0
    assert create(include=[LOGPROBS], top_logprobs=5).logprobs == 5
    assert create().stored
    assert not create(store=False).stored


def test_input_may_be_missing_where_something_else_stands_for_it() -> None:
    empties: list[Any] = [None, "", []]
    for empty in empties:
        assert messages_of(create(input=empty, previous_response_id="resp_1")) == []
        assert messages_of(create(input=empty, instructions="Greet.")) == []


def test_a_frame_may_come_as_bytes() -> None:
    assert parse_client_event(b'{"type":"response.create","input":"Hi"}') == ResponseCreate(input="Hi")


def test_cancel_names_a_response_or_a_lane() -> None:
    assert parse_client_event('{"type":"response.cancel","response_id":"r"}') == ResponseCancel("r")
    assert parse_client_event('{"type":"response.cancel","stream_id":"a"}') == ResponseCancel(None, "a")
    assert parse_client_event('{"type":"response.cancel"}') == ResponseCancel()


def test_steer_keeps_its_input_as_it_came() -> None:
    items = [{"role": "user", "content": [TEXT], "id": None}]
    body = {"type": "response.steer", "previous_response_id": "r", "input": items}
    assert parse_client_event(json.dumps(body)) == ResponseSteer("r", items)


# --- refused ---------------------------------------------------------------------------------------------------------

INVALID, PARAMETER, INPUT, LANE = (
    *("invalid_request_error", "unsupported_parameter", "unsupported_input", "invalid_stream_id"),
)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        # parameters that rota does not have, or nobody has
        ({"background": True}, PARAMETER, "background"),
        ({"background": 0}, PARAMETER, "background"),
        ({"stream": False}, PARAMETER, "stream"),
        ({"tools": [{"type": "function"}]}, PARAMETER, "tools"),
        ({"tools": {}}, PARAMETER, "tools"),
        ({"tool_choice": "required"}, PARAMETER, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, PARAMETER, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, PARAMETER, "text.format"),
        ({"text": {"format": {"type": "text", "x": 1}}}, PARAMETER, "text.format"),
        ({"text": {"verbosity": "low"}}, PARAMETER, "text.verbosity"),
        ({"reasoning": {"effort": "low"}}, PARAMETER, "reasoning"),
        ({"conversation": "c"}, PARAMETER, "conversation"),
        ({"prompt": {"id": "p"}}, PARAMETER, "prompt"),
        ({"max_tool_calls": 1}, PARAMETER, "max_tool_calls"),
        ({"moderation": {"model": "x"}}, PARAMETER, "moderation"),
        ({"context_management": [{"type": "compaction"}]}, PARAMETER, "context_management"),
        ({"include": [LOGPROBS, "reasoning.encrypted_content"]}, PARAMETER, "include[1]"),
        ({"stream_options": {"include_usage": True}}, PARAMETER, "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": 3}}, PARAMETER, "stream_options.include_obfuscation"),
        ({"prompt_cache_retention": "1h"}, PARAMETER, "prompt_cache_retention"),
        ({"prompt_cache_options": {"comparison_response_id": "r"}}, PARAMETER, None),
        ({"temprature": 1}, PARAMETER, "temprature"),
        ({"targets": {"ttft": 1}}, PARAMETER, "targets.ttft"),
        # values of the wrong type
        ({"model": 3}, INVALID, "model"),
        ({"max_output_tokens": 1.5}, INVALID, "max_output_tokens"),
        ({"max_output_tokens": "16"}, INVALID, "max_output_tokens"),
        ({"max_output_tokens": True}, INVALID, "max_output_tokens"),
        ({"temperature": "hot"}, INVALID, "temperature"),
        ({"store": 1}, INVALID, "store"),
        ({"generate": "no"}, INVALID, "generate"),
        ({"service_tier": "gold"}, INVALID, "service_tier"),
        ({"truncation": "middle"}, INVALID, "truncation"),
        ({"metadata": {"k": 1}}, INVALID, "metadata"),
        ({"metadata": []}, INVALID, "metadata"),
        ({"include": "x"}, INVALID, "include"),
        ({"stop": [1]}, INVALID, "stop[0]"),
        ({"targets": 3}, INVALID, "targets"),
        ({"targets": {"ttft_ms": "soon"}}, INVALID, "targets.ttft_ms"),
        ({"text": "plain"}, INVALID, "text"),
        ({"text": {"format": "text"}}, INVALID, "text.format"),
        ({"stream_options": []}, INVALID, "stream_options"),
        ({"prompt_cache_options": {"ttl": "1h"}}, INVALID, "prompt_cache_options.ttl"),
        # values out of bounds
        ({"max_output_tokens": 0}, INVALID, "max_output_tokens"),
        ({"max_output_tokens": 10**40}, INVALID, "max_output_tokens"),
        ({"temperature": -0.1}, INVALID, "temperature"),
        ({"temperature": 2.1}, INVALID, "temperature"),
        ({"temperature": 10**400}, INVALID, "temperature"),
        ({"top_p": 0}, INVALID, "top_p"),
        ({"top_p": 1.01}, INVALID, "top_p"),
        ({"top_logprobs": 21}, INVALID, "top_logprobs"),
        ({"top_logprobs": -1}, INVALID, "top_logprobs"),
        ({"top_k": -1}, INVALID, "top_k"),
        ({"min_p": 1.5}, INVALID, "min_p"),
        ({"seed": 2**63}, INVALID, "seed"),
        ({"deadline_ms": 0}, INVALID, "deadline_ms"),
        ({"deadline_ms": 1e300}, INVALID, "deadline_ms"),
        ({"targets": {"ttft_ms": 0}}, INVALID, "targets.ttft_ms"),
        ({"targets": {"itl_ms": -1}}, INVALID, "targets.itl_ms"),
        ({"safety_identifier": "s" * 129}, INVALID, "safety_identifier"),
        ({"metadata": {str(n): "" for n in range(17)}}, INVALID, "metadata"),
        ({"metadata": {"k" * 65: ""}}, INVALID, "metadata"),
        ({"metadata": {"k": "v" * 513}}, INVALID, "metadata.k"),
        ({"stop": ["x"] * 17}, INVALID, "stop"),
        ({"stop": ["a", ""]}, INVALID, "stop[1]"),
        ({"stop": ""}, INVALID, "stop[0]"),
        ({"stop": ["a" * 257]}, INVALID, "stop[0]"),
        # nothing to answer
        ({"input": None}, INVALID, "input"),
        ({"input": ""}, INVALID, "input"),
        ({"input": []}, INVALID, "input"),
        ({"input": "", "instructions": ""}, INVALID, "input"),
        # events
        ({"type": None}, INVALID, "type"),
        ({"type": 3}, INVALID, "type"),
        ({"type": "response.begin"}, INVALID, "type"),
        ({"type": "session.update"}, INVALID, "type"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], code: str, param: str | None) -> None:
    event = rejected(**fields)
    assert (event.error.code, event.stream_id) == (code, "a")
    assert event.error.param == (param or "prompt_cache_options.comparison_response_id")


@pytest.mark.parametrize("lane", ["", "a" * 257, "ä", "a b", "a\n", 3, True, [], {}])
def test_an_invalid_lane_is_named_and_the_error_goes_to_the_default_lane(lane: object) -> None:
    event = rejected(stream_id=lane)
    assert (event.error.code, event.error.param, event.stream_id) == (LANE, "stream_id", None)
    assert len(event.error.message) < 400


def test_a_lane_may_have_256_characters() -> None:
    assert create(stream_id="a" * 256).stream_id == "a" * 256
    assert create(stream_id=None).stream_id is None


def test_sentences_carry_the_numbers() -> None:
    assert rejected(temperature=3).error.message == "temperature is 3.0; it must be from 0 to 2."
    assert rejected(targets={"itl_ms": 0}).error.message == (
        "targets.itl_ms is 0.0; it must be more than 0 and at most 2,147,483,647."
    )
    assert rejected(top_p=0).error.message == "top_p is 0.0; it must be more than 0 and at most 1."
    assert rejected(seed="x").error.message == "seed must be an integer, not a string."
    assert rejected(seed=1.5).error.message == "seed must be an integer, not one with a fraction or an exponent."
    assert rejected(metadata={"k": 1}).error.message == "each value of metadata must be a string, not an integer."
    assert rejected(truncation="x").error.message == "truncation must be one of auto, disabled."
    assert rejected(stop=["x"] * 17).error.message == "stop has 17 texts; it may have 16."
    assert "…" in rejected(max_output_tokens=10**300).error.message
    assert rejected(metadata={str(n): "" for n in range(17)}).error.message == "metadata has 17 pairs; it may have 16."


def test_an_unsupported_value_is_said() -> None:
    def said(**fields: Any) -> str:
        return rejected(**fields).error.message

    assert said(stream=False) == "rota does not support 'stream' with the value false. Leave it out."
    assert (
        said(tool_choice="required") == "rota does not support 'tool_choice' with the value 'required'. Leave it out."
    )
    assert said(tools=[{}]) == "rota does not support 'tools'. Leave it out."
    assert "the value 'low'" in said(text={"verbosity": "low"})
    assert len(said(conversation="c" * 10_000)) < 200


def test_a_misspelt_field_is_told_the_one_that_was_meant() -> None:
    assert rejected(modle="m").error.message == "rota has no parameter 'modle'. Did you mean 'model'?"
    assert rejected(temprature=1).error.message.endswith("Did you mean 'temperature'?")
    assert rejected(targets={"ttft": 1}).error.message.endswith("Did you mean 'targets.ttft_ms'?")
    assert rejected(colour="red").error.message.endswith("Check its spelling, or leave it out.")


def test_a_long_name_is_not_repeated_in_full() -> None:
    error = rejected(**{"x" * 5000: 1}).error
    assert len(error.message) < 300
    assert error.param is not None
    assert len(error.param) < 100


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"type": "response.cancel", "response_id": 3}, "response_id"),
        ({"type": "response.cancel", "reason": "tired"}, "reason"),
        ({"type": "response.steer", "input": "x"}, "previous_response_id"),
        ({"type": "response.steer", "previous_response_id": "r"}, "input"),
        ({"type": "response.steer", "previous_response_id": "r", "input": 3}, "input"),
        ({"type": "response.steer", "previous_response_id": 3, "input": "x"}, "previous_response_id"),
        ({"type": "response.steer", "previous_response_id": "r", "input": "x", "stream_id": "a"}, "stream_id"),
    ],
)
def test_the_other_events_are_checked_too(body: dict[str, Any], param: str) -> None:
    event = parse_client_event(json.dumps(body))
    assert isinstance(event, Rejected)
    assert event.error.param == param


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ("x" * 65_534, True),
        ("x" * 65_535, False),
        ("\0" * 20_000, False),
        ([1] * 4_095, True),
        ([1] * 4_096, False),
        ([[{}] * 2_047, {str(n): 0 for n in range(2_047)}][:2], False),
    ],
)
def test_a_steer_too_large_to_be_sent_back_is_refused(given: Any, fits: bool) -> None:
    event = parse_client_event(json.dumps({"type": "response.steer", "previous_response_id": "r", "input": given}))
    if fits:
        assert isinstance(event, ResponseSteer)
        assert len(steer_failed(event)) < 70_000
    else:
        assert isinstance(event, Rejected)
        assert event.error.param == "input"


def test_a_steer_too_deep_to_be_sent_back_is_refused() -> None:
    def steer(depth: int) -> str:
        nested = "[" * depth + "]" * depth
        return f'{{"type":"response.steer","previous_response_id":"r","input":{nested}}}'

    shallow = parse_client_event(steer(30))
    assert isinstance(shallow, ResponseSteer)
    assert steer_failed(shallow)
    deep = parse_client_event(steer(600))
    assert isinstance(deep, Rejected)
    assert deep.error.param == "input"


# --- whatever comes --------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from((*ResponseCreate.__struct_fields__, "tools", "text", "stream_options", "reasoning", "role"))
ITEMS = st.lists(
    st.dictionaries(st.sampled_from(("type", "role", "content", "id", "text")), JSON | st.just("user"), max_size=4)
)


def check(frame: bytes | str) -> None:
    match parse_client_event(frame):
        case Rejected(error, stream_id):
            validate_event(error_event(error, stream_id))
            assert stream_id is None or re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", stream_id)
        case ResponseCreate() as event:
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=ResponseCreate) == event
            assert parse_client_event(msgspec.json.encode(event)) == event
            messages_of(event)
        case ResponseSteer() as event:
            json.loads(steer_failed(event))
        case ResponseCancel():
            pass


@given(JSON)
def test_no_json_value_raises(value: object) -> None:
    check(json.dumps(value))


@given(st.binary() | st.text(st.characters()))
def test_no_bytes_and_no_text_raise(frame: bytes | str) -> None:
    check(frame)


@given(
    st.sampled_from(("response.create", "response.cancel", "response.steer")),
    st.dictionaries(NAMES, JSON | ITEMS, max_size=5),
)
def test_no_values_of_known_fields_raise(kind: str, fields: dict[str, object]) -> None:
    check(json.dumps({"input": "Hi", **fields, "type": kind}))


@given(st.lists(st.sampled_from(["user", "assistant", "system", "developer"])), st.text())
def test_messages_come_out_as_they_went_in(roles: list[str], text: str) -> None:
    items = [{"role": role, "content": text} for role in roles]
    messages = messages_of(create(input=items, instructions="x"))
    assert messages == [Message(role, text) for role in roles]  # type: ignore[arg-type]


# --- response.resume -------------------------------------------------------------------------------------------------


def test_a_resume_names_a_response_and_the_last_event_that_was_told() -> None:
    frame = b'{"type": "response.resume", "response_id": "resp_1", "starting_after": 7, "stream_id": "a"}'
    assert parse_client_event(frame) == ResponseResume("resp_1", 7, "a")
    assert parse_client_event(b'{"type": "response.resume", "response_id": "resp_1"}') == ResponseResume("resp_1")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "response_id"),
        ({"response_id": 7}, "response_id"),
        ({"response_id": "resp_1", "starting_after": -1}, "starting_after"),
        ({"response_id": "resp_1", "starting_after": 1.5}, "starting_after"),
        ({"response_id": "resp_1", "starting_after": "7"}, "starting_after"),
        ({"response_id": "resp_1", "start": 7}, "start"),
    ],
)
def test_a_resume_that_is_none_is_refused_and_the_field_named(fields: dict[str, object], param: str) -> None:
    event = parse_client_event(json.dumps({"type": "response.resume", "stream_id": "a", **fields}))
    assert isinstance(event, Rejected)
    assert event.error.param == param
    assert event.stream_id == "a"


def test_a_response_is_resumable_only_if_it_is_asked_for_so() -> None:
    for asked in (True, False, None):
        event = parse_client_event(json.dumps({"type": "response.create", "input": "Hi", "resumable": asked}))
        assert isinstance(event, ResponseCreate)
        assert event.resumable is asked
