"""Whose turn it is: plans each step, finds it memory, and takes its result.

Plain synchronous code: time comes in as an argument, decisions come out as values. So the engine, the property tests
and a simulator run the same one. Who holds memory is kept in `memory.py`, what goes into a step in `filling.py`, what
is in flight in `in_flight.py`. Knows sequences and a policy; knows no actors, no sockets, no text.

One step may be planned behind another that still runs. Then its rows may follow tokens that are not chosen yet; and a
row whose sequence turns out to have ended before is wasted: its result is dropped, and its blocks go back with it.
"""

from collections import Counter
from operator import attrgetter

from msgspec import Struct

from actors.scheduling.backlog import Backlog
from actors.scheduling.blocks import BlockPool, root
from actors.scheduling.costs import Costs
from actors.scheduling.filling import Filling
from actors.scheduling.in_flight import Flight, InFlight, let_go
from actors.scheduling.memory import Memory
from actors.scheduling.policy import NOBODY, Policy, View, Wish
from actors.scheduling.sequence import Sequence, State
from actors.scheduling.step_bounds import StepBounds
from actors.scheduling.usual import Usual
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

_MOST_BACKLOG = 1 << 20
_order = attrgetter("order")
_waits_since = attrgetter("waits_since")


class Outcome(Struct, frozen=True):
    """What became of a step: `rows` for the detokeniser, `ended` sequences, and those whose memory is back."""

    rows: tuple[TokenRow, ...]
    ended: tuple[Sequence, ...]
    released: tuple[Sequence, ...]


