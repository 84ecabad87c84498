"""What `rota chat` reads of a server's events, what it sends, and how an answer went.

Knows the wire (WIRE.md) from the side of a person: text, ids, reasons and what it cost. Knows no socket and no screen.
"""

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from protocol.responses import ServiceTier, Targets

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Whatever may begin an escape code or move the cursor (a newline and a tab may not), turns text around, or is not
to be seen. The joiners that emoji and some scripts are written with stay."""
_SURROGATES = re.compile(r"[\ud800-\udfff]")

FINISHED = frozenset({"stop", "stop_text", "length", "prefilled"})


def harmless(text: str) -> str:
    """`text` without what a terminal would obey, or what would make a reader see another text than there is."""
    return _CONTROLS.sub("", text)


def harmless_line(text: str) -> str:
    """As `harmless`, on one line."""
    return " ".join(harmless(text).split())


# -- what is read; everything else is skipped


class _InputDetails(Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(Struct, frozen=True):
    input_tokens: int = 0
    input_tokens_details: _InputDetails | None = None
    output_tokens: int = 0

    @property
    def cached_tokens(self) -> int:
        return (self.input_tokens_details and self.input_tokens_details.cached_tokens) or 0


class Gaps(Struct, frozen=True):
    """Milliseconds."""

    p50: float | None = None
    p99: float | None = None
    max: float | None = None


class Met(Struct, frozen=True):
    ttft: bool | None = None
    itl: bool | None = None


class Rota(Struct, frozen=True):
    """rota's own: the place while it waits, how much of the prompt is read, the figures when it has ended."""

    position: int | None = None
    estimated_wait_ms: float | None = None
    input_tokens: int | None = None
    prefilled_tokens: int | None = None
    finish_reason: str | None = None
    error_code: str | None = None
    queue_ms: float | None = None
    ttft_ms: float | None = None
    itl_ms: Gaps | None = None
    preemptions: int | None = None
    targets: Targets | None = None
    met: Met | None = None


class Error(Struct, frozen=True):
    code: str | None = None
    message: str | None = None
    retry_after_ms: float | None = None


class _Incomplete(Struct, frozen=True):
    reason: str | None = None


class Response(Struct, frozen=True):
    id: str
    status: str | None = None
    usage: Usage | None = None
    rota: Rota | None = None
    error: Error | None = None
    incomplete_details: _Incomplete | None = None


class Event(Struct, frozen=True):
    type: str
    delta: str | None = None
    response: Response | None = None
    error: Error | None = None


events = msgspec.json.Decoder(Event)


# -- what is sent


class Settings(Struct):
    """What is sent with every question, as the person has set it. None: the server's own."""

    model: str
    instructions: str | None = None
    targets: Targets | None = None
    service_tier: ServiceTier | None = None
    seed: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None


def request(settings: Settings, question: str, continues: str | None) -> bytes:
    """One `response.create` frame. `continues` is the response whose conversation goes on."""
    body = {
        "type": "response.create",
        "input": question,
        "previous_response_id": continues,
        **msgspec.structs.asdict(settings),
    }
    return _frame(body)


def cancel(response: str) -> bytes:
    """One `response.cancel` frame."""
    return _frame({"type": "response.cancel", "response_id": response})


def _frame(body: dict[str, Any]) -> bytes:
    # A terminal set to another encoding hands over lone surrogates, which no JSON text may hold.
    whole = {
        name: _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", value) if isinstance(value, str) else value
        for name, value in body.items()
        if value is not None
    }
    return msgspec.json.encode(whole)


# -- how it went


@dataclass(slots=True, eq=False)
class Answer:
    """An answer as it comes in. The times are of `time.perf_counter`."""

    sent_s: float | None = None
    first_text_s: float | None = None
    ended_s: float | None = None
    id: str | None = None
    text: str = ""
    last: Response | None = None
    """The response as its terminal event has it."""
    error: Error | None = None
    """Why it was refused, or why it broke off."""
    stopped: bool = False
    """The person has asked to stop it."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """It has an id."""

    def mark_sent(self) -> None:
        """It is sent now, for the first time or again."""
        self.sent_s = time.perf_counter()

    def hear(self, event: Event) -> bool:
        """Take an event in. True: it was the last."""
        match event.type:
            case "response.created" if event.response is not None:
                self.id = event.response.id
                self.begun.set()
            case "response.output_text.delta" if event.delta:
                if self.first_text_s is None:
                    self.first_text_s = time.perf_counter()
                self.text += event.delta
            case "response.completed" | "response.incomplete" | "response.failed" if event.response is not None:
                self.ended_s = time.perf_counter()
                self.last = event.response
                if event.type == "response.failed":
                    self.error = event.response.error or Error()
                return True
            case "error":
                self.ended_s = time.perf_counter()
                self.error = event.error or Error()
                return True
        return False

    def break_off(self, code: str, message: str) -> None:
        """It ends here, and the server did not say so."""
        self.ended_s = time.perf_counter()
        self.error = Error(code=code, message=message)

    @property
    def refused(self) -> bool:
        return self.error is not None and self.id is None

    @property
    def failed(self) -> bool:
        """It was refused, or broke off by nobody's wish. One that was stopped has not failed."""
        return self.error is not None

    @property
    def code(self) -> str | None:
        """The server's name for what went wrong."""
        rota = self.last.rota if self.last is not None else None
        return (rota.error_code if rota is not None else None) or (self.error.code if self.error is not None else None)

    @property
    def can_be_continued(self) -> bool:
        """A next question may follow it. An answer of which nothing was written is no turn of a conversation."""
        return self.last is not None and not self.failed and bool(self.text)
