"""Every error has a status, a family and a sentence with the numbers in it."""

import inspect
from typing import get_args

import msgspec
import pytest

from protocol import errors
from protocol.errors import ErrorCode, WireError

EVERY = [
    errors.authentication_failed(),
    errors.context_length_exceeded(9120, 256, 8192),
    errors.deadline_exceeded(1200, 1200),
    errors.deadline_unreachable(12_000, 5_000),
    errors.internal_error(),
    errors.invalid_json("it is empty"),
    errors.invalid_request("temperature is 3; it must be from 0 to 2.", "temperature"),
    errors.invalid_stream_id("a b"),
    errors.model_not_found("nope", ["m"]),
    errors.origin_not_allowed("http://elsewhere"),
    errors.previous_response_not_found("resp_1"),
    errors.rate_limit_exceeded("The queue is full", 1500),
    errors.response_not_found("resp_1"),
    errors.response_resumed_elsewhere("resp_1"),
    errors.server_overloaded("All 64 places in the queue are taken", 1500),
    errors.shutting_down(),
    errors.stopped_in_the_middle(),
    errors.unsupported_input("a number is not a message", "input[0]"),
    errors.unsupported_parameter("tools"),
    errors.unknown_parameter("tool"),
    errors.websocket_connection_expired(3600),
    errors.websocket_connection_limit_reached("100 connections are open", 1000),
    errors.websocket_stream_limit_reached(32),
    errors.worker_failed(1234),
]


def test_every_code_has_a_sentence_and_every_sentence_a_test() -> None:
    assert {error.code for error in EVERY} == set(get_args(ErrorCode))
    makers = [
        each
        for _, each in inspect.getmembers(errors, inspect.isfunction)
        if inspect.signature(each).return_annotation is WireError
    ]
    assert len(makers) == len(EVERY)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.code)
def test_every_error_can_be_told(error: WireError) -> None:
    assert 400 <= error.status < 600
    assert error.type.endswith("_error")
    assert error.message.endswith(".")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(error), type=WireError) == error


def test_errors_that_pass_say_when_to_try_again() -> None:
    for error in (errors.rate_limit_exceeded("Full", 1500), errors.server_overloaded("Full", 1500)):
        assert error.retry_after_ms == 1500
        assert error.message == "Full. Try again in 1.5 s."
    assert errors.server_overloaded("Full", 40.2).message == "Full. Try again in 41 ms."


def test_what_floats_add_to_a_time_is_not_said() -> None:
    for started in (0.0, 103.1, 5e4, 1.7e9):
        for ms in range(1, 100):
            assert errors.duration((started + ms / 1e3 - started) * 1e3) == f"{ms} ms"
    assert [errors.duration(ms) for ms in (0.0, 0.2, 4.01, 99.0, 150.0)] == ["0 ms", "1 ms", "5 ms", "99 ms", "0.1 s"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.5, "0.5 seconds"),
        (1.0, "1 second"),
        (59.0, "59 seconds"),
        (60.0, "1 minute"),
        (90.0, "90 seconds"),
        (3600.0, "60 minutes"),
    ],
)
def test_a_long_time_is_said_in_minutes_only_where_they_are_whole(seconds: float, said: str) -> None:
    assert errors.long_time(seconds) == said


def test_a_context_too_small_is_said_with_its_numbers() -> None:
    assert errors.context_length_exceeded(9120, 256, 8192).message == (
        "The prompt is 9,120 tokens and max_output_tokens is 256; a prompt and its answer may have 8,192 together. "
        "Shorten the input or lower max_output_tokens."
    )
    assert errors.context_length_exceeded(9120, None, 8192).message == (
        "The prompt is 9,120 tokens; a prompt and its answer may have 8,192 together. Shorten the input."
    )
    assert errors.context_length_exceeded(9120, None, 8192, at_least=True).message == (
        "The prompt is at least 9,120 tokens; a prompt and its answer may have 8,192 together. Shorten the input."
    )
    assert errors.context_length_exceeded(1, 256, 256, at_least=True).message.startswith(
        "The prompt is at least 1 token and max_output_tokens is 256; "
    )
    assert errors.context_length_exceeded(9120, 256, 8192).param == "input"
    assert errors.context_length_exceeded(8000, 256, 8192).param == "max_output_tokens"


