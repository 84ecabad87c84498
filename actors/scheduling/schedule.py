"""Whose turn it is: plans each step, finds it memory, and takes its result.

Plain synchronous code: time comes in as an argument, decisions come out as values. So the engine, the property tests
and a simulator run the same one. Knows sequences, blocks and a policy; knows no actors, no sockets, no text.
"""

from bisect import insort
from collections import Counter

from msgspec import Struct

from actors.scheduling.blocks import BlockPool, BlockTable, root
from actors.scheduling.policy import Policy
from actors.scheduling.sequence import Sequence
from protocol.messages import Chunk, Enqueue, FinishReason, RequestId, SampledToken, Step, StepDone, TokenRow


class _InFlight(Struct):
    """A planned step whose result is not in: what it touches, so that nothing of it is reused before."""

    parts: list[tuple[Sequence, BlockTable, int, bool]]
    """Sequence, the table it was planned with, how many tokens, and whether the next token is chosen."""


class Outcome(Struct, frozen=True):
    """What became of a step: `rows` for the detokeniser, `ended` sequences, and those whose memory is back."""

    rows: tuple[TokenRow, ...]
    ended: tuple[Sequence, ...]
    released: tuple[Sequence, ...]


class Schedule:
    """All admitted sequences. `waiting` ones hold no blocks (queued or preempted); the others are running.

    Who came first never gives way to who came later, and a waiting sequence starts only when its whole history fits:
    so with a pool that holds one full-context request the oldest sequence always gets on, whatever the others do.
    """

    def __init__(
        self, pool: BlockPool, policy: Policy, max_step_tokens: int, max_step_rows: int = 1 << 30, model: str = ""
    ) -> None:
        self.pool = pool
        self._policy = policy
        self._max_step_tokens = max_step_tokens
        self._max_step_rows = max_step_rows
        self._model = model
        """What makes equal tokens mean equal keys and values: the model and its RoPE settings."""
        self._sequences: dict[RequestId, Sequence] = {}
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._in_flight: dict[int, _InFlight] = {}
        self._arrivals = 0
        self._last_step = 0
        self._preemptions = 0

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def requests(self) -> tuple[RequestId, ...]:
        """Every request that is here or whose blocks a step in flight still touches."""
        planned = {part[0].request for step in self._in_flight.values() for part in step.parts}
        return tuple(planned.union(self._sequences))

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(self._sequences.values())

    @property
    def steps_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def preemptions(self) -> int:
        """How often a sequence has been preempted, in all."""
        return self._preemptions

    @property
    def waits_for_memory(self) -> bool:
        """Whether anything admitted has no blocks and would run if it had: then nothing more should come in."""
        return any(not one.paused for one in self._waiting)

    def get(self, request: RequestId) -> Sequence | None:
        return self._sequences.get(request)

    def add(self, enqueue: Enqueue, now: float) -> Sequence:
        """Take an admitted request. It waits, without blocks, for its turn."""
        assert enqueue.request not in self._sequences, f"{enqueue.request} came twice"
        self._arrivals += 1
        sequence = Sequence(enqueue, self._arrivals, self.pool, root(self._model, enqueue.tenant), now)
        self._sequences[sequence.request] = sequence
        self._waiting.append(sequence)
        return sequence

    def end(self, sequence: Sequence, reason: FinishReason) -> bool:
        """Take it off the schedule. Whether its memory is back at once; else a step in flight still touches it."""
        del self._sequences[sequence.request]
        (self._waiting if sequence.waiting else self._running).remove(sequence)
        sequence.finish(reason)
        return sequence.steps_in_flight == 0

    # --- planning ---

    def plan(self, now: float) -> Step | None:
        """The next step, its blocks allocated and held; None when nothing can run.

        Sequences that a step in flight includes are left alone: their next token is not known yet.
        """
        parts: list[tuple[Sequence, BlockTable, int, bool]] = []
        chunks: list[Chunk] = []
        size = self.pool.block_size
        memory_short = False
        for wish in self._policy.wishes(self._runnable(), self._max_step_tokens):
            if len(parts) == self._max_step_rows:
                break
            sequence = wish.sequence
            if sequence.waiting:
                # Nobody overtakes the first who waits for memory, or a long prompt would wait for ever.
                cached = [] if memory_short else self._cached(sequence)
                if memory_short or not self._make_room_to_start(sequence, cached):
                    memory_short = True
                    continue
                self._waiting.remove(sequence)
                insort(self._running, sequence, key=lambda one: one.order)
                sequence.begin_with(cached, size)
                sequence.table.grow(len(sequence.tokens))
            elif not self._make_room_to_grow(sequence, wish.tokens):
                memory_short = True
                continue
            count = min(wish.tokens, sequence.remaining)
            parts.append(self._hold(sequence, count))
            chunks.append(self._chunk(sequence, count))
            sequence.start(now)
        if not parts:
            return None
        self._last_step += 1
        self._in_flight[self._last_step] = _InFlight(parts)
        return Step(self._last_step, tuple(chunks))

    def _runnable(self) -> list[Sequence]:
        """Running ones first, then those that wait; each by arrival. The paused and the ones in flight are left out."""
        return [one for one in (*self._running, *self._waiting) if not one.paused and not one.steps_in_flight]

    def _cached(self, sequence: Sequence) -> list[int]:
        """The blocks its history can begin with, all but the newest token's."""
        full = (len(sequence.tokens) - 1) // self.pool.block_size
        return self.pool.find(sequence.names(full, self.pool.block_size))

    def _make_room_to_start(self, sequence: Sequence, cached: list[int]) -> bool:
        """Whether its whole history fits beside the next block of everyone who runs; `cached` of it is here already.

        Paused ones give way for it.
        """
        running = sum(1 for one in self._running if not one.paused)
        needed = self.pool.blocks_for(len(sequence.tokens)) - len(cached) + running
        paused = [one for one in self._running if one.paused and not one.steps_in_flight]
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

    def _make_room_to_grow(self, sequence: Sequence, tokens: int) -> bool:
        """Get blocks for `tokens` more: from the pool, else from paused ones, else from those who came later.

        False when it has to sit this step out; when nobody came later, it is preempted itself.
        """
        target = sequence.computed + tokens
        while sequence.table.missing(target) > self.pool.available:
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.table.grow(target)
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """Who loses least: a paused one, else the last to come, perhaps `sequence` itself.

        None when those who came later are all in a step: they cannot be touched, and whoever came first keeps what it
        has. They leave their blocks in the end, as each of them gives way before `sequence` does.
        """
        idle = [one for one in self._running if not one.steps_in_flight]
        paused = [one for one in idle if one.paused]
        if paused:
            return paused[-1]
        later = [one for one in idle if one.order > sequence.order]
        if later:
            return later[-1]
        return sequence if self._running[-1] is sequence else None

    def _preempt(self, victim: Sequence) -> None:
        self._running.remove(victim)
        victim.preempt(self.pool)
        self._preemptions += 1
        insort(self._waiting, victim, key=lambda one: one.order)

    def _hold(self, sequence: Sequence, tokens: int) -> tuple[Sequence, BlockTable, int, bool]:
        sequence.table.hold()
        sequence.steps_in_flight += 1
        choose = tokens == sequence.remaining and sequence.max_output_tokens > 0
        return sequence, sequence.table, tokens, choose

    def _chunk(self, sequence: Sequence, tokens: int) -> Chunk:
        start, end = sequence.computed, sequence.computed + tokens
        choose = end == len(sequence.tokens) and sequence.max_output_tokens > 0
        return Chunk(
            sequence.request,
            start,
            sequence.tokens[start:end].tobytes(),
            sequence.table.blocks[: self.pool.blocks_for(end)].tobytes(),
            sequence.sampling if choose else None,
        )

    # --- results ---

    def complete(self, done: StepDone, now: float) -> Outcome:
        """Take a step's result: let go of its blocks, append the chosen tokens, end what has ended.

        A step that is not in flight (its worker was lost) changes nothing.
        """
        step = self._in_flight.pop(done.step, None)
        if step is None:
            return Outcome((), (), ())
        tokens = iter(done.tokens)
        rows: list[TokenRow] = []
        ended: list[Sequence] = []
        released: list[Sequence] = []
        for sequence, table, count, choose in step.parts:
            chosen = next(tokens) if choose else None
            table.drop()
            sequence.steps_in_flight -= 1
            if sequence.reason is not None:
                if sequence.steps_in_flight == 0:
                    released.append(sequence)
                continue
            assert table is sequence.table, "a sequence in flight is not preempted"
            sequence.computed += count
            sequence.publish(self.pool)
            reason = self._take(sequence, chosen, rows, now)
            if reason is not None:
                ended.append(sequence)
                if self.end(sequence, reason):
                    released.append(sequence)
        return Outcome(tuple(rows), tuple(ended), tuple(released))

    def _take(
        self, sequence: Sequence, chosen: SampledToken | None, rows: list[TokenRow], now: float
    ) -> FinishReason | None:
        """Append the chosen token. Why the sequence has ended with it, or None."""
        if chosen is None:
            return "prefilled" if sequence.max_output_tokens == 0 and sequence.remaining == 0 else None
        last = sequence.append(chosen.token, now)
        rows.append(TokenRow(sequence.request, chosen, last))
        if not last:
            return None
        return "stop" if chosen.token in sequence.end_tokens else "length"

    def replace_pool(self, pool: BlockPool, model: str) -> None:
        """A new worker with an empty cache, and the model it serves.

        Only waiting sequences may be here: they hold nothing of the old one.
        """
        assert not self._in_flight, "a new pool, and steps of the old one are still in flight"
        assert not self._running, "a running sequence outlived its pool"
        self.pool = pool
        self._model = model
        for sequence in self._waiting:
            sequence.move_to(pool, root(model, sequence.tenant))

    def forget_steps(self) -> tuple[Sequence, ...]:
        """The worker is gone, and with it every step in flight. Those that had ended before and are free only now."""
        released = []
        for step in self._in_flight.values():
            for sequence, table, _, _ in step.parts:
                table.drop()
                sequence.steps_in_flight -= 1
                if sequence.reason is not None and sequence.steps_in_flight == 0:
                    released.append(sequence)
        self._in_flight.clear()
        return tuple(released)

    def audit(self) -> None:
        """Raises AssertionError when blocks or sequences do not add up."""
        self.pool.audit()
        tables = {id(one.table): one.table for one in self._sequences.values()}
        tables.update({id(table): table for step in self._in_flight.values() for _, table, _, _ in step.parts})
        held = Counter(block for table in tables.values() for block in table.blocks)
        assert len(held) == self.pool.used, f"{len(held)} blocks are in tables, {self.pool.used} are used"
        assert all(self.pool.references(block) == count for block, count in held.items()), "a count is wrong"
        assert len(self._running) + len(self._waiting) == len(self._sequences)
        assert all(not one.table.blocks for one in self._waiting), "a waiting sequence holds blocks"
