"""What the official client would say of an event: its own types, applied strictly.

Knows the `openai` package. Knows nothing of rota but the names of the extensions it may add.
"""

import json
from typing import Any, cast, get_args

import pydantic
from openai._models import BaseModel, construct_type_unchecked
from openai.types.responses import ResponsesServerEvent

_EXTENSIONS = {"rota", "retry_after_ms"}
_ALWAYS_IN_A_RESPONSE = {
    *("id", "object", "created_at", "status", "model", "output", "parallel_tool_calls", "tool_choice", "tools"),
}
_NULL_BY_DESIGN = {"error.param", "response.incomplete_details.reason"}


def _types() -> dict[str, type[BaseModel]]:
    union, *_ = get_args(ResponsesServerEvent)
    found: dict[str, type[BaseModel]] = {}
    for event in get_args(union):
        for name in get_args(event.model_fields["type"].annotation):
            found[name] = event
    return found


OFFICIAL_TYPES = _types()


def parse_event(frame: bytes | str) -> Any:
    """The event as the official client hands it on. It does not validate: it constructs, picking types as it goes."""
    return construct_type_unchecked(value=json.loads(frame), type_=cast(Any, ResponsesServerEvent))


def validate_event(frame: bytes | str) -> None:
    """Raises when `frame` is not, to the letter, an event that the official client knows."""
    body = json.loads(frame)
    event_type = OFFICIAL_TYPES[body["type"]]
    event = event_type.model_validate_json(frame, strict=True)
    _refuse_extras(event, "")
    steered = body.get("steer")
    _refuse_nulls({**body, "steer": None} if steered else body, "")
    if "response" in body:
        missing = _ALWAYS_IN_A_RESPONSE - body["response"].keys()
        assert not missing, f"{body['type']}: the response lacks {missing}"
    assert type(parse_event(frame)) is event_type


def _refuse_extras(value: object, path: str) -> None:
    if isinstance(value, pydantic.BaseModel):
        extra = set(value.model_extra or {}) - _EXTENSIONS
        assert not extra, f"{path or 'the event'} has fields that OpenAI does not know: {extra}"
        for name in type(value).model_fields:
            _refuse_extras(getattr(value, name), f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            _refuse_extras(inner, f"{path}[]")


def _refuse_nulls(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            inside = f"{path}.{name}".lstrip(".")
            if inside != "steer":
                assert inner is not None or inside in _NULL_BY_DESIGN, f"{inside} is null"
            _refuse_nulls(inner, inside)
    elif isinstance(value, list):
        for inner in value:
            _refuse_nulls(inner, f"{path}[]")
