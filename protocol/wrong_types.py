"""From JSON's objects to an event, or to a sentence about the field that has a value of the wrong type.

Knows msgspec's sentences, and JSON's words for what they speak of. Knows no field by name but `metadata`.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from protocol.errors import Refusal, invalid_request

_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
    "null": "null",
}
_EXPECTED = re.compile(r"Expected `(.*)`, got `(.*)`")

_Event = TypeVar("_Event", bound=Struct)


def converted(fields: dict[str, object], event: type[_Event], choices: Mapping[str, tuple[str, ...]]) -> _Event:
    """`choices`: what a field may be, where that is one of a few words. Raises `Refusal`, naming the field."""
    try:
        return msgspec.convert(fields, event)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        # The path of a value inside `metadata` ends in "[...]", which says nothing to a reader.
        param = path.rstrip("`").removeprefix("$.").removesuffix("[...]")
        raise Refusal(invalid_request(_reworded(text, param, choices), param)) from None


def _reworded(text: str, param: str, choices: Mapping[str, tuple[str, ...]]) -> str:
    """What msgspec found wrong, in the words of JSON."""
    if param in choices and text.startswith("Invalid enum value"):
        return f"{param} must be one of {', '.join(choices[param])}."
    if match := _EXPECTED.fullmatch(text):
        wanted = " or ".join(_WORDS.get(kind, kind) for kind in match[1].split(" | ") if kind != "null")
        not_whole = match[1].startswith("int") and match[2] == "float"
        got = "one with a fraction or an exponent" if not_whole else _WORDS.get(match[2], match[2])
        within = "each value of metadata" if param == "metadata" and wanted == "a string" else param
        return f"{within} must be {wanted}, not {got}."
    return f"{param} is not valid: {text[:1].lower()}{text[1:]}."
