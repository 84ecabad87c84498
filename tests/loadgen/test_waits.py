"""Goodput, groups and what is left out of the figures."""

import math
from typing import Any

import pytest

from loadgen.exchange import Exchange
from loadgen.figures import Report, came_per_s, report
from tests.loadgen.test_figures import load


def exchange(**fields: Any) -> Exchange:
    """It took 0.5 s to the first text, and met its targets."""
    given: dict[str, Any] = {"outcome": "finished", "due_s": 0.0, "sent_s": 0.1, "texts_s": [0.5, 0.55], "ended_s": 2.0}
    return Exchange(**{"socket": 0, "number": 0, "ttft_target_s": 1.0, "itl_target_s": 0.1, **given} | fields)


def add_up(*exchanges: Exchange) -> Report:
    return report(load(), exchanges, stopped_by="finished", opened=2, not_opened=[], client_lag_worst_s=0.0)


def test_goodput_is_what_met_its_targets_a_second_and_of_those_that_did_either() -> None:
    figures = add_up(
        exchange(),
        exchange(),
        exchange(texts_s=[1.5]),
        exchange(outcome="refused", texts_s=[]),
        exchange(outcome="left", texts_s=[], ended_s=0.4, left=True),
    )
    assert figures.goodput is not None
    assert (figures.goodput.met, figures.goodput.missed, figures.goodput.neither) == (2, 2, 1)
    assert (figures.goodput.share, figures.goodput.per_s) == (0.5, 1.0)
    assert figures.requests.left == 1
    assert [one.met for one in figures.per_request] == [True, True, False, False, None]


def test_what_was_never_asked_is_in_no_goodput() -> None:
    figures = add_up(exchange(), exchange(outcome="left", texts_s=[], due_s=None, sent_s=None, ended_s=None, left=True))
    assert figures.goodput is not None
    assert (figures.goodput.met, figures.goodput.missed, figures.goodput.neither) == (1, 0, 0)
    assert (figures.requests.left, figures.requests.never_asked) == (1, 1)


def test_what_was_offered_are_requests_and_not_people() -> None:
    """Two people of three questions each, who come a second apart."""
    asked = [exchange(due_s=came + later) for came in (0.0, 1.0) for later in (0.0, 2.0, 4.0)]
    assert came_per_s(asked) == pytest.approx(5 / 5.0)
    assert came_per_s([*asked, exchange(due_s=99.0, warm_up=True), exchange(due_s=None)]) == pytest.approx(5 / 5.0)
    assert came_per_s([exchange(), exchange()]) is None
    assert came_per_s([]) is None


def test_without_a_target_there_is_no_goodput() -> None:
    assert add_up(exchange(ttft_target_s=math.inf, itl_target_s=math.inf)).goodput is None


def test_the_warm_up_is_in_no_figure_and_counted_apart() -> None:
    figures = add_up(exchange(warm_up=True, texts_s=[0.9], input_tokens=9), exchange(due_s=10.0, sent_s=10.0))
    assert figures.excluded_warm_up == 1
    assert (figures.requests.planned, figures.tokens.input, len(figures.per_request)) == (1, 0, 1)
    assert figures.per_request[0].due_after_ms == 0.0, "times count from the first that counts"


def test_slow_readers_are_in_no_gap() -> None:
    figures = add_up(exchange(), exchange(slow_reader=True, texts_s=[0.5, 9.0], output_tokens=2))
    assert figures.slow_readers == 1
    assert figures.client.gap_ms is not None
    assert figures.client.gap_ms.count == 1
    assert figures.client.token_gap_ms is None
    assert figures.client.ttft_ms is not None
    assert figures.client.ttft_ms.count == 2


def test_groups_are_told_apart_when_there_are_several() -> None:
    assert add_up(exchange(group="a"), exchange(group="a")).groups == []
    first, second = add_up(exchange(group="a"), exchange(group="b", texts_s=[1.5]), exchange(group="a")).groups
    assert (first.group, first.requests, first.met, first.missed, first.met_share) == ("a", 2, 2, 0, 1.0)
    assert (second.group, second.requests, second.met, second.missed, second.met_share) == ("b", 1, 0, 1, 0.0)
    assert first.ttft_ms is not None
    assert first.ttft_ms.worst == 500.0


def test_how_late_this_client_was_is_told_apart_and_is_in_every_wait() -> None:
    figures = add_up(exchange(), exchange(sent_s=0.4))
    assert figures.client.late_ms is not None
    assert figures.client.late_ms.worst == pytest.approx(400.0)
    assert figures.client.ttft_ms is not None
    assert figures.client.ttft_ms.p50 == figures.client.ttft_ms.worst == 500.0


def test_a_prompt_that_is_not_as_long_as_asked_is_told() -> None:
    assert add_up(exchange(asked_tokens=100, input_tokens=97), exchange(asked_tokens=50, input_tokens=51)).per_request
    figures = add_up(exchange(asked_tokens=100, input_tokens=97), exchange(asked_tokens=50, input_tokens=51))
    assert figures.prompt_tokens_off == 3
    assert add_up(exchange(input_tokens=97), exchange(asked_tokens=5)).prompt_tokens_off is None
