"""The wire, from the client: the four events it can send, and reading one from a frame.

Knows every field of OpenAI's `response.create` and rota's own beside them: which bear on the answer, which are
harmless, which rota does not have. Nothing that would change the answer is silently ignored. Knows nothing of what
only a running server can tell: which models it serves, which responses it keeps, how much context there is.
"""

from typing import Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from protocol import errors
from protocol.errors import Refusal, WireError, shown
from protocol.frames import kind_of, more_than, read_frame, without_nulls
from protocol.input_items import Message, read_input
from protocol.wrong_types import converted

LOGPROBS = "message.output_text.logprobs"
"""The one thing `include` can ask of rota."""

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Truncation = Literal["auto", "disabled"]


class Targets(Struct, frozen=True, omit_defaults=True):
    """What the client hopes for: milliseconds to the first token, and from one token to the next."""

    ttft_ms: float | None = None
    itl_ms: float | None = None


class PromptCacheOptions(Struct, frozen=True, omit_defaults=True):
    """OpenAI's. `prewarm` is `generate: false` by another name; the others only tune a cache that rota tunes itself."""

    prewarm: bool | None = None
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None


class ResponseCreate(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="response.create"):
    """A request for an answer, checked: what is None or empty was absent. Encoded as JSON it is a valid frame again.

    Harmless parameters have been accepted and dropped; unsupported ones never get this far.
    """

    model: str | None = None
    input: str | tuple[Message, ...] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream_id: str | None = None
    generate: bool | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    include: tuple[str, ...] = ()
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    truncation: Truncation | None = None
    service_tier: ServiceTier | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    ignore_eos: bool | None = None
    deadline_ms: float | None = None
    targets: Targets | None = None
    resumable: bool | None = None

    @property
    def prefill_only(self) -> bool:
        """The prompt is to be computed and kept warm, and nothing generated."""
        prewarm = self.prompt_cache_options is not None and self.prompt_cache_options.prewarm is True
        return self.generate is False or prewarm

    @property
    def wants_logprobs(self) -> bool:
        """As at OpenAI, `include` alone decides; `top_logprobs` only says how many alternatives."""
        return LOGPROBS in self.include

    @property
    def logprobs(self) -> int | None:
        """How many alternatives to report beside each token; None when no log-probabilities are wanted."""
        return (self.top_logprobs or 0) if self.wants_logprobs else None

    @property
    def stored(self) -> bool:
        """Whether another socket may continue the conversation."""
        return self.store is not False


class ResponseCancel(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="response.cancel"):
    """Stop one response (`response_id`), or else all that runs and waits on a lane (`stream_id`; None: the default)."""

    response_id: str | None = None
    stream_id: str | None = None


class ResponseResume(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="response.resume"):
    """Go on with a response whose socket was lost: every event after number `starting_after`; None: from the first.

    `stream_id` is for a refusal to go to. The response itself goes on upon the lane it was asked on.
    """

    response_id: str
    starting_after: int | None = None
    stream_id: str | None = None


class ResponseSteer(Struct, frozen=True, tag_field="type", tag="response.steer"):
    """Change the course of a running response. rota cannot, and gives the input back as it came."""

    previous_response_id: str
    input: object


EVENTS = ("response.create", "response.cancel", "response.resume", "response.steer")
ClientEvent = ResponseCreate | ResponseCancel | ResponseResume | ResponseSteer


class Rejected(Struct, frozen=True):
    """A frame that was no event. `stream_id` is the lane it named, if it could be made out, for the error to go to."""

    error: WireError
    stream_id: str | None = None


def parse_client_event(frame: bytes | str) -> ClientEvent | Rejected:
    """The event in one text frame. Never raises: whatever is wrong with the frame is said in `Rejected.error`."""
    lane: str | None = None
    try:
        body, lane = read_frame(frame)
        fields = without_nulls(body)
        if "stream_id" in fields and lane is None:
            raise Refusal(errors.invalid_stream_id(fields["stream_id"]))
        return _read_event(fields)
    except Refusal as refusal:
        return Rejected(refusal.error, refusal.stream_id or lane)


def messages_of(create: ResponseCreate) -> list[Message]:
    """The messages of this request's `input`, oldest first. `instructions` are not among them."""
    match create.input:
        case None | "":
            return []
        case str(text):
            return [Message("user", text)]
        case messages:
            return list(messages)


# --- from JSON to an event -------------------------------------------------------------------------------------------


