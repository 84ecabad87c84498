"""One request as the scheduler sees it: its tokens, how many of them are in the KV cache, and where.

Knows the words of a request's life and the figures told at its end. Knows no other request and no clock.
"""

from array import array
from enum import Enum
from typing import Final

from actors.scheduling.blocks import BlockPool, BlockTable, chain
from protocol.messages import Enqueue, FinishReason, Stats
from protocol.timeline import LONGEST_GAP

LONGEST_TARGET_S: Final = 600.0
"""Whoever names no target, or a longer one, is still not to wait for ever behind those with shorter ones."""
FORGIVEN_GAPS: Final = 100
"""One gap in so many may be late, by the longest answer that may come (`protocol.timeline.GAP_PERCENT`); but not by
`LONGEST_GAP` times its target."""


class State(Enum):
    """The part of a request's life that the scheduler sees."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Sequence:
    """A request that has been admitted.

    `tokens` is its whole history, prompt and answer so far; the first `computed` of them have their keys and values
    in `table`, as results have said, and the steps in flight run `ahead` more. A step runs the next few: one of them
    is a decode row, more are a prefill chunk, and whenever the newest token is among them the next one is chosen. Until
    the result says which, it is one of `expected`, and the next row can be planned on it. A preempted sequence has
    `computed` 0 and an empty table, and comes back by the same rule. Whenever it starts, it takes up the full blocks
    of its history that the cache holds, all but the newest token's: that one is run, for the next to be chosen.
    """

    __slots__ = (
        "_first_token_at",
        "_late_gaps",
        "_names",
        "_paused_at",
        "_paused_s",
        "_preemptions",
        "_published",
        "_reached",
        "_root",
        "_started_at",
        "accepted_at",
        "ahead",
        "alone_s",
        "cached_hint",
        "cached_tokens",
        "cancelled_at",
        "computed",
        "connection",
        "counted",
        "deadline_at",
        "end_tokens",
        "expected",
        "expected_at",
        "first_token_due",
        "itl_target_s",
        "last_token_at",
        "late",
        "max_output_tokens",
        "newest_step",
        "order",
        "paused",
        "place",
        "prompt_tokens",
        "reason",
        "received_at",
        "request",
        "sampling",
        "state",
        "steps_in_flight",
        "table",
        "tenant",
        "tokens",
        "unread",
        "waiting",
    )

    def __init__(self, enqueue: Enqueue, order: int, pool: BlockPool, root: bytes, now: float) -> None:
        self.request = enqueue.request
        self.connection = enqueue.connection
        self.tenant = enqueue.tenant
        self.sampling = enqueue.sampling
        self.max_output_tokens = enqueue.max_output_tokens
        self.end_tokens = frozenset(enqueue.end_tokens)
        self.order = order
        """Place by arrival: the lower one never gives way to the higher one."""
        self.tokens = array("i")
        self.tokens.frombytes(enqueue.tokens)
        self.prompt_tokens = len(self.tokens)
        self.computed = 0
        self.ahead = 0
        self.expected = 0
        """Tokens that steps in flight choose: not known yet."""
        self.expected_at = 0.0
        """When the newest of them is predicted to be there, as the step behind the one that chooses it was planned."""
        self.place = 0
        """Of the newest of them among all that its step chooses."""
        self.newest_step = 0
        """The last step that was planned with it."""
        self.table = BlockTable(pool)
        self.cached_tokens = 0
        """Of its prompt, found in the cache when it started for the first time."""
        self._root = root
        self._names: list[bytes] = []
        self.cached_hint = 0
        """Of its history, found in the cache when it came: what need not be counted as work."""
        self.alone_s = 0.0
        """What its prefill was predicted to take by itself, when it came."""
        self.counted = 0
        """Of its tokens, what the schedule counts as prefill still to be done."""
        self._reached = 0
        """The most of its tokens that were in the cache before it was preempted."""
        self._published = 0
        """How many blocks of `table` can be found by others, if theirs is the same beginning."""
        self.state = State.QUEUED
        self.waiting = True
        """Whether it holds no blocks and waits for its turn to start, or to start again."""
        self.reason: FinishReason | None = None
        self.steps_in_flight = 0
        self.paused = False
        self.unread = False
        """Whether it is paused because its reader's socket was lost. Only kept here, for whoever asks."""
        self.received_at = enqueue.received_at
        self.first_token_due = enqueue.received_at + min(enqueue.ttft_target_s, LONGEST_TARGET_S)
        self.itl_target_s = min(enqueue.itl_target_s, LONGEST_TARGET_S)
        self.last_token_at = now
        """When its newest token was chosen: since then it waits for the next. Before the first: since it is here."""
        self.late = False
        """Whether one of its targets is lost, whatever comes: its first token's, or that of too many gaps."""
        self._late_gaps = 0
        self.deadline_at = enqueue.deadline_at
        self.accepted_at = now if enqueue.accepted_at is None else enqueue.accepted_at
        self.cancelled_at: float | None = None
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._paused_at = 0.0
        self._paused_s = 0.0
        self._preemptions = 0

    @property
    def planned(self) -> int:
        """Tokens that are in the cache when the steps in flight have run: where the next step begins."""
        return self.computed + self.ahead

    @property
    def remaining(self) -> int:
        """Tokens that no step has been planned for, the expected one among them. 1: a decode row."""
        return len(self.tokens) + self.expected - self.computed - self.ahead

    @property
    def may_go_on(self) -> bool:
        """Whether more is to be chosen than what is expected: not at the output limit."""
        return len(self.tokens) - self.prompt_tokens + self.expected < self.max_output_tokens

    @property
    def waits_since(self) -> float:
        """Since when it waits for the token that the next step may choose: as predicted, where it expects another."""
        return self.expected_at if self.expected else self.last_token_at

    @property
    def starts_at(self) -> int:
        """The position of the next token to be run. Of one that waits, as far as is known: more may be in the cache."""
        return self.cached_hint if self.waiting else self.computed + self.ahead

    @property
    def to_read(self) -> int:
        """Tokens that have to be run before the next can be chosen, without those of steps in flight."""
        return self.remaining - (self.cached_hint if self.waiting else 0)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def started(self) -> bool:
        return self._started_at is not None

    @property
    def started_at(self) -> float | None:
        """When the first step that ran it was planned."""
        return self._started_at

    @property
    def prompt_tokens_read(self) -> int:
        """Of its prompt, those found in the cache among them. A preemption takes nothing back."""
        return min(max(self._reached, self.computed), self.prompt_tokens)

    @property
    def prompt_tokens_run(self) -> int:
        """Of its prompt, without those found in the cache; what was run again after a preemption counts once."""
        return max(0, self.prompt_tokens_read - self.cached_tokens)

    @property
    def preemptions(self) -> int:
        return self._preemptions

    def names(self, blocks: int, block_size: int) -> list[bytes]:
        """The names of its first `blocks` full blocks."""
        for number in range(len(self._names), blocks):
            parent = self._names[-1] if self._names else self._root
            tokens = self.tokens[number * block_size : (number + 1) * block_size]
            self._names.append(chain(parent, tokens.tobytes()))
        return self._names[:blocks]

    def move_to(self, pool: BlockPool, root: bytes) -> None:
        """Wait for another pool. It holds nothing of the old one."""
        assert not self.table.blocks, "a sequence that holds blocks stays where they are"
        self.table = BlockTable(pool)
        self._root = root
        self._names = []
        self.cached_hint = 0

    def begin_with(self, blocks: list[int], block_size: int) -> None:
        """Take up what the cache already holds of its history."""
        self.table.begin_with(blocks)
        self.computed = len(blocks) * block_size
        self._published = len(blocks)
        if not self.started:
            self.cached_tokens = self.computed

    def publish(self, pool: BlockPool) -> None:
        """A step has succeeded: let others find the blocks that are full now."""
        full = self.computed // pool.block_size
        if full > self._published:
            names = self.names(full, pool.block_size)
            for number in range(self._published, full):
                pool.publish(self.table.blocks[number], names[number])
            self._published = full

    def leave_step(self, tokens: int, chosen: bool) -> None:
        """A step in flight is over that had so many of its tokens, run or not, and was to choose one if `chosen`."""
        self.steps_in_flight -= 1
        self.ahead -= tokens
        self.expected -= chosen

    def start(self, now: float) -> None:
        """A step includes it (again)."""
        if self.state is State.DECODING:
            return
        if self._started_at is None:
            self._started_at = now
        self.waiting = False
        self.state = State.DECODING if self.output_tokens else State.PREFILLING

    @property
    def has_begun(self) -> bool:
        """Whether it has its first token."""
        return self._first_token_at is not None

    def append(self, token: int, now: float) -> bool:
        """The next token has been chosen. Whether it is the last: an end token, or the output limit."""
        tokens = self.tokens
        tokens.append(token)
        if self._first_token_at is None:
            self._first_token_at = now
            self.late = now > self.first_token_due
            self.state = State.DECODING
        elif now - self.last_token_at > self.itl_target_s:
            self._late_gaps += 1
            pause = now - self.last_token_at > LONGEST_GAP * self.itl_target_s
            self.late = self.late or pause or self._late_gaps > self.max_output_tokens // FORGIVEN_GAPS
        self.last_token_at = now
        return token in self.end_tokens or len(tokens) - self.prompt_tokens >= self.max_output_tokens

    def set_paused(self, paused: bool, now: float) -> None:
        """Pausing what is paused, or resuming what runs, changes nothing."""
        if paused and not self.paused:
            self._paused_at = now
        if self.paused and not paused:
            self._paused_s += now - self._paused_at
            # Its reader's own pause is no wait for a token.
            self.last_token_at = max(self.last_token_at, now)
        self.paused = paused

    def preempt(self, pool: BlockPool) -> None:
        """Give its blocks up; it will be recomputed from its whole history."""
        self.table.drop()
        self.table = BlockTable(pool)
        self._reached = max(self._reached, self.computed)
        self.computed = 0
        self._published = 0
        self.state = State.PREEMPTED
        self.waiting = True
        self._preemptions += 1

    def finish(self, reason: FinishReason) -> None:
        """No later step includes it, and it needs no memory for itself any more."""
        assert self.reason is None, f"{self.request} finished twice"
        self.reason = reason
        self.state = State.FINISHED
        self.waiting = False
        self.table.drop()

    def stats(self, now: float) -> Stats:
        started = self._started_at if self._started_at is not None else now
        first = self._first_token_at
        return Stats(
            queued_s=started - self.accepted_at,
            prefill_s=None if first is None else first - started,
            first_token_at=first,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            preemptions=self._preemptions,
            paused_s=self._paused_s + (now - self._paused_at if self.paused else 0.0),
        )
