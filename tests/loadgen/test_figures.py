from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.distributions import Distribution, distribution, percentile
from loadgen.exchange import Exchange, Outcome
from loadgen.figures import Load, Report, report

samples = st.lists(st.floats(0, 1e6), min_size=1, max_size=300)


def load(**changes: Any) -> Load:
    asked: dict[str, Any] = {
        "url": "ws://127.0.0.1:8000/v1/responses",
        "model": "m",
        "sockets": 2,
        "requests_per_socket": 1,
        "max_output_tokens": 5,
        "ignore_eos": True,
        "temperature": 0.0,
        "prompt_tokens": 140,
        "warmup": 0,
        "seed": 1,
        "timeout_s": 300.0,
    }
    return Load(**asked | changes)


def exchange(**fields: Any) -> Exchange:
    return Exchange(**{"socket": 0, "number": 0} | fields)


def add_up(*exchanges: Exchange, **changes: Any) -> Report:
    rest: dict[str, Any] = {"stopped_by": "finished", "opened": 2, "not_opened": [], "client_lag_worst_s": 0.0}
    return report(load(), exchanges, **rest | changes)


@given(samples, st.integers(1, 100))
def test_a_percentile_is_the_smallest_sample_that_enough_samples_do_not_exceed(
    values: list[float], percent: int
) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


@given(samples)
def test_figures_rise_from_the_median_to_the_worst(values: list[float]) -> None:
    figures = distribution(values)
    assert figures is not None
    assert figures.count == len(values)
    assert figures.p50 <= figures.p90 <= figures.p99 <= figures.worst == max(values)


def test_known_percentiles() -> None:
    assert distribution(range(1, 101)) == Distribution(count=100, p50=50, p90=90, p99=99, worst=100)
    assert distribution([7.0]) == Distribution(count=1, p50=7.0, p90=7.0, p99=7.0, worst=7.0)


def test_unknown_samples_are_left_out() -> None:
    assert distribution([None, 3.0, None]) == Distribution(count=1, p50=3.0, p90=3.0, p99=3.0, worst=3.0)
    assert distribution([None]) is None
    assert distribution([]) is None


def test_one_request_on_known_times() -> None:
    one = exchange(outcome="finished", sent_s=10.0, texts_s=[10.5, 10.75, 11.5], ended_s=11.75, output_tokens=5)
    assert one.ttft_ms == 500.0
    assert one.gaps_ms == [250.0, 750.0]
    assert one.token_gap_ms == 250.0
    assert one.request_ms == 1750.0


def test_a_gap_per_token_needs_two_tokens_and_two_chunks() -> None:
    assert exchange(sent_s=0.0, texts_s=[1.0, 2.0]).token_gap_ms is None
    assert exchange(sent_s=0.0, texts_s=[1.0, 2.0], output_tokens=1).token_gap_ms is None
    assert exchange(sent_s=0.0, texts_s=[1.0], output_tokens=9).token_gap_ms is None


def test_tokens_per_second_run_from_the_first_send_to_the_last_terminal_event() -> None:
    figures = add_up(
        exchange(outcome="finished", sent_s=10.0, ended_s=12.0, input_tokens=7, output_tokens=5),
        exchange(outcome="finished", sent_s=11.0, ended_s=15.0, input_tokens=8, output_tokens=5, cached_tokens=2),
        exchange(outcome="dropped", code="closed_1006", sent_s=11.0, ended_s=99.0),
    )
    assert figures.wall_s == 5.0
    assert figures.tokens.output_per_s == 2.0
    assert (figures.tokens.input, figures.tokens.cached_input, figures.tokens.output) == (15, 2, 10)


def test_gaps_are_pooled_over_all_requests() -> None:
    figures = add_up(
        exchange(outcome="finished", sent_s=0.0, texts_s=[1.0, 2.0], ended_s=2.0),
        exchange(outcome="unfinished", sent_s=0.0, texts_s=[4.0, 8.0]),
    )
    assert figures.client.gap_ms == Distribution(count=2, p50=1000.0, p90=4000.0, p99=4000.0, worst=4000.0)
    assert figures.client.ttft_ms is not None
    assert figures.client.ttft_ms.worst == 4000.0, (
        "a request that was cut off has waited for its first token all the same"
    )
    assert figures.client.request_ms is not None
    assert figures.client.request_ms.count == 1


def test_the_servers_own_figures_stand_beside_the_clients() -> None:
    figures = add_up(exchange(outcome="finished", queue_ms=41.0, prefill_ms=12.0, server_ttft_ms=55.0), exchange())
    assert figures.server.queue_ms == Distribution(count=1, p50=41.0, p90=41.0, p99=41.0, worst=41.0)
    assert figures.server.prefill_ms is not None
    assert figures.server.prefill_ms.worst == 12.0
    assert figures.server.ttft_ms is not None
    assert figures.server.ttft_ms.worst == 55.0


def test_an_empty_run_has_no_figures_and_does_not_divide_by_zero() -> None:
    figures = add_up(exchange(), opened=0, not_opened=["http_503", "http_503"])
    assert figures.wall_s is None
    assert figures.tokens.output_per_s is None
    assert figures.client.ttft_ms is None
    assert figures.sockets.not_opened_by_code == {"http_503": 2}
    assert not figures.all_finished


def test_codes_are_counted() -> None:
    figures = add_up(
        exchange(outcome="refused", code="server_overloaded"),
        exchange(outcome="refused", code="server_overloaded"),
        exchange(outcome="refused"),
        exchange(outcome="failed", code="worker_failed", status="failed", finish_reason="failed"),
        exchange(outcome="dropped", code="closed_1013", socket=1),
        exchange(outcome="finished", status="completed"),
    )
    assert figures.requests.refused_by_code == {"server_overloaded": 2, "unknown": 1}
    assert figures.requests.failed_by_code == {"worker_failed": 1}
    assert figures.requests.dropped_by_code == {"closed_1013": 1}
    assert figures.requests.by_finish_reason == {"failed": 1, "completed": 1}
    assert figures.sockets.dropped == 1


@given(st.lists(st.sampled_from(get_args(Outcome)), max_size=40))
def test_every_planned_request_has_one_outcome(outcomes: list[Outcome]) -> None:
    counts = add_up(*(exchange(outcome=outcome) for outcome in outcomes)).requests
    each = (
        counts.finished,
        counts.failed,
        counts.refused,
        counts.dropped,
        counts.unfinished,
        counts.not_sent,
        counts.left,
    )
    assert sum(each) == counts.planned == len(outcomes)


@pytest.mark.parametrize("outcome", sorted(set(get_args(Outcome)) - {"finished", "left"}))
def test_one_request_that_did_not_finish_is_enough(outcome: Outcome) -> None:
    assert add_up(exchange(outcome="finished")).all_finished
    assert not add_up(exchange(outcome="finished"), exchange(outcome=outcome)).all_finished


def test_a_socket_that_did_not_open_is_not_passed_over() -> None:
    assert not add_up(exchange(outcome="finished"), opened=1, not_opened=["connect_timeout"]).all_finished


@given(st.lists(st.floats(0, 100), max_size=20), st.integers(0, 50))
def test_a_report_survives_json(times: list[float], tokens: int) -> None:
    figures = add_up(exchange(outcome="unfinished", sent_s=0.0, texts_s=sorted(times), output_tokens=tokens))
    assert msgspec.json.decode(msgspec.json.encode(figures), type=Report) == figures
