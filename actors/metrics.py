"""Everything rota counts, in Prometheus' words. One registry an engine, so that two engines in one test do not mix.

Knows names, units and buckets; the table in CONTRIBUTING.md says what each means. Knows nothing of who counts.
"""

import importlib.metadata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString

from actors.actor import LaneStatistics
from protocol.messages import FinishReason, ModelReady, Stats

# When a counter began is when the process did, which it says of itself; nobody reads it from each of them.
disable_created_metrics()  # type: ignore[no-untyped-call]

# A datacentre's GPU makes a token in 5 to 30 ms and a laptop's processor in 10 to 200, so the buckets stand closest
# there. Every default target is a bound of its histogram: what share met it can be read off.
# fmt: off
STEP_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.5,
    1, 2, 5, 10,
)
# fmt: on
GAP_S = STEP_S
WAIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 7.5, 10, 15, 30, 60, 120, 300)
"""Of what a person waits for: a queue, a prompt's prefill, a first text, an answer."""
LAG_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)
RELEASE_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REQUEST_TOKENS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


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


class CountElsewhere(Collector):
    """A counter that somebody else keeps, and that is read when somebody asks."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self.count: Callable[[], float] = lambda: 0
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self._name, self._documentation, value=self.count())


class MailboxCollector(Collector):
    """What mailboxes count of themselves, read when somebody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.statistics: Callable[[], Mapping[str, Mapping[str, LaneStatistics]]] = dict
        """By actor and lane."""
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        labels = ["actor", "lane"]
        depth = GaugeMetricFamily("rota_mailbox_depth", "Messages waiting.", labels=labels)
        high = GaugeMetricFamily("rota_mailbox_high_water", "Most ever waiting.", labels=labels)
        taken = CounterMetricFamily("rota_mailbox_messages", "Messages taken to be handled.", labels=labels)
        refused = CounterMetricFamily("rota_mailbox_refused", "Messages a full lane refused.", labels=labels)
        waited = CounterMetricFamily(
            "rota_mailbox_waited_seconds", "Time messages spent waiting, summed.", labels=labels
        )
        longest = GaugeMetricFamily("rota_mailbox_longest_wait_seconds", "Longest wait of a message.", labels=labels)
        for actor, lanes in self.statistics().items():
            for lane, counted in lanes.items():
                at = [actor, lane]
                depth.add_metric(at, counted.depth)
                high.add_metric(at, counted.high_water)
                taken.add_metric(at, counted.taken)
                refused.add_metric(at, counted.refused)
                waited.add_metric(at, counted.waited_s)
                longest.add_metric(at, counted.longest_wait_s)
        return depth, high, taken, refused, waited, longest


