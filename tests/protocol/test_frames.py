"""Frames that are not JSON objects: the right sentence, on the right lane."""

import pytest

from protocol.errors import Refusal
from protocol.frames import MOST_FIELDS, MOST_VALUES, read_frame


def refusal(frame: bytes | str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read_frame(frame)
    return caught.value


def test_an_object_comes_with_the_lane_it_names() -> None:
    assert read_frame('{"a":1,"stream_id":"x"}') == ({"a": 1, "stream_id": "x"}, "x")
    assert read_frame(b'{"stream_id":" "}') == ({"stream_id": " "}, None)


@pytest.mark.parametrize(
    ("frame", "detail", "lane"),
    [
        ('{"stream_id":"a","x":NaN}', "NaN is not a JSON number", "a"),
        ('{"stream_id":"a","x":-Infinity}', "-Infinity is not a JSON number", "a"),
        ('{"stream_id":"a","x":"\\ud83d"}', "half of a surrogate pair", "a"),
        ('{"stream_id":"a","x":"\\udc00 and more"}', "half of a surrogate pair", "a"),
        ('{"stream_id":"a","x":"\ud83d"}', "half of a surrogate pair", "a"),
        ('{"stream_id":"a","\\ud83d":1}', "half of a surrogate pair", "a"),
        ('{"stream_id":"\\ud83d"}', "half of a surrogate pair", None),
        ('{"stream_id":"a","x":1e999}', "a number is too large", "a"),
        ('{"stream_id":"a","x":' + "1" * 5000 + "}", "a number is too large", "a"),
        ("", "it is empty", None),
        (b" \n", "it is empty", None),
        ("{", "expecting property name", None),
        ('{"stream_id":"a"} x', "extra data (character 18)", None),
        ('{"x":"\x00"}', "invalid control character", None),
        (b"\xff\xfe", "byte 0 is not UTF-8", None),
        (b'{"x":"\xed\xa0\xbd"}', "byte 6 is not UTF-8", None),
        (b"\xef\xbb\xbf{}", "unexpected UTF-8 BOM", None),
        ("[" * 100_000, "nested too deeply", None),
        ('{"x":' * 100_000, "nested too deeply", None),
    ],
)
def test_what_is_not_json_is_explained(frame: bytes | str, detail: str, lane: str | None) -> None:
    found = refusal(frame)
    assert found.error.code == "invalid_json"
    assert detail in found.error.message
    assert found.stream_id == lane


@pytest.mark.parametrize(
    ("frame", "kind"),
    [("[]", "a list"), ("null", "null"), ("3", "a number"), ("true", "true or false"), ('"x"', "a string")],
)
def test_what_is_json_but_no_object_is_named(frame: str, kind: str) -> None:
    error = refusal(frame).error
    assert error.code == "invalid_request_error"
    assert f"must hold one JSON object, {{...}}; this one holds {kind}." in error.message


@pytest.mark.parametrize("value", ["1", "[]", "{}", '""', '"a,b"', "[[1]]", '{"a":1}', "NaN"])
def test_more_values_than_a_frame_may_hold_are_refused_before_they_are_read(value: str) -> None:
    found = refusal('{"stream_id":"a","x":[' + ",".join([value] * (MOST_VALUES + 1)) + "]}")
    assert found.error.code == "invalid_request_error"
    assert f"more than {MOST_VALUES:,} values" in found.error.message
    assert found.stream_id == "a"
    assert refusal('{"x":[' + f"{value}," * MOST_VALUES).stream_id is None


@pytest.mark.parametrize("text", [",", "[", "{", '\\"', "\\\\,", "\\n[", '{\\"a\\":1},'])
def test_what_is_inside_a_text_is_no_value(text: str) -> None:
    body, lane = read_frame('{"stream_id":"a","x":"' + text * (MOST_VALUES + 1) + '"}')
    assert isinstance(body["x"], str)
    assert lane == "a"


def test_a_text_that_is_not_closed_is_walked_once() -> None:
    assert refusal('{"x":"' + '\\",' * 500_000).error.code == "invalid_json"
    assert refusal('{"x":"' + "," * 500_000 + "\\").error.code == "invalid_json"


def test_a_frame_has_only_so_many_fields() -> None:
    fields = ",".join(f'"{n}":null' for n in range(MOST_FIELDS))
    assert len(read_frame(f"{{{fields}}}")[0]) == MOST_FIELDS
    found = refusal(f'{{"stream_id":"a",{fields}}}')
    assert f"{MOST_FIELDS + 1} fields; it may have {MOST_FIELDS}." in found.error.message
    assert found.stream_id == "a"