def _read_event(fields: dict[str, object]) -> ClientEvent:
    match fields.get("type"):
        case "response.create":
            return _read_create(fields)
        case "response.cancel":
            _refuse_unknown(fields, ResponseCancel.__struct_fields__)
            return _convert(fields, ResponseCancel)
        case "response.resume":
            return _read_resume(fields)
        case "response.steer":
            return _read_steer(fields)
        case None:
            wrong = "The frame has no type."
        case str(name):
            wrong = f"There is no event of type '{shown(name)}'."
        case other:
            wrong = f"The type of an event is a string, not {kind_of(other)}."
    raise _invalid(f"{wrong} Send one of {', '.join(map(repr, EVENTS))}.", "type")


def _read_create(fields: dict[str, object]) -> ResponseCreate:
    fields = _without_harmless(fields)
    _refuse_unknown(fields, ResponseCreate.__struct_fields__)
    if "input" in fields:
        fields["input"] = read_input(fields["input"])
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    for name, most, what in (("stop", _STOPS, "texts"), ("metadata", _METADATA_PAIRS, "pairs")):
        _check_number(name, fields.get(name), most, what)
    for name, struct in (("targets", Targets), ("prompt_cache_options", PromptCacheOptions)):
        nested = fields.get(name)
        if isinstance(nested, dict):
            fields[name] = nested = without_nulls(nested)
            _refuse_unknown(nested, struct.__struct_fields__, f"{name}.")
    create = _convert(fields, ResponseCreate)
    _check_limits(create)
    return create


def _read_resume(fields: dict[str, object]) -> ResponseResume:
    _refuse_unknown(fields, ResponseResume.__struct_fields__)
    if "response_id" not in fields:
        raise _invalid("response_id is missing. Name the response to go on with.", "response_id")
    resume = _convert(fields, ResponseResume)
    if resume.starting_after is not None:
        _check_range("starting_after", resume.starting_after)
    return resume


def _read_steer(fields: dict[str, object]) -> ResponseSteer:
    _refuse_unknown(fields, ResponseSteer.__struct_fields__)
    if "previous_response_id" not in fields:
        raise _invalid("previous_response_id is missing. Name the response to steer.", "previous_response_id")
    if not isinstance(fields.get("input"), str | list):
        raise _invalid("input must be a string or a list of messages. Send what to steer with.", "input")
    if more_than(_STEER_VALUES, fields["input"], _STEER_DEPTH):
        most = f"{_STEER_VALUES:,} values, {_STEER_DEPTH} levels deep"
        raise _invalid(f"input is larger than is given back: it may hold {most}. Send messages only.", "input")
    size = len(msgspec.json.encode(fields["input"]))
    if size > _STEER_BYTES:
        raise _invalid(f"input is {size:,} bytes of JSON; to steer with, it may be {_STEER_BYTES:,}.", "input")
    return _convert(fields, ResponseSteer)


# --- parameters that rota does not have ------------------------------------------------------------------------------

_HARMLESS: dict[str, tuple[object, ...]] = {
    "access_programs": ({},),
    "background": (False,),
    "background_options": ({},),
    "context_management": ([],),
    "conversation": (),
    "image": ({},),
    "max_tool_calls": (),
    "moderation": ({},),
    "parallel_tool_calls": (True, False),
    "prompt": (),
    "prompt_cache_retention": ("in_memory", "24h"),
    "reasoning": ({},),
    "stream": (True,),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
}
"""OpenAI's parameters that rota does not have, with the values under which that makes no difference."""


def _without_harmless(fields: dict[str, object]) -> dict[str, object]:
    kept: dict[str, object] = {}
    for name, value in fields.items():
        if name == "text":
            _check_text(value)
        elif name == "stream_options":
            options = without_nulls(_object(value, name))
            _refuse_unknown(options, ("include_obfuscation",), "stream_options.")
            if not isinstance(options.get("include_obfuscation", True), bool):
                raise _unsupported("stream_options.include_obfuscation", options["include_obfuscation"])
        elif name not in _HARMLESS:
            kept[name] = value
        else:
            given = without_nulls(value) if isinstance(value, dict) else value
            # `type` as well, since 0 == False.
            if not any(type(given) is type(harmless) and given == harmless for harmless in _HARMLESS[name]):
                raise _unsupported(name, value)
    return kept


def _check_text(value: object) -> None:
    for name, given in without_nulls(_object(value, "text")).items():
        if name != "format":
            raise _unsupported(f"text.{shown(name)}", given)
        if without_nulls(_object(given, "text.format")) not in ({}, {"type": "text"}):
            raise Refusal(errors.unsupported_parameter("text.format", "Leave it out, or send {'type': 'text'}."))


def _object(value: object, name: str) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    raise _invalid(f"{name} must be an object, not {kind_of(value)}.", name)