class Metrics:
    """The instruments of one engine."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.info = Info("rota", "Which rota serves which model, on what.", registry=r)
        self.worker_up = Gauge("rota_worker_up", "1 while a worker is there that has run a step.", registry=r)
        self.worker_restarts = Counter("rota_worker_restarts", "Times the worker was started again.", registry=r)

        self.kv_blocks = Gauge("rota_kv_blocks", "KV blocks by state.", ["state"], registry=r)
        self.requests = Gauge("rota_requests", "Requests by state.", ["state"], registry=r)
        self.paused = Gauge("rota_requests_paused", "Of these, kept off the device for a slow reader.", registry=r)
        self.unread = Gauge(
            "rota_responses_unread", "Kept for readers whose socket was lost, or may not have had the end.", registry=r
        )
        self.detached = Counter("rota_detaches", "Responses kept when their socket was lost.", registry=r)
        self.resumed = Counter("rota_resumes", "Times a reader came back for a response.", registry=r)
        self.waiting_work = Gauge(
            "rota_waiting_work_seconds", "Predicted time on the device of all in the waiting room.", registry=r
        )
        self.accepted = Counter("rota_requests_accepted", "Requests that got a response.", registry=r)
        self.finished = Counter("rota_requests_finished", "Requests ended, by reason.", ["reason"], registry=r)
        self.refused = Counter("rota_requests_refused", "Requests refused, by error code.", ["code"], registry=r)
        self.preemptions = Counter("rota_preemptions", "Requests taken off the device for memory.", registry=r)
        self.targets = Counter(
            "rota_targets", "Targets of ended requests, met or missed.", ["target", "outcome"], registry=r
        )
        self.input_tokens = Counter("rota_input_tokens", "Prompt tokens of accepted requests.", registry=r)
        self.cached_tokens = Counter("rota_cached_tokens", "Of these, found in the cache.", registry=r)
        self.output_tokens = Counter("rota_output_tokens", "Tokens sampled.", registry=r)

        def histogram(name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, documentation, buckets=buckets, registry=r)

        self.ttft = histogram("rota_ttft_seconds", "From receiving a request to its first text at the socket.", WAIT_S)
        self.gap = TokenHistogram(
            "rota_inter_token_gap_seconds", "Between two tokens of one answer.", buckets=GAP_S, registry=r
        )
        self.lane = histogram("rota_lane_seconds", "From receiving a request to its turn in its lane.", WAIT_S)
        self.queue = histogram("rota_queue_seconds", "From acceptance to the first step.", WAIT_S)
        self.prefill = histogram("rota_prefill_seconds", "From the first step to the first token.", WAIT_S)
        self.request = histogram("rota_request_seconds", "From receiving a request to its end.", WAIT_S)
        self.request_input = histogram("rota_request_input_tokens", "Prompt tokens of one request.", REQUEST_TOKENS)
        self.request_output = histogram("rota_request_output_tokens", "Tokens of one answer.", REQUEST_TOKENS)
        self.release = histogram("rota_cancel_to_release_seconds", "From a cancel to its blocks being back.", RELEASE_S)

        self.step = histogram("rota_step_seconds", "One step on the device.", STEP_S)
        self.step_rows = histogram("rota_step_tokens", "Tokens in one step, prefill and decode.", STEP_TOKENS)
        self.steps_out_of_memory = Counter(
            "rota_steps_out_of_memory", "Steps that were not run, for lack of memory on the device.", registry=r
        )
        self.step_error = Gauge(
            "rota_step_cost_error_ratio", "How far predicted step times are off, as a share, smoothed.", registry=r
        )

        self.connections = Gauge("rota_connections", "Open sockets.", registry=r)
        self.watchers = Gauge("rota_watchers", "Of these, sockets that watch.", registry=r)
        self.connections_opened = Counter("rota_connections_opened", "Sockets that were let in.", registry=r)
        self.connections_refused = Counter(
            "rota_connections_refused", "Sockets that were not, by error code.", ["code"], registry=r
        )
        self.loop_lag = histogram("rota_event_loop_lag_seconds", "How late the event loop ran a timer.", LAG_S)
        self.mailboxes = MailboxCollector(r)
        self.trace_lost = CountElsewhere("rota_trace_lost", "Messages that the trace could not take.", r)
        ProcessCollector(registry=r)

        self._queued: dict[str, Callable[[], int]] = {}
        self.requests.labels("queued").set_function(lambda: sum(count() for count in self._queued.values()))

    def count_queued(self, holder: str, count: int) -> None:
        """How many requests wait for their first step at `holder`: the gauge is the sum over all holders."""
        self._queued[holder] = lambda: count

    def queued_at(self, holder: str, count: Callable[[], int]) -> None:
        """The same, for a holder that is asked at every exposition and need not keep count."""
        self._queued[holder] = count

    def show_model(self, ready: ModelReady, policy: str) -> None:
        """What is served, by which rota."""
        version = importlib.metadata.version("rota")
        shown = {"model": ready.name, "device": ready.device, "dtype": ready.dtype, "kernels": ready.kernels}
        self.info.info({"version": version, "policy": policy, **shown})

    def count_finished(
        self,
        reason: FinishReason,
        *,
        taking_s: float,
        lane_s: float,
        stats: Stats | None,
        input_tokens: int,
        output_tokens: int,
        met: Mapping[str, bool | None],
    ) -> None:
        """A response has ended. `taking_s` and `lane_s`: from receiving it to its end, and to its turn in its lane.

        `stats` None: the engine has nothing to say of it. `met`: by target, None where it came to no verdict.
        """
        self.finished.labels(reason).inc()
        self.request.observe(taking_s)
        self.lane.observe(lane_s)
        self.request_input.observe(input_tokens)
        self.request_output.observe(output_tokens)
        if stats is not None:
            self.queue.observe(stats.queued_s)
            self.cached_tokens.inc(stats.cached_tokens)
            if stats.prefill_s is not None:
                self.prefill.observe(stats.prefill_s)
        for target, verdict in met.items():
            if verdict is not None:
                self.targets.labels(target, "met" if verdict else "missed").inc()

    def exposition(self) -> bytes:
        """The text that `GET /metrics` answers with."""
        return generate_latest(self.registry)
