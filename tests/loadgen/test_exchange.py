"""How the waits of one request are counted, and whether it met its targets."""

import math
from typing import Any

import pytest

from loadgen.exchange import Exchange

TARGETS = {"ttft_target_s": 1.0, "itl_target_s": 0.1}


def exchange(**fields: Any) -> Exchange:
    return Exchange(**{"socket": 0, "number": 0, **TARGETS} | fields)


def test_waits_count_from_when_a_request_was_due_and_not_from_when_it_was_sent() -> None:
    late = exchange(
        due_s=10.0, sent_s=12.0, first_byte_s=12.25, texts_s=[12.5, 12.75], ended_s=13.0, outcome="finished"
    )
    assert (late.late_ms, late.ttfb_ms, late.ttft_ms, late.request_ms) == (2000.0, 2250.0, 2500.0, 3000.0)
    assert late.gaps_ms == [250.0]
    assert not late.met, "it was in time on the wire, and too late for who waited"


def test_of_a_request_that_is_due_when_sent_waits_count_from_the_send() -> None:
    assert exchange(sent_s=12.0, texts_s=[12.5]).ttft_ms == 500.0
    assert exchange(sent_s=12.0).late_ms is None


def finished(texts_s: list[float], **fields: Any) -> Exchange:
    return exchange(outcome="finished", due_s=0.0, sent_s=0.0, texts_s=texts_s, ended_s=texts_s[-1], **fields)


def test_a_finished_request_met_its_targets_when_its_first_text_and_its_gaps_did() -> None:
    assert finished([1.0, 1.09, 1.15]).met is True
    assert finished([1.01, 1.1]).met is False
    assert finished([0.5, 0.7]).met is False, "of few gaps all must be in time"
    many = [0.5 + 0.05 * number for number in range(200)]
    assert finished([*many, many[-1] + 0.15]).met is True, "one hiccup of two hundred is forgiven"
    assert finished([*many, many[-1] + 0.25]).met is False, "a pause is not"


def test_an_answer_without_text_has_met_nothing() -> None:
    assert exchange(outcome="finished", due_s=0.0, sent_s=0.0, ended_s=0.1).met is False


@pytest.mark.parametrize("outcome", ["failed", "refused", "dropped"])
def test_what_came_to_nothing_has_missed(outcome: str) -> None:
    assert exchange(outcome=outcome, due_s=0.0, sent_s=0.0, texts_s=[0.1], ended_s=0.2).met is False


@pytest.mark.parametrize(
    ("texts_s", "until_s", "met"),
    [
        ([], 0.9, None),
        ([], 1.1, False),
        ([0.5, 0.55], 0.6, None),
        ([1.5], 1.6, False),
        ([0.5, 0.75], 0.8, False),
        ([0.5], 0.75, False),
    ],
    ids=["no text yet", "no text in time", "so far so good", "first text late", "a late gap", "waiting too long"],
)
def test_what_was_not_seen_to_its_end_has_missed_only_what_it_had_missed_by_then(
    texts_s: list[float], until_s: float, met: bool | None
) -> None:
    left = exchange(outcome="left", due_s=0.0, sent_s=0.0, texts_s=texts_s, ended_s=until_s)
    assert left.met is met
    cut_off = exchange(outcome="unfinished", due_s=0.0, sent_s=0.0, texts_s=texts_s, given_up_s=until_s)
    assert cut_off.met is met


def test_a_request_without_a_socket_has_missed_and_one_that_was_never_due_has_not() -> None:
    assert exchange(due_s=0.0, code="connect_timeout").met is False
    assert exchange().met is None
    assert exchange(due_s=0.0, given_up_s=0.5).met is None
    assert exchange(due_s=0.0, given_up_s=1.5).met is False


def test_a_slow_readers_gaps_are_its_own_doing() -> None:
    assert finished([0.5, 5.5, 9.5], slow_reader=True).met is True
    assert finished([1.5, 5.5], slow_reader=True).met is False


def test_without_targets_nothing_is_met_or_missed() -> None:
    none = {"ttft_target_s": math.inf, "itl_target_s": math.inf}
    assert finished([0.5, 0.6], **none).met is None
    assert exchange(outcome="refused", due_s=0.0, **none).met is None
    assert finished([0.5, 9.6], ttft_target_s=1.0, itl_target_s=math.inf).met is True
