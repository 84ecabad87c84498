"""Whose turn it is: plans each step, finds it memory, and takes its result.

Plain synchronous code: time comes in as an argument, decisions come out as values. So the engine, the property tests
and a simulator run the same one. Knows sequences, blocks and a policy; knows no actors, no sockets, no text.
"""

import struct
from bisect import bisect_left, insort
from collections import Counter, deque
from operator import attrgetter

from msgspec import Struct

from actors.scheduling.blocks import BlockPool, BlockTable, root
from actors.scheduling.costs import Costs, pairs
from actors.scheduling.policy import NOBODY, Policy, View, Wish
from actors.scheduling.sequence import Sequence, State
from actors.scheduling.waiting import Waiting
from protocol.messages import (
    Chunk,
    CostsLearned,
    Credit,
    Enqueue,
    FinishReason,
    RequestId,
    SampledToken,
    Step,
    StepDone,
    TokenRow,
    Work,
)

USUAL_OUTPUT_TOKENS = 128.0
"""Of an answer, before any has ended."""
USUAL_MEMORY = 0.95
DELAYS_KEPT, DELAYS_KNOWN, DELAY_SHARE = 64, 8, 0.8
"""First tokens come later than their prefill alone takes: how much, for all but a fifth of the latest ones."""
_MOST_BACKLOG = 1 << 20
_TOKEN = struct.Struct("<i").pack
_order = attrgetter("order")


_Part = tuple[Sequence, BlockTable, int, bool]
"""One sequence's part of a step: the table it was planned with, its tokens, and whether its next one is chosen."""


class _InFlight(Struct):
    """A planned step whose result is not in: what it touches, so that nothing of it is reused before."""

    parts: list[_Part]
    work: Work
    planned_at: float


class Outcome(Struct, frozen=True):
    """What became of a step: `rows` for the detokeniser, `ended` sequences, and those whose memory is back."""

    rows: tuple[TokenRow, ...]
    ended: tuple[Sequence, ...]
    released: tuple[Sequence, ...]


