"""Whose turn it is: plans each step, finds it memory, and takes its result.

Plain synchronous code: time comes in as an argument, decisions come out as values. So the engine, the property tests
and a simulator run the same one. Who holds memory is kept in `memory.py`, what goes into a step in `filling.py`. Knows
sequences and a policy; knows no actors, no sockets, no text.
"""

from collections import Counter, deque
from operator import attrgetter

from msgspec import Struct

from actors.scheduling.backlog import Backlog
from actors.scheduling.blocks import BlockPool, root
from actors.scheduling.costs import Costs
from actors.scheduling.filling import Filling, InFlight
from actors.scheduling.memory import Memory
from actors.scheduling.policy import NOBODY, Policy, View, Wish
from actors.scheduling.sequence import Sequence, State
from protocol.messages import (
    CostsLearned,
    Credit,
    Enqueue,
    FinishReason,
    RequestId,
    SampledToken,
    Step,
    StepDone,
    TokenRow,
)

USUAL_OUTPUT_TOKENS = 128.0
"""Of an answer, before any has ended."""
USUAL_MEMORY = 0.95
DELAYS_KEPT, DELAYS_KNOWN, DELAY_SHARE = 64, 8, 0.8
"""First tokens come later than their prefill alone takes: how much, for all but a fifth of the latest ones."""
_MOST_BACKLOG = 1 << 20
_order = attrgetter("order")
_last_token_at = attrgetter("last_token_at")


class Outcome(Struct, frozen=True):
    """What became of a step: `rows` for the detokeniser, `ended` sequences, and those whose memory is back."""

    rows: tuple[TokenRow, ...]
    ended: tuple[Sequence, ...]
    released: tuple[Sequence, ...]


