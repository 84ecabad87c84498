"""What `/metrics` shows is documented, fits what it measures, and reads as Prometheus' own would."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from actors.actor import LaneStatistics
from actors.metrics import GAP_S, WAIT_S, Metrics, TokenHistogram
from actors.targets import Tiers
from protocol.messages import Stats

BUCKETS = (0.001, 0.25, 1, 10)
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
ROW = re.compile(r"^\| `(rota_\w+)(?:\{([\w,]+)\})?` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def shown(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line and "_sum" not in line]


@given(st.lists(st.one_of(st.floats(0, 20), st.sampled_from(BUCKETS))))
def test_a_histogram_of_ours_shows_what_prometheus_own_would(amounts: list[float]) -> None:
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


def everything() -> Metrics:
    """With a sample of each, so that every label shows."""
    metrics = Metrics()
    metrics.info.info({"version": "1", "model": "m", "device": "cpu", "dtype": "f", "kernels": "k", "policy": "p"})
    metrics.kv_blocks.labels("free").set(1)
    metrics.refused.labels("server_overloaded").inc()
    metrics.connections_refused.labels("server_overloaded").inc()
    metrics.mailboxes.statistics = lambda: {"reaper": {"data": LaneStatistics(1, 2, 3, 4, 5.0, 6.0)}}
    met = {"ttft": True, "itl": False}
    stats = Stats(queued_s=0.5, prefill_s=0.25, cached_tokens=32)
    metrics.count_finished("stop", taking_s=2.0, lane_s=0.0, stats=stats, input_tokens=40, output_tokens=8, met=met)
    return metrics


def test_the_table_in_contributing_names_every_metric_with_its_type_and_labels() -> None:
    told = {name: (labels or "", kind) for name, labels, kind, _, _ in ROW.findall(CONTRIBUTING.read_text())}
    there: dict[str, tuple[str, str]] = {}
    for family in text_string_to_metric_families(everything().exposition().decode()):
        if not family.name.startswith("rota"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        kind = "gauge" if family.type == "unknown" else family.type
        there[name] = ",".join(sorted(labels)), kind
    assert {
        name: (",".join(sorted(filter(None, labels.split(",")))), kind) for name, (labels, kind) in told.items()
    } == there


def test_each_unit_in_the_table_is_in_the_metrics_name() -> None:
    """Base units, as Prometheus asks: a name that ends in seconds is in seconds, and the other way round."""
    rows = ROW.findall(CONTRIBUTING.read_text())
    assert rows
    for name, _, _, unit, meaning in rows:
        assert ("_seconds" in name) is (unit.strip() == "seconds"), name
        assert meaning.strip(), name


@pytest.mark.parametrize("tier", ["default", "flex", "scale", "priority", "fast", "ultrafast"])
def test_the_share_that_met_a_default_target_can_be_read_off_a_bucket(tier: str) -> None:
    goal = Tiers().resolve(tier, None, None, "")
    assert goal.ttft_s in WAIT_S
    assert goal.itl_s in GAP_S


@pytest.mark.parametrize("gap_s", [0.004, 0.006, 0.009, 0.025, 0.04, 0.09, 0.13, 0.18])
def test_no_gap_that_a_machine_makes_is_told_to_more_than_a_factor_of_two(gap_s: float) -> None:
    above = next(bound for bound in GAP_S if bound >= gap_s)
    below = max((bound for bound in GAP_S if bound < gap_s), default=0.0)
    assert above <= 2 * below


def test_what_mailboxes_count_is_read_when_somebody_asks() -> None:
    value = everything().registry.get_sample_value
    at = {"actor": "reaper", "lane": "data"}
    assert value("rota_mailbox_depth", at) == 1
    assert value("rota_mailbox_high_water", at) == 2
    assert value("rota_mailbox_messages_total", at) == 3
    assert value("rota_mailbox_refused_total", at) == 4
    assert value("rota_mailbox_waited_seconds_total", at) == 5
    assert value("rota_mailbox_longest_wait_seconds", at) == 6


def test_an_end_counts_in_everything_it_says() -> None:
    metrics = everything()
    metrics.count_finished(
        "cancelled", taking_s=1.0, lane_s=1.0, stats=None, input_tokens=0, output_tokens=0, met={"ttft": None}
    )
    value = metrics.registry.get_sample_value
    assert value("rota_requests_finished_total", {"reason": "stop"}) == 1
    assert value("rota_requests_finished_total", {"reason": "cancelled"}) == 1
    assert value("rota_targets_total", {"target": "ttft", "outcome": "met"}) == 1
    assert value("rota_targets_total", {"target": "itl", "outcome": "missed"}) == 1
    assert value("rota_cached_tokens_total") == 32
    assert value("rota_request_seconds_sum") == 3.0
    assert value("rota_queue_seconds_count") == 1, "one that the engine never heard of waited for nothing"
    assert value("rota_prefill_seconds_sum") == 0.25
