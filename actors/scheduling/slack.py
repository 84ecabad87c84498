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
from actors.scheduling.policy import BACKLOG_S, View, Wish, at_least_one
from actors.scheduling.sequence import Sequence

LATE_SHARE = 0.1
"""Of the time of all steps, for prefills whose target is lost, and of the rows' time for such rows."""
FORCED = 2.0
"""Late prefills owed so many times what a chunk takes get it even where others are then late."""
LATE_GAP = 3.0
"""How many times its target a row whose own targets are lost waits, if that keeps another's first token in time."""
STRETCH = 1.5
"""Where even that is less than the rows alone take: so many times what they take. The rest is prefill's."""
SMALLEST_CHUNK = 32
"""Tokens: less than this is not worth a pass over the context, unless it is all there is to read."""
LOOK_AHEAD = 64
"""Waiting requests that are looked at, of those due and of those not due yet."""


class Slack:
    """No prefill chunk, and no step's prefill, is over `chunk_tokens`."""

    backlog_s = BACKLOG_S

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = at_least_one(chunk_tokens)
        self._owed_s = 0.0
        self._owed_tokens = 0.0
        """What late prefills are owed of the time, and of the chunks, whichever a step has less of."""
        self._owed_rows_s = 0.0
        """The same for late decode rows, while there are too many rows for all."""

    def wishes(self, view: View) -> list[Wish]:
        costs = view.costs
        decodes, left_s, longer_s, step_s = self._decodes(view)
        wishes = [Wish(one, 1) for one in decodes]
        most = min(self._chunk_tokens, view.max_step_tokens - len(wishes))
        if (not view.prefills and not len(view.waiting)) or most <= 0:
            return wishes
        in_time, late = self._triage(view, self._share(costs, left_s, step_s))
        if late and longer_s > left_s:
            # Rows that are late anyway give the time that others need to be in time, but not more.
            more_in_time, fewer_late = self._triage(view, self._share(costs, longer_s, step_s))
            if len(more_in_time) > len(in_time):
                in_time, late, left_s = more_in_time, fewer_late, longer_s
        filling = _Filling(costs, most, left_s)
        if late:
            self._pay_late(late[0], filling)
        for one in in_time:
            filling.add(one)
        for one in late:
            filling.add(one)
        somebody = in_time or late
        if somebody and not wishes and not filling.parts:
            # However little time the costs leave, an idle device serves nobody.
            filling.put(somebody[0], 1)
        if late:
            self._owed_s += LATE_SHARE * (step_s + filling.took_s)
            self._owed_tokens += LATE_SHARE * self._chunk_tokens
        else:
            self._owed_s = self._owed_tokens = 0.0
        return wishes + [Wish(one, tokens) for one, tokens in filling.parts.values()]

    def _share(self, costs: Costs, left_s: float, step_s: float) -> float:
        """How much of a step's time is prefill's, if it has `left_s` beside the rest."""
        usable_s = min(left_s, costs.chunk_s(0, self._chunk_tokens))
        return max(LATE_SHARE, usable_s / (usable_s + step_s) if usable_s > 0 else 0.0)

    # --- decode rows ---

    def _decodes(self, view: View) -> tuple[list[Sequence], float, float, float]:
        """The rows of this step; the seconds left for prefill beside them, and how many if those rows that are late
        anyway wait longer; and what the step takes without it.
        """
        costs, now, rows = view.costs, view.now, view.decodes
        if not rows:
            return [], math.inf, math.inf, costs.base_s
        _, _, _, _, row, context = costs.coefficients
        step_s = costs.base_s + row * len(rows) + context * sum([one.computed + one.ahead for one in rows])
        # A target below what one row alone takes binds nobody.
        possible = (costs.base_s + row) * costs.margin
        first_due = tightest = late_due = longest_due = math.inf
        for one in rows:
            target, since = one.itl_target_s, one.waits_since
            if one.late or target < possible:
                late_due = min(late_due, since + target)
                longest_due = min(longest_due, since + LATE_GAP * target)
            else:
                if since + target < first_due:
                    first_due = since + target
                if target < tightest:
                    tightest = target
        # Rows that are overdue through a step that took too long are not given up: there is time for all within a gap.
        limit = max(first_due - now, tightest)
        if step_s * costs.margin > limit:
            rows, first_due, step_s = self._those_in_time(view, possible, limit / costs.margin)
        else:
            self._owed_rows_s = 0.0
        least = STRETCH * step_s * costs.margin
        patience = min(first_due - now, max(late_due - now, least))
        longer = min(first_due - now, max(longest_due - now, least))
        left_s, longer_s = (max(0.0, each / costs.margin - step_s) for each in (patience, longer))
        return rows, left_s, longer_s, step_s

    def _those_in_time(self, view: View, possible: float, limit_s: float) -> tuple[list[Sequence], float, float]:
        """There are too many rows for a step of `limit_s`: the soonest due, while they fit. Those rows, when the first
        of them is due, and the step's seconds.

        The late ones take turns in what they are owed of that time, longest without a token first.
        """
        costs = view.costs
        late = [one for one in view.decodes if one.late or one.itl_target_s < possible]
        late.sort(key=lambda one: one.waits_since)
        apart = {one.order for one in late}
        in_time = [one for one in view.decodes if one.order not in apart]
        in_time.sort(key=_row_due)
        chosen: list[Sequence] = []
        step_s = costs.base_s
        self._owed_rows_s += LATE_SHARE * limit_s if late else 0.0
        for one in late:
            takes = costs.row_s(one.planned)
            if takes > self._owed_rows_s or step_s + takes + costs.row_s(in_time[0].planned) > limit_s:
                break
            self._owed_rows_s -= takes
            step_s += takes
            chosen.append(one)
        for one in in_time:
            takes = costs.row_s(one.planned)
            if one is not in_time[0] and step_s + takes > limit_s:
                break
            step_s += takes
            chosen.append(one)
        self._owed_rows_s = min(self._owed_rows_s, limit_s)
        return chosen, _row_due(in_time[0]), step_s

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
            start = one.starts_at
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

    def _pay_late(self, first: Sequence, filling: "_Filling") -> None:
        """A chunk out of what the late are owed, once it is enough for one worth running.

        It is taken from the time that is left. Only where hardly any is left for long, others are late for it.
        """
        most = min(first.to_read, filling.most, int(self._owed_tokens))
        least = min(SMALLEST_CHUNK, first.to_read, filling.most)
        if most < least:
            return
        fits = filling.fitting(first, most, filling.left_s)
        if fits >= min(least, SMALLEST_CHUNK // 4):
            least = min(least, fits)
            tokens = filling.fitting(first, most, min(self._owed_s, filling.left_s))
        else:
            tokens = least if self._owed_s >= FORCED * filling.seconds(first, least) else 0
        if tokens >= least:
            self._owed_s = max(0.0, self._owed_s - filling.put(first, tokens))
            self._owed_tokens -= tokens


class _Filling:
    """A step's prefill as it fills: who has how many tokens of it, and what is left of tokens and of seconds."""

    def __init__(self, costs: Costs, most: int, left_s: float) -> None:
        self.most = most
        self.left_s = left_s
        self.took_s = 0.0
        self.parts: dict[int, tuple[Sequence, int]] = {}
        self._costs = costs

    def seconds(self, one: Sequence, tokens: int) -> float:
        """What its next `tokens` take: one token is run as a decode row is."""
        start = one.starts_at
        return self._costs.row_s(start) if tokens == 1 else self._costs.chunk_s(start, tokens)

    def fitting(self, one: Sequence, most: int, seconds: float) -> int:
        """How many of its tokens, at most `most`, fit into so many seconds."""
        if seconds == math.inf:
            return most
        if most == 1:
            return int(self.seconds(one, 1) <= seconds)
        return self._costs.largest_chunk(one.starts_at, most, seconds)

    def add(self, one: Sequence) -> None:
        """As much of it as the step has room and time for, if that is worth while. It may have some already."""
        _, has = self.parts.get(one.order, (one, 0))
        if self.most <= 0 or self.left_s <= 0 or has == one.to_read:
            return
        most = min(one.to_read, self.most + has)
        tokens = self.fitting(one, most, self.left_s + (self.seconds(one, has) if has else 0.0))
        # The time is there; what is too little for a chunk worth while serves at least the first.
        least = SMALLEST_CHUNK if self.parts else SMALLEST_CHUNK // 4
        if tokens > has and tokens >= min(least, most):
            self.put(one, tokens)

    def put(self, one: Sequence, tokens: int) -> float:
        """Give it `tokens` in all, whatever time is left. Returns the seconds that takes."""
        _, has = self.parts.get(one.order, (one, 0))
        seconds = self.seconds(one, tokens)
        more_s = seconds - (self.seconds(one, has) if has else 0.0)
        self.parts[one.order] = (one, tokens)
        self.most -= tokens - has
        self.left_s -= more_s
        self.took_s += more_s
        return seconds


def _due(one: Sequence) -> tuple[float, int]:
    return one.first_token_due, one.order


def _row_due(one: Sequence) -> float:
    return one.waits_since + one.itl_target_s
