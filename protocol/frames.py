"""From a text frame to a JSON object, or to a sentence about what is wrong with it.

Knows JSON, what Python clients send that only looks like JSON, and where a frame names its lane. Knows nothing of the
events themselves. Reading is msgspec's; the standard library's slower and laxer reader is asked only about a frame
that msgspec refused: what was wrong, and which lane waits for an answer. Reading holds the event loop, so what a frame
could make slow is bounded here.
"""

import json
import re
from collections.abc import Mapping

import msgspec

from protocol.errors import Refusal, invalid_json, invalid_request

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LANE = re.compile(rb'"stream_id"\s*:\s*"([A-Za-z0-9_.-]{1,256})"')
_HALF_PAIR = re.compile(
    r"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F])"
)
"""Half of a surrogate pair that is written as an escape."""
_decode = msgspec.json.Decoder().decode

_MOST_DIAGNOSED = 2**18
"""The size of a frame, in bytes or characters, for whose fault words are looked for: the laxer reader is slow."""
MOST_FIELDS = 256
"""Of one frame: far more than there are."""
MOST_VALUES = 100_000
"""Of one frame. 1,024 tokens sent back with 20 alternatives each have some 70,000."""


def read_frame(frame: bytes | str) -> tuple[dict[str, object], str | None]:
    """The JSON object in `frame`, and the lane it names if that is a valid name.

    Raises `Refusal`, with the lane where it can be made out, for whatever is not a JSON object.
    """
    _check_number(frame if isinstance(frame, bytes) else frame.encode(errors="surrogatepass"))
    try:
        body = _decode(frame)
    except RecursionError:
        raise Refusal(invalid_json("it is nested too deeply")) from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise _diagnosis(frame) from None
    if not isinstance(body, dict):
        what = f"Each text frame must hold one JSON object, {{...}}; this one holds {kind_of(body)}."
        raise Refusal(invalid_request(f"{what} Send an object with the type of an event, such as 'response.create'."))
    if len(body) > MOST_FIELDS:
        what = f"The frame has {len(body):,} fields; it may have {MOST_FIELDS}. Leave out what rota does not know."
        raise Refusal(invalid_request(what), lane_of(body))
    return body, lane_of(body)


def _check_number(frame: bytes) -> None:
    """Before any of them is made: a million values would take a fifth of a second."""
    if _structure(frame) <= MOST_VALUES:  # with what is inside texts
        return
    # What is escaped ends no text.
    bare = frame.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * MOST_VALUES or _structure(b"".join(bare.split(b'"')[::2])) > MOST_VALUES:
        what = f"The frame holds more than {MOST_VALUES:,} values. Send less at a time."
        raise Refusal(invalid_request(what), _lane_in(frame))


def _structure(frame: bytes) -> int:
    """One for every value but the first, or more."""
    return sum(map(frame.count, (b",", b"[", b"{")))


def _lane_in(frame: bytes | str) -> str | None:
    """The lane that a frame which is not read to its end seems to name."""
    found = _LANE.search(frame if isinstance(frame, bytes) else frame.encode(errors="surrogatepass"))
    return None if found is None else found[1].decode()


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


def more_than(most: int, value: object, depth: int) -> bool:
    """Whether a JSON value is made of more than `most` values, or nested more than `depth` levels deep."""
    layer, found = [value], 1
    for _ in range(depth + 1):
        inner: list[object] = []
        for outer in layer:
            if isinstance(outer, list | dict):
                found += len(outer)
                if found > most:
                    return True
                inner.extend(outer.values() if isinstance(outer, dict) else outer)
        if not inner:
            return False
        layer = inner
    return any(isinstance(each, list | dict) for each in layer)


def _diagnosis(frame: bytes | str) -> Refusal:
    """Why msgspec refused `frame`. Its own words are about bytes, and wrong for a lone surrogate."""
    if len(frame) > _MOST_DIAGNOSED:
        what = "it is malformed, or holds NaN, Infinity, half of a surrogate pair or a number that is too large"
        return Refusal(invalid_json(f"{what} (in {len(frame):,} bytes it is not looked for which)"), _lane_in(frame))
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
    elif _SURROGATE.search(text) or _HALF_PAIR.search(text):
        detail = "a text holds half of a surrogate pair, which is no character (in Python, '\\ud83d' and its like)"
    else:
        detail = "a number is too large"
    return Refusal(invalid_json(detail), lane_of(body))
