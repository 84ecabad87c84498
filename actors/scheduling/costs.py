"""How long a step takes, learned from the steps that were run.

Knows what is in a step (`Work`) and how long earlier ones took. Knows no requests, no clock and no hardware: it starts
from a calibration and follows what it sees.

A step's time is taken as a sum of parts, none of them negative: a fixed one, and one each for prefill tokens, their
query-key pairs, the cached context their chunks read, decode rows, and the cached context those read. (Linear models
of this kind are those of Vidur, Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference", 2024,
in a form small enough to be fitted again every few steps.)
"""

import math
from collections import deque
from collections.abc import Iterable
from operator import mul

from protocol.messages import Chunk, Measured, Work

TERMS = 6
FORGET = 1 - 1 / 256
"""What an older step weighs after each newer one: about the last 256 steps count."""
REFIT_EVERY = 8
SWEEPS = 60
SETTLED = 1e-7
"""A sweep that moves no coefficient by more than this share is the last."""
MARGIN_WINDOW = 64
MARGIN_DEVIATIONS = 3.3
"""`Costs.margin` is so many standard deviations above the mean of so many steps, as logarithms of multiples of their
predictions: one step in two thousand is later, if they spread like that. No window shows so rare a step itself."""
MARGIN_OUTLIER = 0.3
"""A step counts in it as at most so far off the mean, or three times the spread: one accident is no spread."""
MARGIN_AT_START = 1.15
MARGIN_KNOWN = 32
"""With fewer steps seen, it is no less than at the start."""
MOST_MARGIN = 3.0
OVERHEAD_MEMORY = 0.98
PACE_RATE, PACE_STEP = 0.05, 0.3
"""How fast the pace follows the steps, and how far off one step is taken to be at most, in logarithms."""
USUAL_ERROR = 0.05
"""Relative error taken as usual before anything has been seen, and below which no step is an outlier."""
OUTLIER = 3.0
"""How many usual errors a step may be off before it weighs less."""


def terms(work: Work) -> tuple[float, float, float, float, float, float]:
    """What each coefficient is multiplied with."""
    return (
        1.0,
        work.prefill_tokens,
        work.prefill_pairs,
        work.prefill_context,
        work.decode_rows,
        work.decode_context,
    )


def pairs(start: int, tokens: int) -> int:
    """Query-key pairs of a chunk of `tokens` from position `start`: each token sees all before it, and itself."""
    return tokens * start + tokens * (tokens + 1) // 2


def work_of(chunks: Iterable[Chunk]) -> Work:
    """What a step of these chunks holds. A chunk of one token is a decode row."""
    prefill = prefill_pairs = prefill_context = rows = context = 0
    for chunk in chunks:
        count = len(chunk.tokens) // 4
        if count == 1:
            rows += 1
            context += chunk.start
        else:
            prefill += count
            prefill_pairs += pairs(chunk.start, count)
            prefill_context += chunk.start
    return Work(prefill, prefill_pairs, prefill_context, rows, context)


