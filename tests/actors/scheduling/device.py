"""What stands for the device: a cache that remembers what was written where.

Each step's chunks are written into it when the step is planned, as (history up to and with the token, and whose it is),
which is what keys and values at a position depend on. A chunk whose table does not hold exactly its sequence's history
before `start` would be answered wrongly. Blocks are shared by those who only read them: one that is written belongs to
one table, and no other step that reads or writes it is in flight.
"""

from protocol.messages import Chunk, Step
from tests.actors.recorders import tokens_in


class Cache:
    """What each slot of each block holds: the history that its keys and values were computed from."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}

    def _slot(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self._block_size], position % self._block_size

    def holds(self, table: list[int], tenant: str, history: list[int]) -> bool:
        return all(
            self._slots.get(self._slot(table, position)) == (tenant, tuple(history[: position + 1]))
            for position in range(len(history))
        )

    def write(self, table: list[int], tenant: str, start: int, history: list[int]) -> None:
        for position in range(start, len(history)):
            self._slots[self._slot(table, position)] = tenant, tuple(history[: position + 1])


class Device:
    """Runs planned steps on a cache, and checks of each that it can be run as it is."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.cache = Cache(block_size)
        self.in_flight: list[Step] = []
        self.histories: dict[str, list[int]] = {}
        self.tenants: dict[str, str] = {}

    def written(self, chunk: Chunk) -> list[int]:
        """The blocks that it writes; those before them it only reads."""
        return tokens_in(chunk.blocks)[chunk.start // self.block_size :]

    def begin(self, step: Step) -> None:
        under_way = [chunk for earlier in self.in_flight for chunk in earlier.chunks]
        for chunk in step.chunks:
            history, tokens, table = self.histories[chunk.request], tokens_in(chunk.tokens), tokens_in(chunk.blocks)
            end = chunk.start + len(tokens)
            assert tokens, "an empty chunk"
            assert tokens == history[chunk.start : end]
            assert len(table) == len(set(table)) == -(-end // self.block_size)
            for other in (*under_way, *step.chunks):
                if other is not chunk:
                    assert not set(self.written(chunk)) & set(tokens_in(other.blocks)), "written, and another's too"
                    assert not set(self.written(other)) & set(table), "read before the step that writes it is done"
            tenant = self.tenants.get(chunk.request, "")
            assert self.cache.holds(table, tenant, history[: chunk.start]), "the table does not hold the history"
        for chunk in step.chunks:
            end = chunk.start + len(tokens_in(chunk.tokens))
            history = self.histories[chunk.request][:end]
            self.cache.write(tokens_in(chunk.blocks), self.tenants.get(chunk.request, ""), chunk.start, history)
        self.in_flight.append(step)

    def end(self) -> Step:
        """The oldest step: what it read and wrote must still be there."""
        step = self.in_flight.pop(0)
        for chunk in step.chunks:
            history = self.histories[chunk.request][: chunk.start + len(tokens_in(chunk.tokens))]
            assert self.cache.holds(tokens_in(chunk.blocks), self.tenants.get(chunk.request, ""), history)
        return step

    def lose(self) -> None:
        self.in_flight.clear()
        self.cache = Cache(self.block_size)
