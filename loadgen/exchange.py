"""What one request went through, as its client saw it, and whether it met its targets.

Knows what is recorded of a request and what follows from that alone. Knows no socket, no clock (times come in as
seconds) and nothing of other requests.

**Coordinated omission.** Every wait counts from when the request was *due*, not from when the client got round to
sending it. A person's arrival is scheduled before the run begins and is independent of every answer; a follow-up is
due when the answer before it has ended and its think time is over. So a request that a late server, a slow connect or
this client itself kept from being sent has waited since it was due, and that is in its TTFT. The difference is told
apart as `late_ms`. In a closed load (one request after another, no think time) a request is due when it is sent.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from protocol.timeline import gaps_met

Outcome = Literal[
    "not_sent",  # the socket was gone, or the run was over, before its turn came
    "unfinished",  # sent, and still running when the run was stopped
    "finished",  # the answer ended as asked for: end token, stop text, output limit
    "failed",  # the answer began and ended some other way: worker failed, deadline, cancelled by the server, bad frame
    "refused",  # answered by an `error` event instead of a response
    "dropped",  # the socket closed before the terminal event
    "left",  # the person closed the page in the midst of it
]
Api = Literal["responses", "chat"]
"""The Responses API over WebSockets, which is rota's, or chat completions over HTTP."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer as the client saw them. Times are seconds of `time.perf_counter`."""

    socket: int
    number: int
    """Which request of its socket, from 0."""
    outcome: Outcome = "not_sent"
    created: bool = False
    """The server has said that there is a response."""
    code: str | None = None
    """Why it was refused, failed, dropped or never sent: an error code, a finish reason, or `closed_CODE`."""
    message: str | None = None
    status: str | None = None
    """`response.status` of the terminal event."""
    finish_reason: str | None = None
    due_s: float | None = None
    """When it was to be sent. None: it never came to that."""
    sent_s: float | None = None
    first_byte_s: float | None = None
    """When the first of the answer came, whatever it was: the first event, or the head of an HTTP answer."""
    texts_s: list[float] = field(default_factory=list)
    """When each non-empty delta arrived. A delta is a chunk: it may hold several tokens."""
    ended_s: float | None = None
    """When the terminal event arrived; of a dropped request, when the socket was found closed; of one that was left,
    when."""
    given_up_s: float | None = None
    """When the run was stopped with this request due or under way."""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    tokens_are_chunks: bool = False
    """The server counted no tokens: `output_tokens` is the number of chunks."""
    queue_ms: float | None = None
    """This and what follows up to `preemptions` is what the server says of itself, in the `rota` object."""
    prefill_ms: float | None = None
    server_ttft_ms: float | None = None
    """From receiving the request to its first text at the socket."""
    server_itl_p50_ms: float | None = None
    server_itl_p99_ms: float | None = None
    server_itl_max_ms: float | None = None
    server_paused_ms: float | None = None
    """How long it stood still because its reader took nothing."""
    server_met: bool | None = None
    """Whether the server finds that the targets it was told were met."""
    preemptions: int = 0

    person: str = ""
    group: str = ""
    question: int = 0
    """Which of its person, from 0."""
    asked_tokens: int | None = None
    """How long the prompt was to be. None: it cannot be known, as what was said before counts as well."""
    connect_ms: float | None = None
    """How long the socket took to open, of the first request on it."""
    left: bool = False
    """The person closed the page before the end."""
    slow_reader: bool = False
    """The person took the answer from the socket no faster than it wanted: its gaps are its own doing."""
    warm_up: bool = False
    """Played, but in no figure."""
    ttft_target_s: float = math.inf
    itl_target_s: float = math.inf
    response_id: str | None = None
    """What a follow-up continues from."""
    text: list[str] | None = None
    """The answer, where a follow-up has to send it again. None: it is not kept."""

    @property
    def from_s(self) -> float | None:
        """What its waits count from: when it was due."""
        return self.sent_s if self.due_s is None else self.due_s

    @property
    def late_ms(self) -> float | None:
        """From due to sent."""
        return ms_between(self.due_s, self.sent_s)

    @property
    def ttfb_ms(self) -> float | None:
        """From due to the first of the answer, whatever it was."""
        return ms_between(self.from_s, self.first_byte_s)

    @property
    def ttft_ms(self) -> float | None:
        """From due to the first non-empty delta."""
        return ms_between(self.from_s, self.texts_s[0]) if self.texts_s else None

    @property
    def request_ms(self) -> float | None:
        """From due to the terminal event; None for a request that got none."""
        return ms_between(self.from_s, self.ended_s) if self.outcome in ("finished", "failed", "refused") else None

    @property
    def gaps_ms(self) -> list[float]:
        """Between consecutive non-empty deltas: one fewer than there are deltas."""
        return [(after - before) * 1e3 for before, after in pairwise(self.texts_s)]

    @property
    def token_gap_ms(self) -> float | None:
        """An approximation of the mean time per token: (last delta - first delta) / (output tokens - 1).

        Exact when the first and last deltas hold one token each. It smooths over chunks that hold several; `gaps_ms`
        does not.
        """
        if self.output_tokens is None or self.output_tokens < 2 or len(self.texts_s) < 2:
            return None
        return (self.texts_s[-1] - self.texts_s[0]) * 1e3 / (self.output_tokens - 1)

    @property
    def has_targets(self) -> bool:
        return self.ttft_target_s < math.inf or self.itl_target_s < math.inf

    @property
    def met(self) -> bool | None:
        """Whether it is goodput (`protocol.timeline`): it finished, its first text was in time, and so were its gaps.

        False: it missed them, and so did what failed, was refused, dropped, or due and without a socket. What was left
        by its person, or cut off by the end of the run, has missed its targets only if it had missed them by then: its
        first text, or the piece after the last, was overdue already, or the gaps so far were too long. Otherwise it
        is None, neither met nor missed, as is what was never due, or has no targets. A slow reader's gaps are its own
        doing, and not looked at.
        """
        if not self.has_targets:
            return None
        match self.outcome:
            case "finished":
                return bool(self.texts_s) and self._so_far_in_time(None)
            case "left" | "unfinished":
                seen_until_s = self.ended_s if self.outcome == "left" else self.given_up_s
                return None if self._so_far_in_time(seen_until_s) else False
            case "not_sent":
                if self.due_s is None:
                    return None
                if self.given_up_s is not None:
                    return None if self._so_far_in_time(self.given_up_s) else False
                return False
            case _:
                return False

    def _so_far_in_time(self, seen_until_s: float | None) -> bool:
        """Whether nothing is too late, the piece that was waited for at `seen_until_s` included."""
        from_s = self.from_s
        first_s = self.texts_s[0] if self.texts_s else seen_until_s
        if from_s is not None and first_s is not None and first_s - from_s > self.ttft_target_s:
            return False
        if self.slow_reader or not self.texts_s:
            return True
        times_s = self.texts_s if seen_until_s is None else [*self.texts_s, seen_until_s]
        return gaps_met([after - before for before, after in pairwise(times_s)], self.itl_target_s)


def ms_between(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else (to_s - from_s) * 1e3
