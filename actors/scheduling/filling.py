"""A step from its first part to its result: what goes into it, what that adds up to, and what it touches meanwhile.

Knows the bounds of a step and how its work is counted. Does not know who should be in it (`policy.py`), nor where the
memory comes from (`memory.py`).
"""

import struct

from msgspec import Struct

from actors.scheduling.blocks import BlockTable
from actors.scheduling.costs import pairs
from actors.scheduling.sequence import Sequence
from protocol.messages import Chunk, Work

_TOKEN = struct.Struct("<i").pack

Part = tuple[Sequence, BlockTable, int, bool]
"""One sequence's part of a step: the table it was planned with, its tokens, and whether its next one is chosen."""


class InFlight(Struct):
    """A planned step whose result is not in: what it touches, so that nothing of it is reused before."""

    parts: list[Part]
    work: Work
    planned_at: float


class Filling:
    """A step as it fills: its parts, the chunks they make, and what is left of its bounds."""

    def __init__(self, max_step_tokens: int, max_step_rows: int) -> None:
        self.parts: list[Part] = []
        self.chunks: list[Chunk] = []
        self.tokens_left = max_step_tokens
        self.rows_left = max_step_rows
        self.prefill_tokens = 0
        self._prefill_pairs = 0
        self._prefill_context = 0
        self._decode_rows = 0
        self._decode_context = 0

    def work(self) -> Work:
        return Work(
            self.prefill_tokens, self._prefill_pairs, self._prefill_context, self._decode_rows, self._decode_context
        )

    def add_row(self, sequence: Sequence) -> None:
        """`add` of one token: what most parts of most steps are, and so worth its own few lines."""
        table, start, tokens = sequence.table, sequence.computed, sequence.tokens
        table.hold()
        sequence.steps_in_flight += 1
        choose = start + 1 == len(tokens) and sequence.max_output_tokens > 0
        self.parts.append((sequence, table, 1, choose))
        self.chunks.append(
            Chunk(
                sequence.request,
                start,
                _TOKEN(tokens[start]),
                table.first(start + 1),
                sequence.sampling if choose else None,
            )
        )
        self.tokens_left -= 1
        self.rows_left -= 1
        self._decode_rows += 1
        self._decode_context += start

    def add(self, sequence: Sequence, tokens: int) -> None:
        """`tokens` more of a sequence that has the blocks for them. Its table is held until the step's result is in."""
        if tokens == 1:
            self.add_row(sequence)
            return
        start = sequence.computed
        end = start + tokens
        choose = end == len(sequence.tokens) and sequence.max_output_tokens > 0
        table = sequence.table
        table.hold()
        sequence.steps_in_flight += 1
        self.parts.append((sequence, table, tokens, choose))
        self.chunks.append(
            Chunk(
                sequence.request,
                start,
                sequence.tokens[start:end].tobytes(),
                table.first(end),
                sequence.sampling if choose else None,
            )
        )
        self.tokens_left -= tokens
        self.rows_left -= 1
        self.prefill_tokens += tokens
        self._prefill_pairs += pairs(start, tokens)
        self._prefill_context += start
