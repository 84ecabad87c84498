"""What the next step runs: the choice itself, and nothing else.

A policy sees the sequences that could run and says how many tokens of which it wants; `schedule.py` finds the memory.
Knows no blocks, no messages, no clock of its own.
"""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from msgspec import Struct

from actors.scheduling.sequence import Sequence


class Wish(Struct, frozen=True):
    """`tokens` more tokens of `sequence` in this step, if there is memory for them."""

    sequence: Sequence
    tokens: int


class Policy(Protocol):
    """Orders the sequences that may run (`runnable`, by arrival: running ones, then waiting ones) into wishes."""

    def wishes(self, runnable: SequenceOf[Sequence], max_step_tokens: int) -> list[Wish]: ...


class FixedChunk:
    """Every decode row, then prefill by arrival until `chunk_tokens` prefill tokens are in the step.

    The plain form of chunked prefill beside running decodes (Agrawal et al., "SARATHI: Efficient LLM Inference by
    Piggybacking Decodes with Chunked Prefills", 2023): no long prompt holds a step for longer than its chunk takes.
    """

    def __init__(self, chunk_tokens: int) -> None:
        if chunk_tokens < 1:
            raise ValueError(f"a chunk has at least 1 token, not {chunk_tokens}")
        self._chunk_tokens = chunk_tokens

    def wishes(self, runnable: SequenceOf[Sequence], max_step_tokens: int) -> list[Wish]:
        decodes = [Wish(one, 1) for one in runnable if one.remaining == 1 and not one.waiting][:max_step_tokens]
        left = min(self._chunk_tokens, max_step_tokens - len(decodes))
        prefills = []
        for sequence in runnable:
            if left <= 0:
                break
            # However short, a prompt that waits for memory waits in its place.
            if sequence.remaining > 1 or sequence.waiting:
                tokens = min(sequence.remaining, left)
                prefills.append(Wish(sequence, tokens))
                left -= tokens
        return decodes + prefills
