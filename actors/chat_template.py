"""A model's chat template: messages in, the text of a prompt out.

Knows Jinja, as `transformers` sets it up for templates, and which arrangements of roles a template takes: that is
found out by trying. Knows nothing of tokens. (`transformers` itself would do this, but importing its tokenisers
imports torch, which has no place in this process.)
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import get_args

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from protocol.input_items import Message, Role

PLAIN = "{{ messages | map(attribute='content') | join('\n\n') }}"
"""For models that come without a chat template: the texts, with blank lines between them."""


class PromptRefused(Exception):
    """These messages make no prompt for this model. Its text is a sentence for the client."""


class Skeleton(Struct, frozen=True):
    """What a template writes by itself: `text`, in which stand-ins show where it puts each of `texts`."""

    text: str
    texts: list[str]

    def filled(self, start: int, end: int) -> str:
        """A part of it, whatever stands in for a text replaced by that text."""
        return _STAND_IN.sub(lambda found: self.texts[int(found[1])], self.text[start:end])


_STAND_IN = re.compile("\U000f0000([0-9]{1,9})\U000f0001")
"""Of characters that no vocabulary has, so that nothing of a template's comes to mean something else beside it."""


class ChatTemplate:
    """`render` gives the prompt up to where the assistant's answer begins.

    Developer messages are system messages to every template. Where a template takes a system message only in front,
    all of them are joined there; where it takes none at all, they go in front of the first user message. Where it
    insists that roles alternate, neighbours of the same role are joined. Joined texts are a blank line apart.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """`special_tokens` are the names that templates use: `bos_token` and so on. Raises `jinja2.TemplateError`."""
        self._template = _environment().from_string(source)
        self._special_tokens = dict(special_tokens or {})
        system, user, answer = (
            Message("system", "A system text."),
            Message("user", "Hello."),
            Message("assistant", "Hi."),
        )
        self._takes_system = self._shows(system, [system, user])
        self._takes_late_system = self._shows(system, [user, answer, system, user])
        self._takes_neighbours = self._shows(user, [user, user])
        self._strips = frozenset(role for role in get_args(Role) if self._strips_text_of(role))

    def render(self, messages: Sequence[Message]) -> str:
        """Raises `PromptRefused`."""
        return self._rendered(self._arranged(messages))

    def skeleton(self, messages: Sequence[Message]) -> Skeleton:
        """What `render` writes around the texts of these messages. Raises `PromptRefused`.

        An empty text is left as it is: templates ask for that. Filled, it is what `render` gives, unless the template
        does more with a text than to strip it.
        """
        arranged = self._arranged(messages)
        text = self._rendered(
            Message(m.role, f"\U000f0000{n}\U000f0001" if m.text else "") for n, m in enumerate(arranged)
        )
        return Skeleton(text, [m.text.strip() if m.role in self._strips else m.text for m in arranged])

    def _rendered(self, messages: Iterable[Message]) -> str:
        try:
            return self._render(messages)
        except jinja2.TemplateError as error:
            reason = (error.message or "no reason given").rstrip(".")
            raise PromptRefused(
                f"This model's chat template does not take these messages: {reason}. "
                "Begin with a user message, let user and assistant take turns, and end with a user message."
            ) from error

    def _render(self, messages: Iterable[Message]) -> str:
        return self._template.render(
            messages=[{"role": message.role, "content": message.text} for message in messages],
            add_generation_prompt=True,
            tools=None,
            documents=None,
            **self._special_tokens,
        )

    def _shows(self, message: Message, messages: list[Message]) -> bool:
        try:
            return message.text in self._render(messages)
        except jinja2.TemplateError:
            return False

    def _strips_text_of(self, role: Role) -> bool:
        bare, user = Message(role, "A text."), Message("user", "Hello.")
        spaced = Message(role, f"\n {bare.text} \n")
        return any(
            self._shows(bare, [*before, spaced]) and not self._shows(spaced, [*before, spaced])
            for before in ([], [user])
        )

    def _arranged(self, messages: Sequence[Message]) -> list[Message]:
        arranged = [Message("system", m.text) if m.role == "developer" else m for m in messages]
        if any(m.role == "system" for m in (arranged if not self._takes_system else arranged[1:])):
            arranged = self._with_system_moved(arranged)
        return arranged if self._takes_neighbours else _joined(arranged)

    def _with_system_moved(self, messages: list[Message]) -> list[Message]:
        if self._takes_system and self._takes_late_system:
            return messages
        text = _paragraphs(m.text for m in messages if m.role == "system")
        others = [m for m in messages if m.role != "system"]
        if self._takes_system:
            return [Message("system", text), *others]
        if others and others[0].role == "user":
            return [Message("user", _paragraphs([text, others[0].text])), *others[1:]]
        return [Message("user", text), *others]


def _joined(messages: Iterable[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            role: Role = message.role
            joined[-1] = Message(role, _paragraphs([joined[-1].text, message.text]))
        else:
            joined.append(message)
    return joined


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n\n".join(texts)


# --- Jinja as transformers sets it up for templates ------------------------------------------------------------------


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