class Schedule:
    """All admitted sequences. `waiting` ones hold no blocks (queued or preempted); the others are running.

    The policy says who runs next; who keeps memory goes by arrival. Who came first never gives way to who came later,
    and a waiting sequence starts only when its whole history fits. While one that was to start has found no memory,
    nobody new may come in (`credit`): so with a pool that holds one full-context request everyone gets on in the end,
    whatever the others do.
    """

    def __init__(
        self,
        pool: BlockPool,
        policy: Policy,
        max_step_tokens: int,
        max_step_rows: int = 1 << 30,
        model: str = "",
        costs: Costs | None = None,
    ) -> None:
        self.pool = pool
        self.costs = Costs() if costs is None else costs
        self._policy = policy
        self._max_step_tokens = max_step_tokens
        self._max_step_rows = max_step_rows
        self._model = model
        """What makes equal tokens mean equal keys and values: the model and its RoPE settings."""
        self._sequences: dict[RequestId, Sequence] = {}
        self._running: list[Sequence] = []
        self._waiting = Waiting()
        self._in_flight: dict[int, _InFlight] = {}
        self._arrivals = 0
        self._arrived_tokens = 0
        self._granted = Credit(0, 0)
        self._usual_output_tokens = USUAL_OUTPUT_TOKENS
        self._delays: deque[float] = deque(maxlen=DELAYS_KEPT)
        self._last_step = 0
        self._preemptions = 0
        self._preempted: set[Sequence] = set()
        """Those of the waiting ones that had started."""
        self._backlog = 0
        self._paused = 0
        self._short_of_memory: Sequence | None = None
        """The first that was to start and found no memory: until it does, or is gone, nobody new comes in."""

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
    def backlog_tokens(self) -> int:
        """Tokens of prefill that those who are here and not paused still have before them."""
        return self._backlog

    @property
    def waits_for_memory(self) -> bool:
        """Whether anything admitted was preempted or found no memory to start: then nothing more should come in."""
        short = self._short_of_memory
        return (short is not None and not short.paused) or any(not one.paused for one in self._preempted)

    def credit(self, max_running: int) -> Credit:
        """How many may have come in all: as many as may run beside those who do, with no more prefill before them
        than the policy wants to choose from; and nobody more while anything waits for memory.

        A paused one leaves its place to another, or a few readers who have stopped would keep everyone out; but no
        more than twice as many are here as may run.
        """
        if not self.waits_for_memory:
            here = len(self._sequences)
            granted = self._arrivals + min(max_running - (here - self._paused), 2 * max_running - here)
            room = self.costs.largest_chunk(0, _MOST_BACKLOG, self._policy.backlog_s) - self._backlog
            tokens = self._arrived_tokens + max(room, 0 if self._backlog else 1)
            self._granted = Credit(max(granted, self._granted.granted), max(tokens, self._granted.tokens))
        return self._granted

    def learned(self) -> CostsLearned:
        """What work costs now, for whoever has to predict it."""
        delays = sorted(self._delays)
        reserve_s = delays[int(DELAY_SHARE * len(delays))] if len(delays) >= DELAYS_KNOWN else 0.0
        return CostsLearned(tuple(self.costs.coefficients), self._usual_output_tokens, reserve_s)

    def get(self, request: RequestId) -> Sequence | None:
        return self._sequences.get(request)

    def add(self, enqueue: Enqueue, now: float) -> Sequence:
        """Take an admitted request. It waits, without blocks, for its turn."""
        assert enqueue.request not in self._sequences, f"{enqueue.request} came twice"
        self._arrivals += 1
        self._arrived_tokens += len(enqueue.tokens) // 4
        sequence = Sequence(enqueue, self._arrivals, self.pool, root(self._model, enqueue.tenant), now)
        self._sequences[sequence.request] = sequence
        self._waiting.add(sequence)
        sequence.cached_hint = len(self._cached(sequence)) * self.pool.block_size
        sequence.alone_s = self._prefill_s(sequence)
        self._recount(sequence)
        return sequence

    def end(self, sequence: Sequence, reason: FinishReason) -> bool:
        """Take it off the schedule. Whether its memory is back at once; else a step in flight still touches it."""
        del self._sequences[sequence.request]
        if sequence.waiting:
            self._waiting.remove(sequence)
        else:
            self._stop_running(sequence)
        self._preempted.discard(sequence)
        self._paused -= sequence.paused
        if self._short_of_memory is sequence:
            self._short_of_memory = None
        sequence.finish(reason)
        self._recount(sequence)
        return sequence.steps_in_flight == 0

    def first_token_s(self, sequence: Sequence, hoped_s: float) -> float:
        """Seconds that the prefill of a waiting sequence takes, if it starts now and has the device to itself.

        When that is more than `hoped_s`, it is looked up whether more of it is in the cache by now.
        """
        if self._prefill_s(sequence) > hoped_s:
            sequence.cached_hint = len(self._cached(sequence)) * self.pool.block_size
            self._recount(sequence)
        return self._prefill_s(sequence)

    def _prefill_s(self, sequence: Sequence) -> float:
        start = sequence.cached_hint
        return self.costs.base_s + self.costs.chunk_s(start, len(sequence.tokens) - start)

    def set_paused(self, sequence: Sequence, paused: bool, now: float) -> None:
        """Its reader has fallen behind, or caught up."""
        self._paused += paused - sequence.paused
        sequence.set_paused(paused, now)
        self._recount(sequence)

    def _recount(self, sequence: Sequence) -> None:
        """Its share of the backlog has changed, perhaps."""
        left = 0
        if sequence.reason is None and not sequence.paused:
            left = sequence.remaining - (sequence.cached_hint if sequence.waiting else 0)
            if left == 1 and not sequence.waiting:
                left = 0
        self._backlog += left - sequence.counted
        sequence.counted = left

    def _stop_running(self, sequence: Sequence) -> None:
        place = bisect_left(self._running, sequence.order, key=_order)
        assert self._running[place] is sequence, f"{sequence.request} does not run"
        del self._running[place]

    # --- planning ---

    def plan(self, now: float) -> Step | None:
        """The next step, its blocks allocated and held; None when nothing can run.

        Sequences that a step in flight includes are left alone: their next token is not known yet.
        """
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for one in self._running:
            if not one.paused and not one.steps_in_flight:
                (decodes if len(one.tokens) - one.computed == 1 else prefills).append(one)
        view = View(now, decodes, prefills, self._waiting, self._max_step_tokens, self.costs)
        filling = _Filling(self._max_step_tokens, self._max_step_rows)
        denied = self._fill(self._policy.wishes(view), view, filling)
        if denied and not filling.prefill_tokens:
            # Whoever waits cannot start, and must not keep those from running who can.
            view.waiting = NOBODY
            self._fill(self._policy.wishes(view), view, filling)
        if not filling.parts:
            # Those it chose found no memory, or have given theirs to others: whoever finds some runs.
            everyone = [*decodes, *prefills]
            self._fill([Wish(one, one.remaining) for one in everyone if not one.waiting], view, filling)
        if not filling.parts:
            return None
        self._last_step += 1
        self._in_flight[self._last_step] = _InFlight(filling.parts, filling.work(), now)
        return Step(self._last_step, tuple(filling.chunks))

    def _fill(self, wishes: list[Wish], view: View, filling: "_Filling") -> bool:
        """Find memory for what is wished. Whether somebody who waits found none."""
        rows = [wish.sequence for wish in wishes if wish.tokens == 1 and not wish.sequence.waiting]
        del rows[min(filling.rows_left, filling.tokens_left) :]
        # Those who came first grow first, or they would find that everyone who could give way is in the step already.
        rows.sort(key=_order)
        size = self.pool.block_size
        for one in rows:
            if one.steps_in_flight or one.waiting:
                continue  # in the step already, or preempted for one that came before
            if one.computed < len(one.table.blocks) * size or self._make_room_to_grow(one, 1):
                filling.add_row(one)
                one.start(view.now)
        denied = False
        for wish in wishes:
            sequence = wish.sequence
            if sequence.steps_in_flight or sequence.paused:
                continue
            tokens = min(wish.tokens, sequence.remaining, filling.tokens_left)
            if not tokens or not filling.rows_left:
                break
            if sequence.waiting:
                # Nobody overtakes within a step who waits for memory, or a long prompt would wait for ever.
                if denied or not self._start(sequence):
                    denied = True
                    continue
                tokens = min(tokens, sequence.remaining)
            elif wish.tokens == 1 or not self._make_room_to_grow(sequence, tokens):
                continue
            filling.add(sequence, tokens)
            sequence.start(view.now)
        return denied

    def _start(self, sequence: Sequence) -> bool:
        """Give a waiting sequence blocks for its whole history, those in the cache among them, if there are enough."""
        cached = self._cached(sequence)
        if not self._make_room_to_start(sequence, cached):
            if self._short_of_memory is None or self._short_of_memory.paused:
                self._short_of_memory = sequence
            return False
        if self._short_of_memory is sequence:
            self._short_of_memory = None
        self._preempted.discard(sequence)
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_order)
        sequence.begin_with(cached, self.pool.block_size)
        sequence.table.grow(len(sequence.tokens))
        return True

    def _cached(self, sequence: Sequence) -> list[int]:
        """The blocks its history can begin with, all but the newest token's."""
        if not self.pool.total:
            return []
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
        self._stop_running(victim)
        victim.preempt(self.pool)
        self._preemptions += 1
        self._waiting.add(victim)
        self._preempted.add(victim)
        self._recount(victim)

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
        self.costs.learn(step.work, done.took_s, now - step.planned_at)
        size = self.pool.block_size
        for sequence, table, count, choose in step.parts:
            chosen = next(tokens) if choose else None
            table.drop()
            sequence.steps_in_flight -= 1
            sequence.computed += count
            if sequence.reason is not None:
                if sequence.steps_in_flight == 0:
                    released.append(sequence)
                continue
            assert table is sequence.table, "a sequence in flight is not preempted"
            if sequence.computed % size < count:
                sequence.publish(self.pool)
            reason = self._take(sequence, chosen, rows, now)
            if reason is not None:
                ended.append(sequence)
                if self.end(sequence, reason):
                    released.append(sequence)
            elif sequence.counted:
                self._recount(sequence)
        for sequence in ended:
            if sequence.output_tokens:
                usual = self._usual_output_tokens
                self._usual_output_tokens = USUAL_MEMORY * usual + (1 - USUAL_MEMORY) * sequence.output_tokens
        return Outcome(tuple(rows), tuple(ended), tuple(released))

    def _take(
        self, sequence: Sequence, chosen: SampledToken | None, rows: list[TokenRow], now: float
    ) -> FinishReason | None:
        """Append the chosen token. Why the sequence has ended with it, or None."""
        if chosen is None:
            return "prefilled" if sequence.max_output_tokens == 0 and sequence.remaining == 0 else None
        if sequence.state is State.PREFILLING:
            self._learn_delay(sequence, now)
        last = sequence.append(chosen.token, now)
        rows.append(TokenRow(sequence.request, chosen, last))
        if not last:
            return None
        return "stop" if chosen.token in sequence.end_tokens else "length"

    def _learn_delay(self, sequence: Sequence, now: float) -> None:
        """Its first token is there. How much later than if it had had the device to itself?

        Whoever could not have been in time even so had to stand aside, and says nothing of the others.
        """
        came_at = sequence.last_token_at
        if came_at + sequence.alone_s <= sequence.first_token_due:
            self._delays.append(max(0.0, now - came_at - sequence.alone_s))

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
            self._recount(sequence)

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
        assert self._preempted == {one for one in self._waiting if one.started}, "preempted ones are not told apart"
        assert all(not one.table.blocks for one in self._waiting), "a waiting sequence holds blocks"
        backlog = sum(one.counted for one in self._sequences.values())
        assert self._backlog == backlog, f"a backlog of {self._backlog} tokens was counted, {backlog} are there"
        assert self._paused == sum(one.paused for one in self._sequences.values()), "paused ones were miscounted"
        short = self._short_of_memory
        assert short is None or (short.waiting and short.request in self._sequences), "it waits for memory no more"


class _Filling:
    """A step as it fills: its parts, the chunks they make, and what is left of its bounds."""

    def __init__(self, max_step_tokens: int, max_step_rows: int) -> None:
        self.parts: list[_Part] = []
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
