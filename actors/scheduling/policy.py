"""What the next step runs: the choice itself, and nothing else.

A policy sees the sequences that could run and says how many tokens of which it wants; `memory.py` finds the memory.
Knows no blocks, no messages, no clock of its own. The three here are the plain ones; the default is in `slack.py`.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

from msgspec import Struct

from actors.scheduling.costs import Costs
from actors.scheduling.sequence import Sequence
from actors.scheduling.waiting import Waiting

NOBODY = Waiting()


class Wish(Struct, frozen=True, gc=False):
    """`tokens` more tokens of `sequence` in this step, if there is memory for them."""

    sequence: Sequence
    tokens: int


class View(Struct):
    """What a policy sees. None of these sequences is paused, and of those in steps in flight as much as is left when
    these have run."""

    now: float
    """When the step begins: now, or when the one it is planned behind is predicted to end."""
    decodes: list[Sequence]
    """Those that run and need one token, by arrival."""
    prefills: list[Sequence]
    """Those that run and have more of their history to read, by arrival."""
    waiting: Waiting
    """Those that hold no blocks: their first step needs memory for their whole history."""
    max_step_tokens: int
    costs: Costs


class Policy(Protocol):
    """Makes wishes, the most important first.

    They may add up to more than a step holds: those that find no memory are passed over, and the step is full at
    `max_step_tokens`. Whatever the view, somebody is wished for if anybody can run; and if only decode rows can, and
    there is time for all within the tightest of their targets, all of them are (`simulator/coasting.py` counts on it).

    `backlog_s`: how many seconds of prefill it wants admitted ahead, to choose from.
    """

    backlog_s: float

    def wishes(self, view: View) -> list[Wish]: ...


def by_arrival(view: View, most: int) -> list[Wish]:
    """Prefill, first come first, until `most` tokens are wished for."""
    return _fill(chain(view.prefills, view.waiting.by_arrival()), most)


def _fill(sequences: Iterable[Sequence] | Iterator[Sequence], most: int) -> list[Wish]:
    wishes = []
    for sequence in sequences:
        if most <= 0:
            break
        tokens = min(sequence.to_read, most)
        wishes.append(Wish(sequence, tokens))
        most -= tokens
    return wishes


BACKLOG_S = 0.5
"""Enough to fill steps with. The rest waits where it can be fair."""


class FixedChunk:
    """Every decode row, then prefill by arrival until `chunk_tokens` prefill tokens are in the step.

    The plain form of chunked prefill beside running decodes (Agrawal et al., "SARATHI: Efficient LLM Inference by
    Piggybacking Decodes with Chunked Prefills", 2023): no long prompt holds a step for longer than its chunk takes.
    """

    backlog_s = BACKLOG_S

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = at_least_one(chunk_tokens)

    def wishes(self, view: View) -> list[Wish]:
        decodes = [Wish(one, 1) for one in view.decodes]
        return decodes + by_arrival(view, min(self._chunk_tokens, view.max_step_tokens - len(decodes)))


LONGEST_PAUSE_S = 60.0
"""Not even prefill_first keeps those who stream waiting for longer, whatever comes."""


class PrefillFirst:
    """Prefill by arrival, as much as a step holds; decode rows only in steps without any.

    How serving began (Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", 2022,
    and vLLM's first scheduler): first tokens come soon, and everyone who streams pauses while a long prompt is read.
    """

    backlog_s = BACKLOG_S

    def wishes(self, view: View) -> list[Wish]:
        prefills = by_arrival(view, view.max_step_tokens)
        if prefills and not any(view.now - one.waits_since > LONGEST_PAUSE_S for one in view.decodes):
            return prefills
        return [Wish(one, 1) for one in view.decodes]


class DecodeFirst:
    """Decode rows as long as there are any; prefill by arrival, as much as a step holds, in steps without.

    The batch that runs is finished before the next one is read (NVIDIA's FasterTransformer batched requests like
    this): whoever streams never pauses, and whoever comes waits for the longest answer.
    """

    backlog_s = math.inf
    """Its batches are as large as may run: who is not in one waits until it ends."""

    def wishes(self, view: View) -> list[Wish]:
        decodes = [Wish(one, 1) for one in view.decodes]
        return decodes if decodes else by_arrival(view, view.max_step_tokens)


def at_least_one(chunk_tokens: int) -> int:
    if chunk_tokens < 1:
        raise ValueError(f"a chunk has at least 1 token, not {chunk_tokens}")
    return chunk_tokens