class Failure(Struct, frozen=True):
    """What became of a step that was not run: it held so many tokens and rows, and memory is back of `released`.

    `follows`: it failed because the one that it was planned behind did. `hopeless`: the one whose single token it was,
    which no smaller step can run.
    """

    tokens: int
    rows: int
    follows: bool
    released: tuple[Sequence, ...]
    hopeless: Sequence | None = None


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
        self.bounds = StepBounds(max_step_tokens, max_step_rows)
        self._model = model
        """What makes equal tokens mean equal keys and values: the model and its RoPE settings."""
        self._sequences: dict[RequestId, Sequence] = {}
        self._in_flight = Flight()
        self._arrivals = 0
        self._arrived_tokens = 0
        self._granted = Credit(0, 0)
        self._usual = Usual()
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
        planned = {part[0].request for step in self._in_flight for part in step.parts}
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

        A paused one leaves its place to another, or a few readers who have stopped would keep everyone out. How many of
        those may be here is bounded by key (`KeyPlaces`).
        """
        if not self.waits_for_memory:
            granted = self._arrivals + max_running - (len(self._sequences) - self._paused)
            room = self.costs.largest_chunk(0, _MOST_BACKLOG, self._policy.backlog_s)
            tokens = self._arrived_tokens + (room - self._backlog.tokens if self._backlog.tokens else max(room, 1))
            self._granted = Credit(max(granted, self._granted.granted), max(tokens, self._granted.tokens))
        return self._granted

    def learned(self) -> CostsLearned:
        """What work costs now, for whoever has to predict it."""
        return CostsLearned(tuple(self.costs.coefficients), self._usual.output_tokens, self._usual.delay_s)

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

    def begins_at(self, now: float) -> float:
        """When a step that is planned now begins: when those in flight have ended, as predicted."""
        return self._in_flight.ends_at(self.costs, now)

    def plan(self, now: float) -> Step | None:
        """The next step, its blocks allocated and held; None when nothing can run, or not before a result is in.

        Where there are more rows than a step holds, as when readers come back to whose places others have, they take
        turns; and one row is left for whoever has a prompt to read, of a single one every second time.
        """
        flight, bounds = self._in_flight, self.bounds
        if flight.doomed:
            return None
        begins_at = flight.ends_at(self.costs, now)
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for one in self._memory.running:
            if one.paused:
                continue
            if one.expected:
                if one.may_go_on:
                    one.expected_at = begins_at
                    decodes.append(one)
            # `remaining`, written out: this is asked of everyone who runs, at every step.
            elif (left := len(one.tokens) - one.computed - one.ahead) == 1:
                decodes.append(one)
            elif left:
                prefills.append(one)
        if len(flight) and not self._memory.has_room_for(decodes):
            return None
        rows = decodes if len(decodes) < bounds.most_rows else self._in_turn(decodes, bool(prefills))
        view = View(begins_at, rows, prefills, self._memory.waiting, bounds.tokens, self.costs)
        filling = Filling(bounds.tokens, bounds.rows, self._last_step + 1)
        denied = self._fill(self._policy.wishes(view), filling, now)
        if denied and not filling.prefill_tokens:
            # Whoever waits cannot start, and must not keep those from running who can.
            view.waiting = NOBODY
            self._fill(self._policy.wishes(view), filling, now)
        if not filling.parts:
            # Those it chose found no memory, or have given theirs to others: whoever finds some runs.
            view.decodes, view.waiting = [], NOBODY
            view.prefills = [one for one in prefills if not one.waiting]
            rows = [one for one in decodes if not one.waiting]
            self._fill([*(Wish(one, 1) for one in rows), *self._policy.wishes(view)], filling, now)
        if not filling.parts:
            return None
        step = Step(filling.step, tuple(filling.chunks), flight.newest)
        flight.begin(filling.step, InFlight(filling.parts, filling.work(), begins_at))
        self._last_step = filling.step
        return step

    def _in_turn(self, decodes: list[Sequence], somebody_reads: bool) -> list[Sequence]:
        """Of as many rows as a step holds, or more, those that have gone longest without a token."""
        most = self.bounds.most_rows
        if somebody_reads or any(not one.paused for one in self._memory.waiting):
            most -= 1 if most > 1 else self._last_step % 2
        if len(decodes) <= most:
            return decodes
        return sorted(sorted(decodes, key=_waits_since)[:most], key=_order)

    def _fill(self, wishes: list[Wish], filling: Filling, now: float) -> bool:
        """Find memory for what is wished. Whether somebody who waits found none."""
        rows = [wish.sequence for wish in wishes if wish.tokens == 1 and not wish.sequence.waiting]
        # Those who came first grow first, or they would find that everyone who could give way is in the step already.
        rows.sort(key=_order)
        size = self.pool.block_size
        for one in rows:
            if not filling.rows_left or not filling.tokens_left:
                break
            if one.newest_step == filling.step or one.waiting:
                continue  # in the step already, or preempted for one that came before
            if one.computed + one.ahead < len(one.table.blocks) * size or self._memory.grow(one, 1):
                filling.add_row(one)
                one.start(now)
        denied = False
        for wish in wishes:
            sequence = wish.sequence
            if sequence.newest_step == filling.step or sequence.paused:
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
            sequence.start(now)
        return denied

    # --- results ---

    def complete(self, done: StepDone, now: float) -> Outcome:
        """Take a step's result: let go of its blocks, append the chosen tokens, end what has ended.

        A step that is not in flight (its worker was lost) changes nothing.
        """
        step = self._in_flight.end(done.step, now)
        if step is None:
            return Outcome((), (), ())
        assert not step.doomed, "a step was run behind one that was not"
        tokens = iter(done.tokens)
        rows: list[TokenRow] = []
        ended: list[Sequence] = []
        released: list[Sequence] = []
        self.costs.learn(step.work, done.took_s, now - step.begins_at)
        self.bounds.ran()
        size = self.pool.block_size
        for sequence, table, count, choose in step.parts:
            chosen = next(tokens) if choose else None
            table.drop()
            sequence.leave_step(count, choose)
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
            self._usual.ended(sequence)
        return Outcome(tuple(rows), tuple(ended), tuple(released))

    def _take(
        self, sequence: Sequence, chosen: SampledToken | None, rows: list[TokenRow], now: float
    ) -> FinishReason | None:
        """Append the chosen token. Why the sequence has ended with it, or None."""
        if chosen is None:
            whole = sequence.computed == len(sequence.tokens)
            return "prefilled" if sequence.max_output_tokens == 0 and whole else None
        if sequence.state is State.PREFILLING:
            self._usual.first_token(sequence, now)
        last = sequence.append(chosen.token, now)
        rows.append(TokenRow(sequence.request, chosen, last))
        if not last:
            return None
        return "stop" if chosen.token in sequence.end_tokens else "length"

    def fail(self, number: int, now: float) -> Failure | None:
        """A step was not run: it counts as never planned, and from now on they are smaller.

        What was planned behind it fails too, and nothing is planned until then. None: it is not in flight.
        """
        step = self._in_flight.end(number, now)
        if step is None:
            return None
        released, tokens, rows = tuple(let_go(step)), step.tokens, len(step.parts)
        if step.doomed:
            return Failure(tokens, rows, True, released)
        self._in_flight.doom()
        if self.bounds.shrink(tokens, rows) or step.parts[0][0].reason is not None:
            return Failure(tokens, rows, False, released)
        return Failure(tokens, rows, False, released, step.parts[0][0])

    def replace_pool(self, pool: BlockPool, model: str) -> None:
        """A new worker with an empty cache, and the model it serves.

        Only waiting sequences may be here: they hold nothing of the old one.
        """
        assert not len(self._in_flight), "a new pool, and steps of the old one are still in flight"
        assert not self._memory.running, "a running sequence outlived its pool"
        self._memory.pool = pool
        self._model = model
        for sequence in self._memory.waiting:
            sequence.move_to(pool, root(model, sequence.tenant))
            self._backlog.recount(sequence)

    def forget_steps(self) -> tuple[Sequence, ...]:
        """The worker is gone, and with it every step in flight. Those that had ended before and are free only now."""
        return tuple(self._in_flight.forget())

    def audit(self) -> None:
        """Raises AssertionError when blocks or sequences do not add up."""
        self.pool.audit()
        tables = {id(one.table): one.table for one in self._sequences.values()}
        tables.update({id(table): table for step in self._in_flight for _, table, _, _ in step.parts})
        held = Counter(block for table in tables.values() for block in table.blocks)
        assert len(held) == self.pool.used, f"{len(held)} blocks are in tables, {self.pool.used} are used"
        assert all(self.pool.references(block) == count for block, count in held.items()), "a count is wrong"
        self._memory.audit(self._sequences.values())
        self._backlog.audit(self._sequences.values())
        assert self._paused == sum(one.paused for one in self._sequences.values()), "paused ones were miscounted"
