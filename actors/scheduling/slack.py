"""The default policy: targets in, schedule out.

Every request has a time by which its first token is due, and a longest gap from one token to the next. Each step takes
the decode rows, and fills the time that is left until the first of them is due again with prefill: the request whose
first token is due soonest first, its chunk cut so that the step ends in time.

Where not all can be met, as many as possible are: prefills are taken in the order of their due times, and whenever one
of them would be late, the longest so far is given up (J. M. Moore, "An n Job, One Machine Sequencing Algorithm for
Minimizing the Number of Late Jobs", 1968). Those given up, and those that are late already, still get a tenth of the
time, and all that nobody else needs. So one lost target does not make the next one lost, and nobody starves.

Knows what steps cost (`costs.py`). Knows no memory, no messages, no clock of its own.
"""

import heapq
import math

from actors.scheduling.costs import Costs
from actors.scheduling.policy import View, Wish, at_least_one
from actors.scheduling.sequence import Sequence

LATE_SHARE = 0.1
"""Of the time of all steps, for prefills whose target is lost, and of the rows' time for such rows."""
FORCED = 2.0
"""Late prefills owed so many times what a chunk takes get it even where others are then late."""
LATE_GAP = 3.0
"""How many times its target a row whose own targets are lost waits beside prefill."""
STRETCH = 1.5
"""Where even that is less than the rows alone take: so many times what they take. The rest is prefill's."""
SMALLEST_CHUNK = 32
"""Tokens: less than this is not worth a pass over the context, unless it is all there is to read."""
LOOK_AHEAD = 64
"""Waiting requests that are looked at, of those due and of those not due yet."""


