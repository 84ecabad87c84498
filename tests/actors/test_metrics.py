"""A histogram of ours reads as Prometheus' own would."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from actors.metrics import Metrics, TokenHistogram

BUCKETS = (0.001, 0.25, 1, 10)


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line and "_sum" not in line]


@given(st.lists(st.one_of(st.floats(0, 20), st.sampled_from(BUCKETS))))
def test_it_shows_what_prometheus_own_would(amounts: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = TokenHistogram("gap_seconds", "Between two tokens.", buckets=BUCKETS, registry=ours)
    other = Histogram("gap_seconds", "Between two tokens.", buckets=BUCKETS, registry=theirs)
    for amount in amounts:
        mine.observe(amount)
        other.observe(amount)
    assert shown(ours) == shown(theirs)
    assert ours.get_sample_value("gap_seconds_sum") == theirs.get_sample_value("gap_seconds_sum")


def test_queued_is_the_sum_over_those_who_count_and_those_who_are_asked() -> None:
    metrics = Metrics()
    waiting = ["a", "b"]
    metrics.count_queued("admission", 3)
    metrics.queued_at("scheduler", lambda: len(waiting))
    waiting.pop()
    assert 'rota_requests{state="queued"} 4.0' in metrics.exposition().decode()
    metrics.queued_at("scheduler", lambda: 0)
    assert 'rota_requests{state="queued"} 3.0' in metrics.exposition().decode()