class Costs:
    """Predicts the seconds of a step, of a row and of a chunk; and learns.

    `coefficients` are seconds for each of `terms`. `margin` is the factor within which nearly every step ends: what
    must not be late is planned with it. `error` is the usual relative error of the prediction.
    """

    def __init__(self, calibration: Iterable[Measured] = (), coefficients: Iterable[float] = (0.0,) * TERMS) -> None:
        self._fitted = self.coefficients = list(coefficients)
        self._pace = 1.0
        if len(self.coefficients) != TERMS or any(not 0 <= each < math.inf for each in self.coefficients):
            raise ValueError(f"{TERMS} coefficients of at least 0 are needed, not {self.coefficients}")
        self.margin = MARGIN_AT_START
        self.overhead_s = 0.0
        """From a step's plan to its result, beside its time on the device, smoothed."""
        self._ratios: deque[float] = deque()
        self._spread = 0.0
        self.error = USUAL_ERROR
        self._products = [[0.0] * TERMS for _ in range(TERMS)]
        self._answers = [0.0] * TERMS
        # What the calibration said is never forgotten whole, or a term that no step shows for an hour would drift.
        self._first_products = [[0.0] * TERMS for _ in range(TERMS)]
        self._first_answers = [0.0] * TERMS
        self._seen = 0
        for measured in calibration:
            if measured.took_s > 0:
                self._add(self._first_products, self._first_answers, measured.work, measured.took_s, 1.0)
                self._seen += 1
        if self._seen:
            self._fit()

    # --- predicting ---

    @property
    def known(self) -> bool:
        """Whether anything is known at all. If not, everything is predicted to take no time."""
        return any(self.coefficients)

    @property
    def base_s(self) -> float:
        """What every step takes, from its plan to its result, whatever is in it."""
        return self.coefficients[0] + self.overhead_s

    def row_s(self, context: int) -> float:
        """One decode row that reads `context` cached tokens, beside the rest of a step."""
        return self.coefficients[4] + self.coefficients[5] * context

    def chunk_s(self, start: int, tokens: int) -> float:
        """A prefill chunk of `tokens` from position `start`, beside the rest of a step."""
        _, token, pair, context, _, _ = self.coefficients
        return token * tokens + pair * pairs(start, tokens) + context * start

    def prefill_s(self, start: int, tokens: int, chunk_tokens: int) -> float:
        """All of a prompt's `tokens` from position `start`, in chunks of `chunk_tokens`, without fixed parts."""
        _, token, pair, context, _, _ = self.coefficients
        chunks = -(-tokens // chunk_tokens)
        read = chunks * start + chunk_tokens * (chunks * (chunks - 1) // 2)
        return token * tokens + pair * pairs(start, tokens) + context * read

    def largest_chunk(self, start: int, most: int, seconds: float) -> int:
        """The most tokens, up to `most`, that a chunk from position `start` can have to take at most `seconds`."""
        _, token, pair, context, _, _ = self.coefficients
        left = seconds - context * start
        if left <= 0:
            return most if seconds > 0 and not self.known else 0
        linear, square = token + pair * (start + 0.5), pair / 2
        if square * most * most + linear * most <= left:
            return most
        if square < 1e-18:
            return min(most, int(left / linear))
        return min(most, int(2 * left / (linear + math.sqrt(linear * linear + 4 * square * left))))

    def step_s(self, work: Work) -> float:
        """On the device."""
        base, token, pair, context, row, row_context = self.coefficients
        return (
            base
            + token * work.prefill_tokens
            + pair * work.prefill_pairs
            + context * work.prefill_context
            + row * work.decode_rows
            + row_context * work.decode_context
        )

    # --- learning ---

    def learn(self, work: Work, took_s: float, wall_s: float | None = None) -> None:
        """A step of `work` took `took_s` on the device, and `wall_s` from its plan to its result."""
        if took_s <= 0:
            return
        predicted = self.step_s(work)
        weight = 1.0
        if predicted > 0:
            off = abs(took_s / predicted - 1)
            usual = max(self.error, USUAL_ERROR)
            weight = min(1.0, OUTLIER * usual / off) if off else 1.0
            self.error += 0.03 * (min(off, 2 * OUTLIER * usual) - self.error)
            ratio = min(math.exp(PACE_STEP), max(math.exp(-PACE_STEP), took_s / predicted))
            self._pace *= ratio**PACE_RATE
            overhead_s = 0.0 if wall_s is None else max(0.0, wall_s - took_s)
            self._learn_margin((took_s + overhead_s) / (predicted + self.overhead_s))
            # One that was held up for long says little of the others.
            overhead_s = min(overhead_s, 4 * self.overhead_s + 0.001)
            self.overhead_s = OVERHEAD_MEMORY * self.overhead_s + (1 - OVERHEAD_MEMORY) * overhead_s
        self._products = [[FORGET * each for each in row] for row in self._products]
        self._answers = [FORGET * each for each in self._answers]
        self._add(self._products, self._answers, work, took_s / self._pace, weight)
        self._seen += 1
        if self._seen % REFIT_EVERY == 0 or self._seen < 2 * REFIT_EVERY:
            self._fit()
        self.coefficients = [self._pace * each for each in self._fitted]

    def _learn_margin(self, ratio: float) -> None:
        ratios = self._ratios
        mean = sum(ratios) / len(ratios) if ratios else 0.0
        most = max(MARGIN_OUTLIER, 3 * self._spread)
        ratios.append(max(mean - most, min(mean + most, math.log(max(ratio, 1e-9)))))
        if len(ratios) > MARGIN_WINDOW:
            ratios.popleft()
        count = len(ratios)
        mean = sum(ratios) / count
        self._spread = math.sqrt(max(0.0, sum(map(mul, ratios, ratios)) / count - mean * mean))
        least = MARGIN_AT_START if count < MARGIN_KNOWN else 1.0
        self.margin = min(MOST_MARGIN, max(least, math.exp(mean + MARGIN_DEVIATIONS * self._spread)))

    def _add(self, products: list[list[float]], answers: list[float], work: Work, took_s: float, weight: float) -> None:
        """Relative errors count: a decode step's milliseconds as much as a long chunk's."""
        scaled = [term / took_s for term in terms(work)]
        for row, one in enumerate(scaled):
            if one:
                line = products[row]
                for column, other in enumerate(scaled):
                    line[column] += weight * one * other
                answers[row] += weight * one

    def _fit(self) -> None:
        """Non-negative least squares by coordinate descent from where it stands (Franc et al., 2005)."""
        products = [
            [first + now for first, now in zip(before, after, strict=True)]
            for before, after in zip(self._first_products, self._products, strict=True)
        ]
        answers = [first + now for first, now in zip(self._first_answers, self._answers, strict=True)]
        found = self._fitted
        columns = [it for it in range(TERMS) if products[it][it] > 0]
        for _ in range(SWEEPS):
            most_moved = 0.0
            for column in columns:
                # Written out for the six terms: this is a good part of what a simulated step takes.
                p0, p1, p2, p3, p4, p5 = products[column]
                before, found[column] = found[column], 0.0
                f0, f1, f2, f3, f4, f5 = found
                others = p0 * f0 + p1 * f1 + p2 * f2 + p3 * f3 + p4 * f4 + p5 * f5
                found[column] = after = max(0.0, (answers[column] - others) / products[column][column])
                if after:
                    most_moved = max(most_moved, abs(after - before) / (after + before))
                elif before > 0:
                    most_moved = 1.0
            if most_moved < SETTLED:
                break