class Slack:
    """No prefill chunk, and no step's prefill, is over `chunk_tokens`."""

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = at_least_one(chunk_tokens)
        self._owed_s = 0.0
        """What late prefills are owed of their share."""
        self._owed_rows_s = 0.0
        """The same for late decode rows, while there are too many rows for all."""

    def wishes(self, view: View) -> list[Wish]:
        costs = view.costs
        decodes, left_s, step_s = self._decodes(view)
        wishes = [Wish(one, 1) for one in decodes]
        most = min(self._chunk_tokens, view.max_step_tokens - len(wishes))
        if (not view.prefills and not len(view.waiting)) or most <= 0:
            return wishes
        usable_s = min(left_s, costs.chunk_s(0, self._chunk_tokens))
        share = usable_s / (usable_s + step_s) if usable_s > 0 else 0.0
        in_time, late = self._triage(view, max(share, LATE_SHARE))
        filling = _Filling(costs, most, left_s)
        if late:
            self._pay_late(late, filling)
        for one in in_time:
            filling.add(one)
        for one in late:
            filling.add(one)
        somebody = in_time or late
        if somebody and not wishes and not filling.wishes:
            # However little time the costs leave, an idle device serves nobody.
            filling.add_at_least(somebody[0], 1)
        if late:
            self._owed_s += LATE_SHARE * (step_s + filling.took_s)
        else:
            self._owed_s = 0.0
        return wishes + filling.wishes

    # --- decode rows ---

    def _decodes(self, view: View) -> tuple[list[Sequence], float, float]:
        """The rows of this step, the seconds left for prefill beside them, and what the step takes without it."""
        costs, now, rows = view.costs, view.now, view.decodes
        if not rows:
            return [], math.inf, costs.base_s
        _, _, _, _, row, context = costs.coefficients
        step_s = costs.base_s + row * len(rows) + context * sum([one.computed for one in rows])
        first_due = tightest = late_due = math.inf
        for one in rows:
            target, due = one.itl_target_s, one.last_token_at
            if one.late:
                due += LATE_GAP * target
                if due < late_due:
                    late_due = due
            else:
                due += target
                if due < first_due:
                    first_due = due
                if target < tightest:
                    tightest = target
        # Rows that are overdue through a step that took too long are not given up: there is time for all within a gap.
        limit = max(first_due - now, tightest)
        hopeless = (costs.base_s + row) * costs.margin > limit
        if step_s * costs.margin > limit and not hopeless:
            rows, step_s = self._those_in_time(view, limit / costs.margin)
            first_due = min([one.last_token_at + one.itl_target_s for one in rows if not one.late], default=math.inf)
        else:
            self._owed_rows_s = 0.0
        patience = min(first_due - now, max(late_due - now, STRETCH * step_s * costs.margin))
        return rows, max(0.0, patience / costs.margin - step_s), step_s

    def _those_in_time(self, view: View, limit_s: float) -> tuple[list[Sequence], float]:
        """There are too many rows for a step of `limit_s`: the soonest due, while they fit; and the step's seconds.

        The late ones take turns in what they are owed, longest without a token first.
        """
        costs = view.costs
        in_time = sorted(
            (one for one in view.decodes if not one.late), key=lambda one: one.last_token_at + one.itl_target_s
        )
        late = sorted((one for one in view.decodes if one.late), key=lambda one: one.last_token_at)
        chosen: list[Sequence] = []
        step_s = costs.base_s
        for one in in_time:
            step_s += costs.row_s(one.computed)
            if chosen and step_s > limit_s:
                step_s -= costs.row_s(one.computed)
                break
            chosen.append(one)
        self._owed_rows_s += LATE_SHARE * step_s
        for one in late:
            takes = costs.row_s(one.computed)
            if chosen and takes > self._owed_rows_s:
                break
            self._owed_rows_s -= takes
            step_s += takes
            chosen.append(one)
        return chosen, step_s

    # --- prefill ---

    def _triage(self, view: View, share: float) -> tuple[list[Sequence], list[Sequence]]:
        """Those whose first token can be in time, soonest due first, and the others, longest due first.

        `share`: how much of a step's time is prefill's.
        """
        costs, now, chunk = view.costs, view.now, self._chunk_tokens
        waiting = view.waiting
        late: list[Sequence] = waiting.due_by(now, LOOK_AHEAD) if len(waiting) else []
        candidates = waiting.due_after(now, LOOK_AHEAD) if len(waiting) else []
        if view.prefills:
            for one in view.prefills:
                (late if one.first_token_due <= now or one.has_begun else candidates).append(one)
            candidates.sort(key=_due)
        # What each takes, and what all so far take together; the longest one on top.
        longest: list[tuple[float, int, Sequence]] = []
        given_up = set()
        together = 0.0
        for one in candidates:
            start = max(one.computed, one.cached_hint) if one.waiting else one.computed
            takes = costs.prefill_s(start, len(one.tokens) - start, chunk)
            heapq.heappush(longest, (-takes, one.order, one))
            together += takes
            if now + together / share > one.first_token_due:
                takes, _, one = heapq.heappop(longest)
                together += takes
                given_up.add(one.order)
        if given_up:
            late += [one for one in candidates if one.order in given_up]
            candidates = [one for one in candidates if one.order not in given_up]
        if len(late) > 1:
            late.sort(key=_due)
        return candidates, late

    def _pay_late(self, late: list[Sequence], filling: "_Filling") -> None:
        """A chunk out of what the late are owed, once it is enough for one worth running."""
        first = late[0]
        most = min(first.remaining, filling.most)
        least = min(SMALLEST_CHUNK, most)
        forced = self._owed_s >= FORCED * filling.costs.chunk_s(first.computed, least)
        seconds = self._owed_s if forced else min(self._owed_s, filling.left_s)
        tokens = filling.costs.largest_chunk(first.computed, most, seconds)
        if tokens >= least:
            self._owed_s = max(0.0, self._owed_s - filling.add_at_least(first, tokens))


class _Filling:
    """A step's prefill as it fills: wishes, and what is left of tokens and of seconds."""

    def __init__(self, costs: Costs, most: int, left_s: float) -> None:
        self.costs = costs
        self.most = most
        self.left_s = left_s
        self.took_s = 0.0
        self.wishes: list[Wish] = []
        self._taken: set[int] = set()

    def add(self, one: Sequence) -> None:
        """The largest chunk of it that the step has room and time for, if it is worth while."""
        if self.most <= 0 or self.left_s <= 0 or one.order in self._taken:
            return
        most = min(one.remaining, self.most)
        tokens = most if self.left_s == math.inf else self.costs.largest_chunk(one.computed, most, self.left_s)
        if tokens >= min(SMALLEST_CHUNK, most):
            self.add_at_least(one, tokens)

    def add_at_least(self, one: Sequence, tokens: int) -> float:
        """A chunk of `tokens`, whatever time is left. Returns its seconds."""
        tokens = max(1, tokens)
        seconds = self.costs.chunk_s(one.computed, tokens)
        self.wishes.append(Wish(one, tokens))
        self._taken.add(one.order)
        self.most -= tokens
        self.left_s -= seconds
        self.took_s += seconds
        return seconds


def _due(one: Sequence) -> float:
    return one.first_token_due
