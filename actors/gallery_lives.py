"""The lives of requests, as far as somebody who watches has seen them.

Plain code, fed with what the gallery hears and with what it is told when it looks. Knows numbers, names and times of
requests; no text, no token, no step and no watcher. Where the two disagree a look is right, but for an end: that is
final. All times are the engine's; `life` makes Unix times of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import cast

from msgspec import structs

from actors.gallery_taps import HeardTokens
from actors.scheduling.seen import seen_enqueue
from protocol.messages import Ended, Enqueue, Refused, Released, RequestId, SeenRequest, Started
from protocol.turns import Life, LifeState

MOST_LIVES = 4_096
"""That are known at once. Whoever comes beside so many is not told apart in steps, until there is room."""
MOST_ENDED = 512
"""Of them, that have ended: known for as long as something may still be said of them."""
GONE_S, GONE_LOOKS = 1.0, 2
"""Who has been seen by nobody for so long and in so many looks has ended; that it did was not heard."""


class _One:
    """A request. `row` is what was seen of it last."""

    __slots__ = (
        "changed",
        "ended_at",
        "first_seen_running",
        "last_token_at",
        "looks_without",
        "number",
        "reason",
        "released_in",
        "row",
        "seen_at",
        "state",
        "worst_gap_s",
    )

    def __init__(self, number: int, row: SeenRequest, at: float, changed: int, *, first_seen_running: bool) -> None:
        self.number = number
        self.row = row
        self.seen_at = at
        self.changed = changed
        self.first_seen_running = first_seen_running
        self.looks_without = 0
        self.released_in: int | None = None
        """While which frame was made its memory was said to be back, and no end had been heard."""
        self.state: str | None = None
        """How it ended; None: it lives."""
        self.reason: str | None = None
        self.ended_at: float | None = None
        self.last_token_at: float | None = None
        self.worst_gap_s: float | None = None


class Lives:
    """`frame` is the number of the frame that is being made: whatever changes now has changed in it."""

    def __init__(self) -> None:
        self.frame = 1
        self._all: dict[RequestId, _One] = {}
        self._ended: deque[RequestId] = deque()
        self._last_number = 0
        self.forgotten_in = 0
        """In which frame the latest of those that are no longer known had changed last."""

    def __len__(self) -> int:
        return len(self._all)

    def drawn(self, request: RequestId) -> tuple[int, int] | None:
        """A step of this frame has a part of it: its number and the length of its prompt.

        One that ended before its step did is shown once more: some may watch who came between the two.
        """
        one = self._all.get(request)
        if one is None:
            return None
        if one.state is not None:
            one.changed = self.frame
        return one.number, one.row.input_tokens

    # --- what is heard ---

    def enqueued(self, enqueue: Enqueue, at: float) -> None:
        if enqueue.request not in self._all:
            self._add(seen_enqueue(enqueue), at, first_seen_running=False)

    def started(self, started: Started) -> None:
        one = self._living(started.request)
        if one is not None and one.row.started_at is None:
            one.row = structs.replace(
                one.row,
                state="prefilling",
                started_at=started.at,
                prefilled_tokens=started.prefilled_tokens,
                cached_tokens=started.prefilled_tokens,
                position=None,
                estimated_wait_s=None,
            )
            self._touch(one, started.at)

    def tokens(self, tokens: HeardTokens) -> None:
        """All that one step produced: how long has each waited for it?"""
        at = tokens.at
        for request in tokens.requests:
            one = self._all.get(request)
            if one is None:
                continue
            if one.last_token_at is not None:
                gap_s = at - one.last_token_at
                if one.worst_gap_s is None or gap_s > one.worst_gap_s:
                    one.worst_gap_s = gap_s
                    one.changed = self.frame
            one.last_token_at = at

    def ended(self, ended: Ended, at: float) -> None:
        one = self._all.get(ended.request)
        if one is None:
            return
        stats, row = ended.stats, one.row
        first_at, started_at = stats.first_token_at, row.started_at
        if started_at is None and first_at is not None and stats.prefill_s is not None:
            started_at = first_at - stats.prefill_s
        read = first_at is not None or ended.reason == "prefilled"
        one.row = structs.replace(
            row,
            prefilled_tokens=row.input_tokens if read else row.prefilled_tokens,
            cached_tokens=max(row.cached_tokens, stats.cached_tokens),
            output_tokens=max(row.output_tokens, stats.output_tokens),
            started_at=started_at,
            first_token_at=row.first_token_at if first_at is None else first_at,
            preemptions=max(row.preemptions, stats.preemptions),
        )
        self._end(one, "finished", ended.reason, at)

    def refused(self, refused: Refused, at: float) -> None:
        """By admission. Whom the tokeniser refuses, nobody has seen come."""
        one = self._all.get(refused.request)
        if one is not None:
            self._end(one, "refused", refused.error.code, at)

    def released(self, released: Released, at: float) -> None:
        """Its end is heard beside this, unless there is nobody left to be told of it."""
        one = self._living(released.request)
        if one is not None and one.released_in is None:
            one.released_in = self.frame
            one.seen_at = at

    def lost(self, at: float) -> None:
        """Whoever held the requests has started anew and knows none of them."""
        for one in self._all.values():
            if one.state is None:
                self._end(one, "finished", "failed", at)

    # --- what is seen ---

    def see(self, rows: Iterable[SeenRequest], at: float) -> None:
        """What scheduler or admission hold."""
        for row in rows:
            one = self._all.get(row.request)
            if one is None:
                self._add(row, at, first_seen_running=True)
                continue
            if one.state is not None:
                continue
            one.seen_at = at
            one.looks_without = 0
            if row.paused:
                one.last_token_at = None  # Its reader's own pause is no wait for a token.
            if row != one.row:
                one.row = row
                one.changed = self.frame

    def settle(self, looked_at: float | None) -> None:
        """Before a frame: end those whose ends were not heard. `looked_at`: everybody has answered a look of then."""
        for one in self._all.values():
            if one.state is not None:
                continue
            if one.released_in is not None and one.released_in < self.frame:
                self._end(one, "finished", "cancelled", one.seen_at)
            elif looked_at is not None and one.seen_at < looked_at:
                one.looks_without += 1
                if one.looks_without >= GONE_LOOKS and looked_at - one.seen_at > GONE_S:
                    self._end(one, "finished", None, one.seen_at)

    # --- what is shown ---

    def changed_since(self, frame: int, *, all_living: bool) -> Iterator[tuple[RequestId, str]]:
        """Names and tenants of those that have changed after that frame, or (`all_living`) live."""
        for request, one in self._all.items():
            if one.changed > frame or (all_living and one.state is None):
                yield request, one.row.tenant

    @property
    def has_changed(self) -> bool:
        """Since the last frame."""
        return any(one.changed == self.frame for one in self._all.values())

    def life(self, request: RequestId, unix_s: float, *, with_id: bool) -> Life:
        """`unix_s` is what makes Unix times of the engine's."""
        one = self._all[request]
        row = one.row
        living = one.state is None
        return Life(
            one.number,
            cast(LifeState, one.state or row.state),
            round(row.received_at + unix_s, 6),
            request if with_id else None,
            row.input_tokens,
            row.max_output_tokens,
            row.prefilled_tokens,
            row.cached_tokens,
            row.output_tokens,
            _unix(row.started_at, unix_s),
            _unix(row.first_token_at, unix_s),
            _unix(one.ended_at, unix_s),
            _ms(row.ttft_target_s),
            _ms(row.itl_target_s),
            _ms(one.worst_gap_s),
            row.position if living else None,
            _ms(row.estimated_wait_s) if living else None,
            row.paused and living,
            row.preemptions,
            one.reason,
            one.first_seen_running,
        )

    def held(self, rows: Iterable[SeenRequest]) -> tuple[tuple[int, int], ...]:
        """The numbers of those that hold blocks, and how many."""
        return tuple(
            (one.number, row.blocks)
            for row in rows
            if row.blocks and (one := self._all.get(row.request)) is not None and one.state is None
        )

    def next_frame(self) -> None:
        """One has been made. Of those that have ended and were shown, the oldest are forgotten."""
        self.frame += 1
        while len(self._ended) > MOST_ENDED or (self._ended and len(self._all) >= MOST_LIVES):
            request = self._ended.popleft()
            self.forgotten_in = max(self.forgotten_in, self._all.pop(request).changed)

    # --- keeping them ---

    def _add(self, row: SeenRequest, at: float, *, first_seen_running: bool) -> None:
        if len(self._all) < MOST_LIVES:
            self._last_number += 1
            self._all[row.request] = _One(self._last_number, row, at, self.frame, first_seen_running=first_seen_running)

    def _living(self, request: RequestId) -> _One | None:
        one = self._all.get(request)
        return None if one is None or one.state is not None else one

    def _touch(self, one: _One, at: float) -> None:
        one.seen_at = at
        one.changed = self.frame

    def _end(self, one: _One, state: LifeState, reason: str | None, at: float) -> None:
        """Said again it is put right: of a request whose worker was lost, its end may still be under way."""
        if one.state is None:
            one.ended_at = at
            self._ended.append(one.row.request)
        one.state, one.reason = state, reason
        self._touch(one, at)


def _unix(at: float | None, unix_s: float) -> float | None:
    return None if at is None else round(at + unix_s, 6)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
