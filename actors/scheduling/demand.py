"""How much work a request is, before it is done: from its prompt, its output limit and what steps cost.

Knows `CostsLearned`, which the scheduler tells. Knows no queue and no clock.
"""

from actors.scheduling.costs import Costs
from actors.scheduling.known_prefixes import KnownPrefixes
from actors.scheduling.usual import USUAL_OUTPUT_TOKENS
from protocol.messages import CostsLearned, Enqueue

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""What a token counts between clients (Sheng et al., 2024, use the same): a token written takes more than one read."""


class Demand:
    """Predicts work, in seconds of the device and in weighted tokens."""

    def __init__(self, chunk_tokens: int, max_running: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._max_running = max_running
        self._costs = Costs()
        self._known = KnownPrefixes()
        self.reserve_s = 0.0
        """What to allow for beside the prefill, for a first token to be in time."""
        self._output_tokens = USUAL_OUTPUT_TOKENS

    def learn(self, learned: CostsLearned) -> None:
        self._costs = Costs(coefficients=learned.coefficients)
        self._output_tokens = learned.output_tokens
        self.reserve_s = learned.reserve_s

    @property
    def known(self) -> bool:
        """Whether anything is known of what steps cost. If not, all work is predicted to take no time."""
        return self._costs.known

    def begins(self, enqueue: Enqueue) -> None:
        """It is let in: what it reads may be found by others."""
        self._known.add(enqueue.tenant, enqueue.tokens)

    def cached_tokens(self, enqueue: Enqueue) -> int:
        """Of its prompt, as far as can be guessed."""
        return self._known.guess(enqueue.tenant, enqueue.tokens)

    def prefill_s(self, tokens: int, cached: int) -> float:
        """A whole prompt of `tokens`, `cached` of them in the cache, and nothing else running."""
        steps = -(-(tokens - cached) // self._chunk_tokens)
        return self._costs.prefill_s(cached, tokens - cached, self._chunk_tokens) + steps * self._costs.base_s

    def output_tokens(self, enqueue: Enqueue) -> float:
        """Of its answer, as far as can be guessed."""
        return min(self._output_tokens, enqueue.max_output_tokens)

    def work_s(self, enqueue: Enqueue, cached: int) -> float:
        """All of it: the prompt, and an answer of usual length that shares its steps with as many as may run.

        While somebody waits, the device is full: so many others, or so much to read that the answers matter little.
        """
        tokens = len(enqueue.tokens) // 4
        output = self.output_tokens(enqueue)
        row_s = self._costs.row_s(tokens + int(output / 2)) + self._costs.base_s / self._max_running
        return self._costs.prefill_s(cached, tokens - cached, self._chunk_tokens) + output * row_s

    def charge(self, enqueue: Enqueue, cached: int) -> float:
        """Weighted tokens, to be fair between clients with. (Their price may change; a token stays a token.)"""
        return weighed(len(enqueue.tokens) // 4 - cached, self.output_tokens(enqueue))


def weighed(input_tokens: float, output_tokens: float) -> float:
    return INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens
