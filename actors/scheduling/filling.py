"""A step as it fills: what goes into it, and what that adds up to.

Knows the bounds of a step and how its work is counted. Does not know who should be in it (`policy.py`), nor where the
memory comes from (`memory.py`).
"""

import struct

from actors.scheduling.blocks import BlockTable
from actors.scheduling.costs import pairs
from actors.scheduling.sequence import Sequence
from protocol.messages import Chunk, Work

_TOKEN = struct.Struct("<i").pack
_UNKNOWN = _TOKEN(0)
"""Stands for a token that the step before is still to choose."""

Part = tuple[Sequence, BlockTable, int, bool]
"""One sequence's part of a step: the table it was planned with, its tokens, and whether its next one is chosen."""


class Filling:
    """A step as it fills: its parts, the chunks they make, and what is left of its bounds. `step`: its number."""

    def __init__(self, max_step_tokens: int, max_step_rows: int, step: int = 1) -> None:
        self.step = step
        self.parts: list[Part] = []
        self.chunks: list[Chunk] = []
        self.tokens_left = max_step_tokens
        self.rows_left = max_step_rows
        self.prefill_tokens = 0
        self._chosen = 0
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
        table, tokens, expected = sequence.table, sequence.tokens, sequence.expected
        start = sequence.computed + sequence.ahead
        if start < len(tokens):
            token, follows = _TOKEN(tokens[start]), -1
        else:
            assert sequence.newest_step == self.step - 1, "its token is chosen by an earlier step than the one before"
            token, follows = _UNKNOWN, sequence.place
        table.hold()
        sequence.steps_in_flight += 1
        sequence.ahead += 1
        sequence.newest_step = self.step
        choose = start + 1 == len(tokens) + expected and sequence.max_output_tokens > 0
        self.parts.append((sequence, table, 1, choose))
        sampling = None
        if choose:
            sampling = sequence.sampling
            sequence.expected = expected + 1
            sequence.place = self._chosen
            self._chosen += 1
        self.chunks.append(Chunk(sequence.request, start, token, table.first(start + 1), sampling, follows))
        self.tokens_left -= 1
        self.rows_left -= 1
        self._decode_rows += 1
        self._decode_context += start

    def add(self, sequence: Sequence, tokens: int) -> None:
        """`tokens` more of a sequence that has the blocks for them. Its table is held until the step's result is in."""
        if tokens == 1:
            self.add_row(sequence)
            return
        start = sequence.planned
        end = start + tokens
        table = sequence.table
        table.hold()
        sequence.steps_in_flight += 1
        sequence.ahead += tokens
        sequence.newest_step = self.step
        choose = end == len(sequence.tokens) and sequence.max_output_tokens > 0
        self.parts.append((sequence, table, tokens, choose))
        if choose:
            sequence.expected = 1
            sequence.place = self._chosen
            self._chosen += 1
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
