"""Who holds memory, and who gives way for whom.

Plain code over a block pool: it knows sequences, their tables and the order in which they came. Knows no policy, no
steps' content and no costs.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection
from operator import attrgetter

from actors.scheduling.backlog import Backlog
from actors.scheduling.blocks import BlockPool
from actors.scheduling.sequence import Sequence
from actors.scheduling.waiting import Waiting

_order = attrgetter("order")


class Memory:
    """The pool, and every sequence: `running` ones hold blocks, by arrival; `waiting` ones hold none.

    Who came first never gives way to who came later, and a waiting sequence starts only when its whole history fits. A
    sequence that a step in flight includes is never preempted. `preemptions`: how often one has been, in all.
    """

    def __init__(self, pool: BlockPool, backlog: Backlog) -> None:
        self.pool = pool
        self.running: list[Sequence] = []
        self.waiting = Waiting()
        self.preemptions = 0
        self._backlog = backlog
        self._preempted: set[Sequence] = set()
        """Those of the waiting ones that had started."""
        self._short: Sequence | None = None
        """The first that was to start and found no memory: until it does, or is gone, nobody new comes in."""

    @property
    def is_short(self) -> bool:
        """Whether anybody was preempted or found no memory to start. Whoever is paused waits for a reader instead."""
        short = self._short
        return (short is not None and not short.paused) or any(not one.paused for one in self._preempted)

    def leave(self, sequence: Sequence) -> None:
        """It neither runs nor waits any more; its table is its own to drop."""
        if sequence.waiting:
            self.waiting.remove(sequence)
        else:
            self._stop_running(sequence)
        self._preempted.discard(sequence)
        if self._short is sequence:
            self._short = None

    def start(self, sequence: Sequence) -> bool:
        """Give a waiting sequence blocks for its whole history, those in the cache among them, if there are enough.

        Then it runs: the step that is being planned has to include it.
        """
        cached = self.cached(sequence)
        if not self._make_room_to_start(sequence, cached):
            if self._short is None or self._short.paused:
                self._short = sequence
            return False
        if self._short is sequence:
            self._short = None
        self._preempted.discard(sequence)
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_order)
        sequence.begin_with(cached, self.pool.block_size)
        sequence.table.grow(len(sequence.tokens))
        return True

    def cached(self, sequence: Sequence) -> list[int]:
        """The blocks its history can begin with, all but the newest token's."""
        if not self.pool.total:
            return []
        full = (len(sequence.tokens) - 1) // self.pool.block_size
        return self.pool.find(sequence.names(full, self.pool.block_size))

    def has_room_for(self, rows: list[Sequence]) -> bool:
        """Whether each of these that run finds the next block it needs, if it needs one, with nobody giving way."""
        size = self.pool.block_size
        needed = sum([one.planned >= len(one.table.blocks) * size for one in rows])
        return needed <= self.pool.available

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Get blocks for `tokens` more: from the pool, else from paused ones, else from those who came later.

        False when it has to sit this step out; when nobody came later, it is preempted itself.
        """
        target = sequence.planned + tokens
        while sequence.table.missing(target) > self.pool.available:
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.table.grow(target)
        return True

    def _make_room_to_start(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether its whole history fits beside the next block of everyone who runs; `cached` of it is here already.

        Paused ones give way for it.
        """
        running = sum(1 for one in self.running if not one.paused)
        needed = self.pool.blocks_for(len(sequence.tokens)) - len(cached) + running
        paused = [one for one in self.running if one.paused and not one.steps_in_flight]
        room = self.pool.available - self.pool.idle(cached)
        if room < needed:
            # What others hold too, or `sequence` is about to, comes back with none of them.
            held = Counter(block for one in paused for block in one.table.blocks)
            theirs = {block for block, count in held.items() if self.pool.references(block) == count}
            if room + len(theirs.difference(cached)) < needed:
                return False
        while self.pool.available - self.pool.idle(cached) < needed:
            self._preempt(paused.pop())
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """Who loses least: a paused one, else the last to come, perhaps `sequence` itself.

        None when those who came later are all in a step: they cannot be touched, and whoever came first keeps what it
        has. They leave their blocks in the end, as each of them gives way before `sequence` does.
        """
        idle = [one for one in self.running if not one.steps_in_flight]
        paused = [one for one in idle if one.paused]
        if paused:
            return paused[-1]
        later = [one for one in idle if one.order > sequence.order]
        if later:
            return later[-1]
        return sequence if self.running[-1] is sequence else None

    def _preempt(self, victim: Sequence) -> None:
        self._stop_running(victim)
        victim.preempt(self.pool)
        self.preemptions += 1
        self.waiting.add(victim)
        self._preempted.add(victim)
        self._backlog.recount(victim)

    def _stop_running(self, sequence: Sequence) -> None:
        place = bisect_left(self.running, sequence.order, key=_order)
        assert self.running[place] is sequence, f"{sequence.request} does not run"
        del self.running[place]

    def audit(self, sequences: Collection[Sequence]) -> None:
        """Raises AssertionError when those who run and wait are not `sequences`, all that are here."""
        assert len(self.running) + len(self.waiting) == len(sequences)
        assert self._preempted == {one for one in self.waiting if one.started}, "preempted ones are not told apart"
        assert all(not one.table.blocks for one in self.waiting), "a waiting sequence holds blocks"
        short = self._short
        assert short is None or (short.waiting and short in sequences), "it waits for memory no more"
