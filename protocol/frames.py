"""From a text frame to a JSON object, or to a sentence about what is wrong with it.

Knows JSON, what Python clients send that only looks like JSON, and where a frame names its lane. Knows nothing of the
events themselves. Reading is msgspec's; the standard library's slower and laxer reader is asked only about a frame
that msgspec refused: what was wrong, and which lane waits for an answer.
"""

import json
import re
from collections.abc import Mapping

import msgspec

from protocol.errors import Refusal, invalid_json, invalid_request

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_decode = msgspec.json.Decoder().decode


def read_frame(frame: bytes | str) -> tuple[dict[str, object], str | None]:
    """The JSON object in `frame`, and the lane it names if that is a valid name.

    Raises `Refusal`, with the lane where it can be made out, for whatever is not a JSON object.
    """
    try:
        body = _decode(frame)
    except RecursionError:
        raise Refusal(invalid_json("it is nested too deeply")) from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise _diagnosis(frame) from None
    if not isinstance(body, dict):
        raise Refusal(invalid_request(f"The frame is {kind_of(body)}, not an object. Send one JSON object in each."))
    return body, lane_of(body)


def lane_of(body: object) -> str | None:
    """The valid `stream_id` of a JSON object, if it has one."""
    lane = body.get("stream_id") if isinstance(body, dict) else None
    return lane if isinstance(lane, str) and _STREAM_ID.fullmatch(lane) else None


def without_nulls(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields that are there: on this wire `null` means absent."""
    return {name: value for name, value in fields.items() if value is not None}


def kind_of(value: object) -> str:
    """What a JSON value is, in words that fit into a sentence."""
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "null"


def _diagnosis(frame: bytes | str) -> Refusal:
    """Why msgspec refused `frame`. Its own words are about bytes, and wrong for a lone surrogate."""
    constants: list[str] = []
    try:
        text = frame if isinstance(frame, str) else frame.decode()
        if not text.strip():
            return Refusal(invalid_json("it is empty"))
        # Integers as floats: the standard library converts none of more than 4,300 digits to an integer.
        body = json.loads(text, parse_constant=constants.append, parse_int=float)
    except UnicodeDecodeError as error:
        return Refusal(invalid_json(f"byte {error.start:,} is not UTF-8"))
    except json.JSONDecodeError as error:
        return Refusal(invalid_json(f"{error.msg[:1].lower()}{error.msg[1:]} (character {error.pos:,})"))
    except RecursionError:
        return Refusal(invalid_json("it is nested too deeply"))
    if constants:
        detail = f"{constants[0]} is not a JSON number"
    elif _SURROGATE.search(text) or _has_surrogate(body):
        detail = "a text holds half of a surrogate pair, which is no character (in Python, '\\ud83d' and its like)"
    else:
        detail = "a number is too large"
    return Refusal(invalid_json(detail), lane_of(body))


def _has_surrogate(body: object) -> bool:
    try:
        return _SURROGATE.search(json.dumps(body, ensure_ascii=False)) is not None
    except RecursionError:
        return False