def _refuse_unknown(fields: dict[str, object], known: tuple[str, ...], path: str = "") -> None:
    for name in fields:
        if name not in known and not (name == "type" and not path):
            raise Refusal(errors.unknown_parameter(path + shown(name), [path + each for each in known]))


# --- values out of bounds --------------------------------------------------------------------------------------------

_STEER_VALUES, _STEER_DEPTH, _STEER_BYTES = 4_096, 32, 65_536
"""What is sent to steer with is sent back."""
_MOST = 2**31 - 1
"""Larger counts of tokens mean nothing, and do not fit where they are going."""

_RANGES: dict[str, tuple[float, float]] = {
    "max_output_tokens": (1, _MOST),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_logprobs": (0, 20),
    "top_k": (0, _MOST),
    "min_p": (0, 1),
    "seed": (-(2**63), 2**63 - 1),
    "deadline_ms": (0, _MOST),
    "starting_after": (0, _MOST),
    "targets.ttft_ms": (0, _MOST),
    "targets.itl_ms": (0, _MOST),
}
_ABOVE_LOWEST = frozenset({"top_p", "deadline_ms", "targets.ttft_ms", "targets.itl_ms"})
"""Where the lower bound itself is already too low."""

_LENGTHS = {"safety_identifier": 128, "prompt_cache_key": 1024, "user": 1024}
_METADATA_PAIRS, _METADATA_KEY, _METADATA_VALUE = 16, 64, 512
_STOPS, _STOP_LENGTH = 16, 256


def _check_limits(create: ResponseCreate) -> None:
    if not create.input and create.previous_response_id is None and not create.instructions:
        raise _invalid("input is missing or empty. Send a text, or a previous_response_id to continue from.", "input")
    for index, asked in enumerate(create.include):
        if asked != LOGPROBS:
            raise Refusal(
                errors.unsupported_parameter(f"include[{index}]", f"Leave it out; rota can include '{LOGPROBS}'.")
            )
    for name in _RANGES:
        owner, _, leaf = name.rpartition(".")
        value = getattr(getattr(create, owner) if owner else create, leaf, None)
        if value is not None:
            _check_range(name, value)
    for name, most in _LENGTHS.items():
        _check_length(name, getattr(create, name) or "", most)
    _check_stop(create.stop)
    _check_metadata(create.metadata or {})


def _check_range(name: str, value: float) -> None:
    low, high = _RANGES[name]
    if name in _ABOVE_LOWEST:
        fits, bounds = low < value <= high, f"more than {low:,} and at most {high:,}"
    else:
        fits, bounds = low <= value <= high, f"from {low:,} to {high:,}"
    if not fits:
        given = shown(str(value), 24)
        raise _invalid(f"{name} is {given}; it must be {bounds}.", name)


def _check_length(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise _invalid(f"{name} has {len(text):,} characters; it may have {most:,}.", name)


def _check_number(name: str, values: object, most: int, what: str) -> None:
    if isinstance(values, list | dict) and len(values) > most:
        raise _invalid(f"{name} has {len(values):,} {what}; it may have {most}.", name)


def _check_stop(stop: tuple[str, ...]) -> None:
    for index, text in enumerate(stop):
        if not text:
            raise _invalid(f"stop[{index}] is empty; an answer would end before it began.", f"stop[{index}]")
        _check_length(f"stop[{index}]", text, _STOP_LENGTH)


def _check_metadata(metadata: dict[str, str]) -> None:
    for key, value in metadata.items():
        if len(key) > _METADATA_KEY:
            raise _invalid(f"A metadata key has {len(key):,} characters; it may have {_METADATA_KEY}.", "metadata")
        _check_length(f"metadata.{key}", value, _METADATA_VALUE)


# --- values of the wrong type ----------------------------------------------------------------------------------------

_CHOICES: dict[str, tuple[str, ...]] = {
    "service_tier": get_args(ServiceTier),
    "truncation": get_args(Truncation),
    "prompt_cache_options.mode": ("implicit", "explicit"),
    "prompt_cache_options.ttl": ("30m", "12h"),
}

_Event = TypeVar("_Event", ResponseCreate, ResponseCancel, ResponseResume, ResponseSteer)


def _convert(fields: dict[str, object], event: type[_Event]) -> _Event:
    return converted(fields, event, _CHOICES)


def _invalid(message: str, param: str) -> Refusal:
    return Refusal(errors.invalid_request(message, param))


def _unsupported(field: str, value: object) -> Refusal:
    given = "the value given"
    if isinstance(value, str | int | float):
        given = f"the value {shown(repr(value) if isinstance(value, str) else str(value).lower())}"
    return Refusal(errors.unsupported_parameter(field, given=given))
