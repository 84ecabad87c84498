"""What stands for the device: a cache that remembers what was written where.

It runs one step at a time, in order: a step's chunks are written into the cache when the step before it has ended, as
(history up to and with the token, and whose it is), which is what keys and values at a position depend on. A token that
was not known when its row was planned is filled in then. A chunk whose table does not hold exactly its sequence's
history before `start` would be answered wrongly. Blocks are shared by those who only read them: one that is written
belongs to one table, and no other request that reads or writes it is in flight.
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
        self._read: list[list[int]] = []
        """Of each chunk of the step that runs, the history up to and with its last token."""

    def written(self, chunk: Chunk) -> list[int]:
        """The blocks that it writes; those before them it only reads."""
        return tokens_in(chunk.blocks)[chunk.start // self.block_size :]

    def begin(self, step: Step) -> None:
        """A step is planned. It runs at once, or when those before it have ended."""
        assert step.behind == (self.in_flight[-1].step if self.in_flight else 0)
        chosen = sampled(self.in_flight[-1]) if self.in_flight else []
        under_way = [chunk for earlier in self.in_flight for chunk in earlier.chunks]
        for chunk in step.chunks:
            history, tokens, table = self.histories[chunk.request], tokens_in(chunk.tokens), tokens_in(chunk.blocks)
            end = chunk.start + len(tokens)
            assert tokens, "an empty chunk"
            if chunk.follows < 0:
                assert tokens == history[chunk.start : end]
            else:
                assert tokens == [0]
                assert chosen[chunk.follows] == chunk.request, "it follows another's token"
                assert chunk.start == len(history), "a token that is known was not sent"
            assert len(table) == len(set(table)) == -(-end // self.block_size)
            for other in (*under_way, *step.chunks):
                if other.request != chunk.request:
                    assert not set(self.written(chunk)) & set(tokens_in(other.blocks)), "written, and another's too"
                    assert not set(self.written(other)) & set(table), "read before the step that writes it is done"
        self.in_flight.append(step)
        if len(self.in_flight) == 1:
            self._run([])

    def _run(self, chosen: list[int]) -> None:
        """The oldest step begins, behind one that chose these tokens."""
        step = self.in_flight[0]
        self._read = []
        for chunk in step.chunks:
            tokens = tokens_in(chunk.tokens) if chunk.follows < 0 else [chosen[chunk.follows]]
            history = self.histories[chunk.request][: chunk.start] + tokens
            table, tenant = tokens_in(chunk.blocks), self.tenants.get(chunk.request, "")
            assert len(history) == chunk.start + len(tokens), "it starts beyond what is known"
            assert self.cache.holds(table, tenant, history[: chunk.start]), "the table does not hold the history"
            self._read.append(history)
        for chunk, history in zip(step.chunks, self._read, strict=True):
            self.cache.write(tokens_in(chunk.blocks), self.tenants.get(chunk.request, ""), chunk.start, history)

    def end(self) -> Step:
        """The oldest step: what it read and wrote must still be there. `chose` comes next."""
        step = self.in_flight.pop(0)
        for chunk, history in zip(step.chunks, self._read, strict=True):
            assert self.cache.holds(tokens_in(chunk.blocks), self.tenants.get(chunk.request, ""), history)
        return step

    def chose(self, tokens: list[int]) -> None:
        """What the step that has just ended chose, for the next one."""
        if self.in_flight:
            self._run(tokens)

    def refuse(self) -> Step:
        """The oldest step has not been run after all."""
        return self.in_flight.pop(0)

    def lose(self) -> None:
        self.in_flight.clear()
        self.cache = Cache(self.block_size)


def sampled(step: Step) -> list[str]:
    """Whose tokens it chooses, in order."""
    return [chunk.request for chunk in step.chunks if chunk.sampling is not None]
