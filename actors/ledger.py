"""The ledger of one socket: every response it is asked for is opened here, and its end is counted and logged.

Knows who asks, what a response is called and which targets it has, the metrics and the log. Knows nothing of what its
client is told, nor of when.
"""

from collections.abc import Callable

import structlog
from msgspec import structs

from actors.actor import Clock
from actors.answer import Answer
from actors.lanes import Lane, Run, Withdraw
from actors.metrics import Metrics
from actors.targets import Tiers
from protocol.errors import WireError
from protocol.messages import Accepted, ConnectionId, RequestId
from protocol.responses import Targets

log = structlog.get_logger()


class Ledger:
    def __init__(
        self,
        *,
        connection: ConnectionId,
        tenant: str,
        model: str,
        clock: Clock,
        unix_clock: Callable[[], float],
        new_id: Callable[[], str],
        metrics: Metrics,
        tiers: Tiers,
    ) -> None:
        self._tenant = tenant
        self._model = model
        self._clock = clock
        self._unix_clock = unix_clock
        self._new_id = new_id
        self._metrics = metrics
        self._tiers = tiers
        self._names = {"connection": connection, **({"key": tenant} if tenant else {})}
        """Who asked, in the log."""

    def open(self, turn: Run | Withdraw) -> Answer:
        """A response to what was asked."""
        request = f"resp_{self._new_id()}"
        # The tokeniser finds the same in the same table; an answer that never gets there shows it too.
        create, targets = turn.create, turn.create.targets or Targets()
        goal = self._tiers.resolve(create.service_tier, targets.ttft_ms, targets.itl_ms, self._tenant)
        answer = Answer(request, create, turn.received_at, int(self._unix_clock()), self._model, goal)
        answer.lane_s = self._clock() - turn.received_at
        return answer

    def accepted(self, message: Accepted) -> None:
        self._metrics.accepted.inc()
        self._metrics.input_tokens.inc(message.input_tokens)

    def count_told(self, answer: Answer) -> None:
        """Text has been sent: count what it tells of."""
        for gap in answer.gaps[answer.gaps_counted :]:
            self._metrics.gap.observe(gap)
        answer.gaps_counted = len(answer.gaps)
        if not answer.ttft_counted and answer.first_text_at is not None:
            answer.ttft_counted = True
            self._metrics.ttft.observe(answer.first_text_at - answer.received_at)

    def detached(self, answer: Answer) -> None:
        """Its reader's socket was lost, and it is kept."""
        answer.detached += 1
        self._metrics.detached.inc()

    def resumed(self, answer: Answer) -> None:
        answer.resumed += 1
        self._metrics.resumed.inc()

    def close(self, answer: Answer) -> None:
        """It has ended."""
        figures = answer.figures()
        self._metrics.count_finished(
            figures.finish_reason,
            taking_s=self._clock() - answer.received_at,
            lane_s=answer.lane_s,
            stats=answer.ended.stats if answer.ended is not None else None,
            input_tokens=figures.input_tokens,
            output_tokens=figures.output_tokens,
            met={"ttft": figures.ttft_met, "itl": figures.itl_met},
        )
        log.info("request.finished", request=answer.request, lane=answer.lane, **self._names, **structs.asdict(figures))

    def refused(self, lane: Lane, error: WireError, request: RequestId | None) -> None:
        self._metrics.refused.labels(error.code).inc()
        log.info("request.refused", request=request, lane=lane, **self._names, code=error.code)
