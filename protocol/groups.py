"""A group of people as a scenario's file tells of it: how many, when they come, what they ask and how they behave.

Knows the keys and what does not go together. Draws nobody.
"""

import math
from typing import Annotated, Literal

from msgspec import Meta, Struct

from protocol.distributions import Drawn, Seconds, Time, Tokens, check_whole
from protocol.responses import ServiceTier

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Positive = Annotated[float, Meta(gt=0)]
"""Of a target; `inf` is none at all."""
Share = Annotated[float, Meta(ge=0, le=1)]
Above0 = Annotated[float, Meta(gt=0, le=1e6)]

PAIRS = (
    ("leave_after_s", "leave"),
    ("leave_after_chunks", "leave"),
    ("come_back", "leave"),
    ("come_back_s", "come_back"),
    ("chunks_per_s", "read_slowly"),
)
"""A key, and the share of people without whom it says nothing."""


class Group(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """People who are alike. A number may be drawn anew for each (`Drawn`).

    Shares are of the group, and kept as exactly as whole people allow. Each property is drawn for itself: changing one
    leaves the rest of the group as it was.
    """

    name: Name
    count: Annotated[int, Meta(ge=1)] | None = None
    """People. May be left out with a trace: then all that it has."""
    start_s: Seconds = 0.0
    """When the first of them comes."""

    arrive: Literal["together", "fixed", "poisson", "gamma", "trace"] = "together"
    rate: Above0 | None = None
    """People a second, on average; of a trace: so many times as fast as it was."""
    burstiness: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    """Of "gamma": the coefficient of variation of the gaps between arrivals, their standard deviation over their mean.
    1 is Poisson, less is more even, more is bursts with pauses between."""
    trace: Name | None = None
    """A file in the form of the AzurePublicDataset. Each of its requests is a person with one question."""
    first: Annotated[int, Meta(ge=0)] | None = None
    """The request of the trace to begin with, from 0."""
    tokens: Above0 | None = None
    """The trace's prompts and answers are so many times as long."""

    questions: Tokens = 1
    think_s: Time = 0.0
    """From the end of an answer to the next question."""
    prompt_tokens: Tokens | None = None
    """Of each question alone."""
    output_tokens: Tokens | None = None
    remember: bool = True
    """Later questions continue the conversation; else each stands alone."""

    leave: Share = 0.0
    """So many close the page in the middle of their first answer,"""
    leave_after_s: Time | None = None
    """so long after they have asked,"""
    leave_after_chunks: Tokens | None = None
    """or when they have had so many pieces of text."""
    come_back: Share = 0.0
    """So many of those who leave come back and ask again,"""
    come_back_s: Time | None = None
    """so long after they left."""
    read_slowly: Share = 0.0
    """So many take their text from the socket slowly,"""
    chunks_per_s: Above0 | None = None
    """so many pieces a second."""
    reconnect: Share = 0.0
    """So many close their socket after each answer and open another for the next question."""

    service_tier: ServiceTier = "default"
    ttft_target_s: Positive | None = None
    """In place of the scenario's."""
    itl_target_s: Positive | None = None

    def __post_init__(self) -> None:
        """Raises ValueError, whose message begins with the key."""
        self._check_arrivals()
        self._check_questions()
        for key, share in PAIRS:
            if getattr(self, key) and not getattr(self, share):
                raise ValueError(f"{key}: it says nothing without a {share} above 0")
        if self.leave and (self.leave_after_s is None) == (self.leave_after_chunks is None):
            raise ValueError("leave: it needs either leave_after_s or leave_after_chunks")
        if self.come_back and self.come_back_s is None:
            raise ValueError("come_back: it needs come_back_s")
        if self.read_slowly and self.chunks_per_s is None:
            raise ValueError("read_slowly: it needs chunks_per_s")

    def _check_arrivals(self) -> None:
        traced = self.arrive == "trace"
        if self.arrive in ("fixed", "poisson", "gamma") and self.rate is None:
            raise ValueError(f'rate: people who arrive "{self.arrive}" need one, in people a second')
        if self.arrive == "together" and self.rate is not None:
            raise ValueError('rate: people who arrive "together" have none; say arrive = "poisson" or another')
        if (self.arrive == "gamma") != (self.burstiness is not None):
            raise ValueError('burstiness: it belongs to arrive = "gamma", which needs it')
        if traced != (self.trace is not None):
            raise ValueError('trace: it belongs to arrive = "trace", which needs it')
        for key in ("first", "tokens"):
            if getattr(self, key) is not None and not traced:
                raise ValueError(f'{key}: it belongs to arrive = "trace"')
        if self.count is None and not traced:
            raise ValueError("count: it says how many people there are, and is missing")

    def _check_questions(self) -> None:
        traced = self.arrive == "trace"
        for key in ("prompt_tokens", "output_tokens"):
            if (getattr(self, key) is not None) == traced:
                raise ValueError(f"{key}: {'the trace has its own' if traced else 'it is missing'}")
        if traced and self.questions != 1:
            raise ValueError("questions: whoever comes from a trace has one")
        for key in ("questions", "prompt_tokens", "output_tokens", "leave_after_chunks"):
            check_whole(key, getattr(self, key))
        most = self.questions.highest if isinstance(self.questions, Drawn) else self.questions
        if most > MOST_QUESTIONS:
            said = "without a bound" if most == math.inf else f"{most:g}"
            raise ValueError(f"questions: at most {MOST_QUESTIONS:,}, not {said}")
        for key in ("think_s", "reconnect"):
            if getattr(self, key) and most < 2:
                raise ValueError(f"{key}: it says nothing where nobody has a second question")


MOST_QUESTIONS = 10_000
"""Of one person."""
