"""The life of one request: what happened to it, and when.

Knows the words for it, and what follows from its times. Knows no lines of a trace (`lives.py` reads those) and judges
nothing: why something took long is for `causes.py`. Times are Unix seconds; None: it never happened, or the trace does
not say.
"""

from collections.abc import Iterator
from itertools import pairwise

from loadgen.tracing.device import DeviceStep
from protocol.kinds import RequestId


class Life:
    """One request."""

    __slots__ = (
        "accepted_at",
        "asked_at",
        "cached_tokens",
        "cancelled_at",
        "chars",
        "code",
        "connection",
        "ended_at",
        "ended_reason",
        "first_seen",
        "first_step_at",
        "first_text_at",
        "first_token_at",
        "input_tokens",
        "itl_target_s",
        "last_seen",
        "last_text_at",
        "last_token_at",
        "let_in_at",
        "longest_gap",
        "max_output_tokens",
        "next_position",
        "output_tokens",
        "pauses",
        "position",
        "preempted",
        "preemptions_told",
        "received_at",
        "refused_at",
        "released_at",
        "request",
        "steps",
        "text_ended",
        "text_reason",
        "tier",
        "tokenised_at",
        "tokens",
        "ttft_target_s",
    )

    def __init__(self, request: RequestId, seen: float) -> None:
        self.request = request
        self.first_seen = self.last_seen = seen
        self.connection: int | None = None
        self.received_at: float | None = None
        self.asked_at: float | None = None
        """Its turn in its lane on the socket had come, and the tokeniser was asked."""
        self.tokenised_at: float | None = None
        self.accepted_at: float | None = None
        self.position: int | None = None
        """Its place in the waiting room when it came, from 1; 0: it went straight on."""
        self.let_in_at: float | None = None
        """Admission handed it to the scheduler."""
        self.first_step_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.first_text_at: float | None = None
        """The connection had handled its first text."""
        self.last_text_at: float | None = None
        self.text_ended: float | None = None
        self.text_reason: str | None = None
        self.refused_at: float | None = None
        self.cancelled_at: float | None = None
        self.ended_at: float | None = None
        self.ended_reason: str | None = None
        """A finish reason, or the code of the error it was refused with."""
        self.code: str | None = None
        """The code of the error that it failed of."""
        self.released_at: float | None = None
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.max_output_tokens: int | None = None
        self.output_tokens: int | None = None
        self.tier: str | None = None
        self.ttft_target_s: float | None = None
        self.itl_target_s: float | None = None
        self.chars = 0
        self.tokens = 0
        """Sampled, as far as the trace shows it."""
        self.longest_gap: tuple[float, float] | None = None
        """From one token to the next."""
        self.pauses: list[tuple[float, float | None]] = []
        """From when to when its reader had fallen behind."""
        self.preempted: list[float] = []
        """When steps were planned that read again what had been read, because its memory had been taken."""
        self.preemptions_told = 0
        """As its end says: one that found its memory in the cache again was preempted too, and read little again."""
        self.next_position: int | None = None
        self.steps: list[DeviceStep] = []

    @property
    def preemptions(self) -> int:
        return max(len(self.preempted), self.preemptions_told)

    @property
    def whole(self) -> bool:
        """The trace shows its beginning."""
        return self.asked_at is not None

    @property
    def began_at(self) -> float:
        """When it was received, or when the trace first speaks of it."""
        return self.first_seen if self.received_at is None else self.received_at

    @property
    def over_at(self) -> float | None:
        """When nothing more came of it: its last text had been handled, or it was refused; None: it goes on."""
        if self.refused_at is not None:
            return self.refused_at
        if self.ended_at is None:
            return self.released_at
        return max(self.ended_at, self.last_text_at or 0.0)

    @property
    def reason(self) -> str | None:
        """How it ended, as its reader was told."""
        if self.ended_reason in ("cancelled", "failed") or self.text_reason is None:
            return self.ended_reason
        return self.text_reason

    @property
    def told(self) -> bool:
        """Both halves of its end are here: the figures and the end of the text, or one that needs no text."""
        if self.refused_at is not None:
            return True
        return self.ended_at is not None and (
            self.text_ended is not None or self.ended_reason in ("cancelled", "failed", None)
        )

    @property
    def ttft_s(self) -> float | None:
        """From receiving it to its first text at the socket."""
        return None if self.first_text_at is None or not self.whole else self.first_text_at - self.began_at

    @property
    def state(self) -> str:
        """The word for where it stands."""
        if self.refused_at is not None:
            return "refused"
        if self.over_at is not None:
            return "finished"
        if self.first_token_at is not None:
            return "decoding"
        if self.first_step_at is not None:
            return "prefilling"
        if self.tokenised_at is not None or self.let_in_at is not None:
            return "queued"
        return "received"

    def state_at(self, at: float) -> str | None:
        """The same for a moment of its life; None before and after it."""
        if at < self.began_at or (self.over_at is not None and at > self.over_at):
            return None
        state = "received"
        for since, word in (
            (self.tokenised_at, "queued"),
            (self.let_in_at, "queued"),
            (self.first_step_at, "prefilling"),
            (self.first_token_at, "decoding"),
        ):
            if since is not None and since <= at:
                state = word
        return state

    def token_steps(self) -> Iterator[DeviceStep]:
        """The steps that sampled its tokens; `at` of each is when the token was there."""
        for step in self.steps:
            chunk = step.chunk_of(self.request)
            if chunk is not None and chunk[3]:
                yield step

    def gaps(self) -> list[tuple[float, float]]:
        """From each token to the next."""
        return list(pairwise(step.at for step in self.token_steps()))

    def prefill_steps(self) -> list[tuple[DeviceStep, int, int]]:
        """The steps up to its first token, each with the position from which on it read, and how many tokens."""
        found = []
        for step in self.steps:
            if self.first_token_at is not None and step.at > self.first_token_at:
                break
            chunk = step.chunk_of(self.request)
            if chunk is not None:
                found.append((step, chunk[1], chunk[2]))
        return found