class Schedule:
    """All admitted sequences. Waiting ones hold no blocks (queued or preempted); the others are running.

    The policy says who runs next; who keeps memory goes by arrival (`Memory`). While one that was to start has found no
    memory, nobody new may come in (`credit`): so with a pool that holds one full-context request everyone gets on in
    the end, whatever the others do.
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
        self._backlog = Backlog()
        self._memory = Memory(pool, self._backlog)
        self.costs = Costs() if costs is None else costs
        self._policy = policy
        self._max_step_tokens = max_step_tokens
        self._max_step_rows = max_step_rows
        self._most_rows = min(max_step_rows, max_step_tokens)
        self._model = model
        """What makes equal tokens mean equal keys and values: the model and its RoPE settings."""
        self._sequences: dict[RequestId, Sequence] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._arrivals = 0
        self._arrived_tokens = 0
        self._granted = Credit(0, 0)
        self._usual_output_tokens = USUAL_OUTPUT_TOKENS
        self._delays: deque[float] = deque(maxlen=DELAYS_KEPT)
        self._last_step = 0
        self._paused = 0

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def pool(self) -> BlockPool:
        return self._memory.pool

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
        return self._memory.preemptions

    @property
    def backlog_tokens(self) -> int:
        """Tokens of prefill that those who are here and not paused still have before them."""
        return self._backlog.tokens

    @property
    def waits_for_memory(self) -> bool:
        """Whether anything admitted was preempted or found no memory to start: then nothing more should come in."""
        return self._memory.is_short

    def credit(self, max_running: int) -> Credit:
        """How many may have come in all: as many as may run beside those who do, with no more prefill before them
        than the policy wants to choose from; and nobody more while anything waits for memory. Where they have more
        than that before them, its tokens are fewer than have come, by how many: beside so much whoever has little to
        read may come in all the same, and it is for the waiting room to say who (`WaitingRoom.next`).

        A paused one leaves its place to another, or a few readers who have stopped would keep everyone out; but no
        more than twice as many are here as may run.
        """
        if not self.waits_for_memory:
            here = len(self._sequences)
            granted = self._arrivals + min(max_running - (here - self._paused), 2 * max_running - here)
            room = self.costs.largest_chunk(0, _MOST_BACKLOG, self._policy.backlog_s)
            tokens = self._arrived_tokens + (room - self._backlog.tokens if self._backlog.tokens else max(room, 1))
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
        self._memory.waiting.add(sequence)
        sequence.cached_hint = len(self._memory.cached(sequence)) * self.pool.block_size
        sequence.alone_s = self._prefill_s(sequence)
        self._backlog.recount(sequence)
        return sequence

    def end(self, sequence: Sequence, reason: FinishReason) -> bool:
        """Take it off the schedule. Whether its memory is back at once; else a step in flight still touches it."""
        del self._sequences[sequence.request]
        self._memory.leave(sequence)
        self._paused -= sequence.paused
        sequence.finish(reason)
        self._backlog.recount(sequence)
        return sequence.steps_in_flight == 0

    def first_token_s(self, sequence: Sequence, hoped_s: float) -> float:
        """Seconds that the prefill of a waiting sequence takes, if it starts now and has the device to itself.

        When that is more than `hoped_s`, it is looked up whether more of it is in the cache by now.
        """
        if self._prefill_s(sequence) > hoped_s:
            sequence.cached_hint = len(self._memory.cached(sequence)) * self.pool.block_size
            self._backlog.recount(sequence)
        return self._prefill_s(sequence)

    def _prefill_s(self, sequence: Sequence) -> float:
        start = sequence.cached_hint
        return self.costs.base_s + self.costs.chunk_s(start, len(sequence.tokens) - start)

    def set_paused(self, sequence: Sequence, paused: bool, now: float) -> None:
        """Its reader has fallen behind, or caught up."""
        self._paused += paused - sequence.paused
        sequence.set_paused(paused, now)
        self._backlog.recount(sequence)

    # --- planning ---

    def plan(self, now: float) -> Step | None:
        """The next step, its blocks allocated and held; None when nothing can run.

        Sequences that a step in flight includes are left alone: their next token is not known yet. Where there are more
        rows than a step holds, as when readers come back to whose places others have, they take turns; and one row is
        left for whoever has a prompt to read, of a single one every second time.
        """
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for one in self._memory.running:
            if not one.paused and not one.steps_in_flight:
                (decodes if len(one.tokens) - one.computed == 1 else prefills).append(one)
        rows = decodes if len(decodes) < self._most_rows else self._in_turn(decodes, bool(prefills))
        view = View(now, rows, prefills, self._memory.waiting, self._max_step_tokens, self.costs)
        filling = Filling(self._max_step_tokens, self._max_step_rows)
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
        self._in_flight[self._last_step] = InFlight(filling.parts, filling.work(), now)
        return Step(self._last_step, tuple(filling.chunks))

    def _in_turn(self, decodes: list[Sequence], somebody_reads: bool) -> list[Sequence]:
        """Of as many rows as a step holds, or more, those that have gone longest without a token."""
        most = self._most_rows
        if somebody_reads or any(not one.paused for one in self._memory.waiting):
            most -= 1 if most > 1 else self._last_step % 2
        if len(decodes) <= most:
            return decodes
        return sorted(sorted(decodes, key=_last_token_at)[:most], key=_order)

    def _fill(self, wishes: list[Wish], view: View, filling: Filling) -> bool:
        """Find memory for what is wished. Whether somebody who waits found none."""
        rows = [wish.sequence for wish in wishes if wish.tokens == 1 and not wish.sequence.waiting]
        # Those who came first grow first, or they would find that everyone who could give way is in the step already.
        rows.sort(key=_order)
        size = self.pool.block_size
        for one in rows:
            if not filling.rows_left or not filling.tokens_left:
                break
            if one.steps_in_flight or one.waiting:
                continue  # in the step already, or preempted for one that came before
            if one.computed < len(one.table.blocks) * size or self._memory.grow(one, 1):
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
                if denied or not self._memory.start(sequence):
                    denied = True
                    continue
                tokens = min(tokens, sequence.remaining)
            elif wish.tokens == 1 or not self._memory.grow(sequence, tokens):
                continue
            filling.add(sequence, tokens)
            sequence.start(view.now)
        return denied

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
                self._backlog.recount(sequence)
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
        assert not self._memory.running, "a running sequence outlived its pool"
        self._memory.pool = pool
        self._model = model
        for sequence in self._memory.waiting:
            sequence.move_to(pool, root(model, sequence.tenant))
            self._backlog.recount(sequence)

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
        self._memory.audit(self._sequences.values())
        self._backlog.audit(self._sequences.values())
        assert self._paused == sum(one.paused for one in self._sequences.values()), "paused ones were miscounted"
