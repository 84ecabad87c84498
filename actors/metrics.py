"""Everything rota counts, in Prometheus' words. One registry an engine, so that two engines in one test do not mix.

Knows names, units and buckets; the table in CONTRIBUTING.md says what each means. Knows nothing of who counts.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString

_LATENCY_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2, 5, 10, 30, 60)


class TokenHistogram(Collector):
    """A histogram of something that happens with every token. Prometheus' own takes locks, which costs ten times as
    much; here everyone observes on the event loop, which also answers the scrape."""

    def __init__(self, name: str, documentation: str, *, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = (*buckets, INF)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        registry.register(self)

    def observe(self, amount: float) -> None:
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def collect(self) -> Iterable[Metric]:
        buckets = zip(map(floatToGoString, self._bounds), map(float, accumulate(self._counts)), strict=True)
        yield HistogramMetricFamily(self._name, self._documentation, buckets=list(buckets), sum_value=self._sum)


class Metrics:
    """The instruments of one engine."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.kv_blocks = Gauge("rota_kv_blocks", "KV blocks by state.", ["state"], registry=r)
        self.requests = Gauge("rota_requests", "Requests by state.", ["state"], registry=r)
        self.finished = Counter("rota_requests_finished", "Requests ended, by reason.", ["reason"], registry=r)
        self.refused = Counter("rota_requests_refused", "Requests refused, by error code.", ["code"], registry=r)
        self.input_tokens = Counter("rota_input_tokens", "Prompt tokens of accepted requests.", registry=r)
        self.output_tokens = Counter("rota_output_tokens", "Tokens sampled.", registry=r)
        self.preemptions = Counter("rota_preemptions", "Requests taken off the device for memory.", registry=r)
        self.ttft = Histogram(
            "rota_ttft_seconds",
            "From receiving a request to its first text at the socket.",
            buckets=_LATENCY_S,
            registry=r,
        )
        self.gap = TokenHistogram(
            "rota_inter_token_gap_seconds", "Between two tokens of one answer.", buckets=_LATENCY_S, registry=r
        )
        self.queue = Histogram(
            "rota_queue_seconds", "From acceptance to the first step.", buckets=_LATENCY_S, registry=r
        )
        self.step = Histogram("rota_step_seconds", "One step on the device.", buckets=_LATENCY_S, registry=r)
        self.step_error = Gauge(
            "rota_step_cost_error_ratio", "How far predicted step times are off, as a share, smoothed.", registry=r
        )
        self.waiting_work = Gauge(
            "rota_waiting_work_seconds", "Predicted time on the device of all in the waiting room.", registry=r
        )
        self.step_rows = Histogram(
            "rota_step_tokens",
            "Tokens in one step, prefill and decode.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
            registry=r,
        )
        self.release = Histogram(
            "rota_cancel_to_release_seconds", "From a cancel to its blocks being back.", buckets=_LATENCY_S, registry=r
        )
        self.connections = Gauge("rota_connections", "Open sockets.", registry=r)
        self.loop_lag = Gauge("rota_event_loop_lag_seconds", "How late the event loop ran its last timer.", registry=r)
        self.worker_restarts = Counter("rota_worker_restarts", "Times the worker was started again.", registry=r)
        self.mailbox_depth = Gauge("rota_mailbox_depth", "Messages waiting.", ["actor", "lane"], registry=r)
        self.mailbox_high_water = Gauge("rota_mailbox_high_water", "Most ever waiting.", ["actor", "lane"], registry=r)
        self.mailbox_wait = Gauge(
            "rota_mailbox_waited_seconds_total", "Time messages spent waiting, summed.", ["actor", "lane"], registry=r
        )

        self._queued: dict[str, Callable[[], int]] = {}
        self.requests.labels("queued").set_function(lambda: sum(count() for count in self._queued.values()))
        self._before_scrape: list[Callable[[], None]] = []

    def count_queued(self, holder: str, count: int) -> None:
        """How many requests wait for their first step at `holder`: the gauge is the sum over all holders."""
        self._queued[holder] = lambda: count

    def queued_at(self, holder: str, count: Callable[[], int]) -> None:
        """The same, for a holder that is asked at every exposition and need not keep count."""
        self._queued[holder] = count

    def before_scrape(self, update: Callable[[], None]) -> None:
        """Call `update` before every exposition, for gauges that nobody keeps up to date otherwise."""
        self._before_scrape.append(update)

    def exposition(self) -> bytes:
        """The text that `GET /metrics` answers with."""
        for update in self._before_scrape:
            update()
        return generate_latest(self.registry)
