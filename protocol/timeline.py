"""What became of a scenario: for each request when its tokens came, for each step who was in it.

Knows the shape, what "met its targets" means and how a share of those that did is written: the same for a simulation
and for a real server, so that the two can be put side by side. Draws nothing and prints nothing.
"""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

GAP_PERCENT = 99
LONGEST_GAP = 2.0
"""A request's gaps meet their target when `GAP_PERCENT` of them do (the nearest rank: of under 100 gaps, all), and none
is more than `LONGEST_GAP` times as long: one hiccup is forgiven, a pause is not."""


def percent(share: float, digits: int = 0) -> str:
    """From 0 to 1, in per cent: 100 only when it is all."""
    shown = f"{share:.{digits}%}"
    return f"{100 - 10**-digits:.{digits}f}%" if share < 1 and shown.startswith("100") else shown


def gaps_met(gaps_s: Sequence[float], target_s: float) -> bool:
    """Whether the gaps of one request meet their target."""
    late = sum(1 for gap_s in gaps_s if gap_s > target_s)
    if late and max(gaps_s) > LONGEST_GAP * target_s:
        return False
    return late <= len(gaps_s) - -(-len(gaps_s) * GAP_PERCENT // 100)


class Life(Struct, frozen=True):
    """One request. Times are seconds from the start of the scenario."""

    name: str
    prompt_tokens: int
    arrived_s: float
    ttft_target_s: float
    itl_target_s: float
    started_s: float | None = None
    """When the first step that ran it began; None: unknown, or never."""
    token_times: tuple[float, ...] = ()
    """When each of its tokens came (of a real server: when the client had the text)."""
    ended_s: float | None = None
    finished: bool = False
    """Its answer ended as asked for: end token, stop text or output limit."""
    outcome: str = ""
    """The finish reason, or the code of the error that it got instead."""
    preemptions: int = 0

    @property
    def ttft_s(self) -> float | None:
        return self.token_times[0] - self.arrived_s if self.token_times else None

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    @property
    def met(self) -> bool:
        """Whether it counts as goodput: it finished, its first token was in time, and so were its gaps."""
        ttft = self.ttft_s
        if not self.finished or ttft is None or ttft > self.ttft_target_s:
            return False
        return gaps_met(self.gaps_s, self.itl_target_s)


class Turn(Struct, frozen=True):
    """One step: who ran in it, by the index of the request, and with how many tokens of prefill (0: a decode row)."""

    start_s: float
    end_s: float
    prefills: tuple[tuple[int, int], ...] = ()
    decodes: tuple[int, ...] = ()


class Timeline(Struct, frozen=True):
    """One run of a scenario under one policy."""

    policy: str
    lives: tuple[Life, ...]
    turns: tuple[Turn, ...] = ()
    """Empty where nobody outside can know: a real server's client sees tokens, not steps."""
