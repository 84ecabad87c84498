"""The bodies of requests, made before a run: what is sent is bytes, but for what the server says in between.

Knows both APIs' fields, and how a request continues what was said before. Knows no socket, and no text but that which
it is given.
"""

import math
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from loadgen.exchange import Api, Exchange
from protocol.people import Person

_encode = msgspec.json.Encoder().encode


class Prepared(Struct, frozen=True):
    """One request of a person."""

    body: bytes
    """A JSON object, complete but for what was said before."""
    message: bytes = b""
    """Of chat completions: the question as a message."""
    asked_tokens: int | None = None
    """How long the prompt is to be, as the server will count it; None where that cannot be known."""


class Asking(Struct, frozen=True, kw_only=True):
    """What all requests of a run have in common."""

    api: Api
    model: str
    temperature: float
    ignore_eos: bool
    """Rota's own field, and vLLM's: left out when false, for servers that refuse it."""


def request_body(model: str, prompt: str, *, max_output_tokens: int, temperature: float, ignore_eos: bool) -> bytes:
    """One `response.create` frame that stands alone."""
    asking = Asking(api="responses", model=model, temperature=temperature, ignore_eos=ignore_eos)
    return Stored().body(prepared(asking, prompt, max_output_tokens))


def chat_body(model: str, prompt: str, *, max_output_tokens: int, temperature: float, ignore_eos: bool) -> bytes:
    """One chat completion that stands alone."""
    asking = Asking(api="chat", model=model, temperature=temperature, ignore_eos=ignore_eos)
    return Retold().body(prepared(asking, prompt, max_output_tokens))


def prepared(
    asking: Asking, prompt: str, max_output_tokens: int, *, asked_tokens: int | None = None, **more: Any
) -> Prepared:
    """`more` goes as it is: only the Responses API has any."""
    eos = {"ignore_eos": True} if asking.ignore_eos else {}
    if asking.api == "responses":
        body = {
            "type": "response.create",
            "model": asking.model,
            "input": prompt,
            "max_output_tokens": max_output_tokens,
            "temperature": asking.temperature,
            **eos,
            **more,
        }
        return Prepared(_encode(body), asked_tokens=asked_tokens)
    body = {
        "model": asking.model,
        "max_tokens": max_output_tokens,
        "temperature": asking.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **eos,
    }
    return Prepared(_encode(body), _encode({"role": "user", "content": prompt}), asked_tokens)


def wishes(person: Person) -> dict[str, Any]:
    """What a person wants of rota beyond the answer: its targets and its tier."""
    named = (("ttft_ms", person.ttft_target_s), ("itl_ms", person.itl_target_s))
    targets = {name: wanted_s * 1e3 for name, wanted_s in named if wanted_s < math.inf}
    more: dict[str, Any] = {"targets": targets} if targets else {}
    if person.service_tier != "default":
        more["service_tier"] = person.service_tier
    return more


class Conversation(Protocol):
    """What has been said so far, in the form in which an API wants to be told of it."""

    keeps_text: bool
    """The answers' text is needed to go on."""

    def body(self, request: Prepared) -> bytes:
        """The request, as what comes next."""

    def answered(self, request: Prepared, exchange: Exchange) -> bool:
        """Remember a whole answer. False: there is nothing to continue from."""


class Stored:
    """The Responses API: the server keeps the conversation, and is told where it goes on."""

    keeps_text = False

    def __init__(self) -> None:
        self._previous: str | None = None

    def body(self, request: Prepared) -> bytes:
        if self._previous is None:
            return request.body
        return b'{"previous_response_id":' + _encode(self._previous) + b"," + request.body[1:]

    def answered(self, request: Prepared, exchange: Exchange) -> bool:
        self._previous = exchange.response_id
        return self._previous is not None


class Retold:
    """Chat completions: the client tells all of it again."""

    keeps_text = True

    def __init__(self) -> None:
        self._messages: list[bytes] = []

    def body(self, request: Prepared) -> bytes:
        messages = b",".join([*self._messages, request.message])
        return b'{"messages":[' + messages + b"]," + request.body[1:]

    def answered(self, request: Prepared, exchange: Exchange) -> bool:
        answer = _encode({"role": "assistant", "content": "".join(exchange.text or ())})
        self._messages += [request.message, answer]
        return True


def conversation(api: Api) -> Conversation:
    """A new one."""
    return Retold() if api == "chat" else Stored()
