"""The `input` of a request: what it may hold, and the messages that come of it.

Knows OpenAI's shapes of a message, among them a response's own output sent back as it came, and refuses everything
else by its exact path. Knows nothing of the other fields of a request, of conversations kept, or of chat templates.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from msgspec import Struct, field

from protocol.errors import Refusal, invalid_request, shown, unsupported_input
from protocol.frames import kind_of, without_nulls

MOST_ITEMS = 4_096
"""Messages and parts of messages in one request: each takes time before anything is known of it but its shape."""

Role = Literal["user", "assistant", "system", "developer"]

_ROLES = frozenset(get_args(Role))
_ITEM_FIELDS = frozenset({"type", "role", "content"})
_PART_FIELDS = frozenset({"type", "text"})
# What the server itself once said about an item: it says nothing about the answer to come.
_IGNORED_ITEM_FIELDS = frozenset({"id", "status", "phase"})
_IGNORED_PART_FIELDS = frozenset({"annotations", "logprobs"})


class Message(Struct, frozen=True):
    """One turn of a conversation, its parts joined. On the wire the text is called `content`."""

    role: Role
    text: str = field(name="content")


def read_input(value: object) -> str | tuple[Message, ...]:
    """What a request's `input` says. Raises `Refusal` with the path of the first thing it may not hold."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        _check_number(value)
        return tuple(_read_item(item, f"input[{index}]") for index, item in enumerate(value))
    raise _refusal(f"{kind_of(value)} is neither a string nor a list of messages", "input")


def _check_number(items: list[object]) -> None:
    number = len(items)
    if number <= MOST_ITEMS:
        contents = (item.get("content") for item in items if isinstance(item, dict))
        number += sum(len(content) for content in contents if isinstance(content, list))
    if number > MOST_ITEMS:
        what = f"input holds {number:,} messages and parts; it may hold {MOST_ITEMS:,}. Join some of them"
        raise Refusal(invalid_request(f"{what}, or send them in several requests with previous_response_id.", "input"))


def _read_item(item: object, path: str) -> Message:
    if not isinstance(item, dict):
        raise _refusal(f"{kind_of(item)} is not a message", path)
    fields = without_nulls(item)
    kind = fields.get("type", "message")
    if kind != "message":
        raise _refusal(f"an item of type {_named(kind)} is not supported", f"{path}.type")
    _refuse_others(fields, _ITEM_FIELDS | _IGNORED_ITEM_FIELDS, path)
    if "role" not in fields:
        raise _refusal("the role is missing", f"{path}.role")
    role = fields["role"]
    if not isinstance(role, str) or role not in _ROLES:
        raise _refusal(f"the role {_named(role)} is not supported", f"{path}.role")
    # The cast that mypy would like: membership in _ROLES is membership in Role.
    return Message(role, "".join(_texts(fields, path)))  # type: ignore[arg-type]


def _texts(fields: Mapping[str, object], path: str) -> Iterator[str]:
    path = f"{path}.content"
    if "content" not in fields:
        raise _refusal("the content is missing", path)
    content = fields["content"]
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for index, part in enumerate(content):
            yield _read_part(part, f"{path}[{index}]")
    else:
        raise _refusal(f"{kind_of(content)} is neither a string nor a list of parts", path)


def _read_part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise _refusal(f"{kind_of(part)} is not a part of a message", path)
    fields = without_nulls(part)
    kind = fields.get("type")
    if kind is None:
        raise _refusal("the type of this part is missing", f"{path}.type")
    if kind not in ("input_text", "output_text"):
        raise _refusal(f"a part of type {_named(kind)} is not supported", f"{path}.type")
    _refuse_others(fields, _PART_FIELDS | _IGNORED_PART_FIELDS, path)
    text = fields.get("text")
    if not isinstance(text, str):
        raise _refusal("the text is missing" if text is None else f"{kind_of(text)} is not a text", f"{path}.text")
    return text


def _refuse_others(fields: Mapping[str, object], known: frozenset[str], path: str) -> None:
    for name in fields:
        if name not in known:
            raise _refusal("this field is not supported", f"{path}.{shown(name)}")


def _named(value: object) -> str:
    return f"'{shown(value)}'" if isinstance(value, str) else kind_of(value)


def _refusal(what: str, path: str) -> Refusal:
    return Refusal(unsupported_input(what, path))