def test_what_rota_lacks_altogether_is_not_said_to_lack_a_value() -> None:
    assert errors.unsupported_parameter("tools").message == "rota does not support 'tools'. Leave it out."
    assert errors.unsupported_parameter("stream", given="the value false").message == (
        "rota does not support 'stream' with the value false. Leave it out."
    )
    assert errors.unsupported_parameter("text.format", "Leave it out, or send {'type': 'text'}.").message == (
        "rota does not support 'text.format' with the value given. Leave it out, or send {'type': 'text'}."
    )


def test_a_misspelt_name_is_told_the_one_that_was_meant() -> None:
    assert errors.unknown_parameter("modle", ["input", "model"]).message == (
        "rota has no parameter 'modle'. Did you mean 'model'?"
    )
    assert errors.unknown_parameter("x", ["input", "model"]).message == (
        "rota has no parameter 'x'. Check its spelling, or leave it out."
    )


@pytest.mark.parametrize(
    ("input_tokens", "max_output_tokens", "param"),
    [(8191, 2, "max_output_tokens"), (8192, 1, "input"), (9120, 256, "input"), (8192, None, "input")],
)
def test_a_context_too_small_is_blamed_on_what_would_have_to_change(
    input_tokens: int, max_output_tokens: int | None, param: str
) -> None:
    assert errors.context_length_exceeded(input_tokens, max_output_tokens, 8192).param == param


def test_a_server_that_stops_says_whether_the_request_was_begun() -> None:
    begun, not_begun = errors.stopped_in_the_middle(), errors.shutting_down()
    assert begun.code == not_begun.code == "shutting_down"
    assert begun.message == "The server stopped before this answer was finished. Send the request again."
    assert "takes no new requests" in not_begun.message


def test_a_missing_model_is_told_what_is_served() -> None:
    assert errors.model_not_found(None, ["m", "n"]).message == "No model is named; this server serves 'm' or 'n'."
    assert errors.model_not_found("x", "m").message == "The model 'x' is not served here; this server serves 'm'."


def test_the_client_s_deadline_and_the_server_s_patience_are_told_apart() -> None:
    assert errors.deadline_exceeded(900, 900).param == "deadline_ms"
    assert errors.deadline_exceeded(30_000, None).param is None
    assert "30.0 s" in errors.deadline_exceeded(30_000, None).message
    # Whatever kept it: too much to do, or a worker that was away.
    assert errors.deadline_exceeded(900, 900).message.endswith("Raise deadline_ms, or send it again later.")
    assert errors.deadline_exceeded(30_000, None).message.endswith("Send it again later.")


def test_a_deadline_that_cannot_be_kept_is_said_with_what_is_expected() -> None:
    error = errors.deadline_unreachable(12_040, 5_000)
    assert error.message == (
        "The first token would come after about 12.0 s, and the deadline is 5.0 s. "
        "Raise deadline_ms, or send it again later."
    )
    assert (error.code, error.param, error.status) == ("deadline_exceeded", "deadline_ms", 504)
    alone = errors.deadline_unreachable(12_040, 5_000, alone=True)
    assert alone.message.endswith("and the deadline is 5.0 s. Shorten the input, or raise deadline_ms.")


def test_a_client_s_own_text_is_repeated_only_in_part() -> None:
    long = "x" * 10_000
    for error in (
        errors.model_not_found(long, "m"),
        errors.previous_response_not_found(long),
        errors.origin_not_allowed(long),
        errors.invalid_stream_id(long),
    ):
        assert len(error.message) < 400
