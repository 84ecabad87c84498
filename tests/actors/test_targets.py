"""Targets: how their table is written, and what one request gets of it."""

import json
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.exchange import ConnectionLimits, Exchange
from actors.metrics import Metrics
from actors.targets import TIERS, Target, TargetsError, Tiers, TierTable, table_of
from protocol.messages import Accepted, Ask
from protocol.responses import ResponseCreate, ServiceTier
from tests.actors.recorders import Recorder

# --- what a request gets ---


def test_there_is_a_target_for_every_tier_that_can_be_asked_for() -> None:
    assert {*TIERS, "auto"} == set(get_args(ServiceTier))


@pytest.mark.parametrize("asked", [None, "auto", "default"])
def test_who_asks_for_no_tier_gets_the_default(asked: str | None) -> None:
    assert Tiers().resolve(asked, None, None) == ("default", 5.0, 0.25)


def test_each_figure_of_a_request_s_own_stands_instead_of_its_tier_s() -> None:
    tiers = Tiers()
    assert tiers.resolve("flex", None, None) == ("flex", 60.0, 1.0)
    assert tiers.resolve("flex", 200.0, None) == ("flex", 0.2, 1.0)
    assert tiers.resolve("flex", None, 5_000.0) == ("flex", 60.0, 5.0)
    assert tiers.resolve("flex", 200.0, 5_000.0) == ("flex", 0.2, 5.0)


def test_a_key_s_best_tier_takes_the_place_of_a_tighter_one_and_of_no_other() -> None:
    tiers = Tiers(best={"anna": "priority"})
    assert tiers.resolve("ultrafast", None, None, "anna") == ("priority", 2.0, 0.15)
    assert tiers.resolve("ultrafast", None, None, "bert") == ("ultrafast", 1.0, 0.1)
    assert tiers.resolve("ultrafast", None, None) == ("ultrafast", 1.0, 0.1)
    assert tiers.resolve("priority", None, None, "anna") == ("priority", 2.0, 0.15)
    assert tiers.resolve("flex", None, None, "anna") == ("flex", 60.0, 1.0)


def test_a_key_s_best_tier_bounds_who_asks_for_none_and_who_brings_targets() -> None:
    tiers = Tiers(best={"anna": "flex"})
    assert tiers.resolve(None, None, None, "anna") == ("flex", 60.0, 1.0)
    assert tiers.resolve("default", 1.0, 2_000.0, "anna") == ("flex", 60.0, 2.0)


def test_a_key_s_tightest_targets_bound_its_tier_s_and_its_own() -> None:
    tiers = Tiers(floors={"anna": Target(1_500, 0)})
    assert tiers.resolve("ultrafast", None, None, "anna") == ("ultrafast", 1.5, 0.1)
    assert tiers.resolve(None, 20.0, 20.0, "anna") == ("default", 1.5, 0.02)
    assert tiers.resolve("flex", None, None, "anna") == ("flex", 60.0, 1.0)
    assert tiers.resolve(None, 20.0, 20.0, "bert") == ("default", 0.02, 0.02)


def test_a_tier_like_the_key_s_best_keeps_its_name() -> None:
    assert Tiers(best={"anna": "default"}).resolve("scale", None, None, "anna") == ("scale", 5.0, 0.25)


def test_a_tier_tighter_in_one_figure_keeps_its_name_and_its_other_figure() -> None:
    tiers = Tiers(table_of("fast=100/900,flex=200/300"), {"anna": "flex"})
    assert tiers.resolve("fast", None, None, "anna") == ("fast", 0.2, 0.9)


MILLISECONDS = st.floats(0.001, 1e9)
TARGETS = st.builds(Target, MILLISECONDS, MILLISECONDS)
TABLES = st.builds(TierTable, **dict.fromkeys(TIERS, TARGETS))


@given(TABLES, st.none() | MILLISECONDS, st.none() | MILLISECONDS)
def test_no_request_of_a_key_gets_a_tighter_target_than_its_best_tier(
    table: TierTable, ttft_ms: float | None, itl_ms: float | None
) -> None:
    for best, asked in product(TIERS, (*TIERS, "auto", None)):
        bounded = Tiers(table, {"anna": best}).resolve(asked, ttft_ms, itl_ms, "anna")
        free = Tiers(table).resolve(asked, ttft_ms, itl_ms)
        most = Tiers(table).resolve(best, None, None)
        assert bounded[1:] == (max(free.ttft_s, most.ttft_s), max(free.itl_s, most.itl_s))
        assert bounded.tier in (free.tier, best)


def test_a_connection_shows_the_tier_that_its_key_got_be_it_run_or_withdrawn() -> None:
    frames: list[bytes] = []
    tokeniser = Recorder()
    exchange = Exchange(
        connection=1,
        tenant="anna",
        model="m",
        put=frames.extend,
        tokeniser=tokeniser.address,
        scheduler=Recorder().address,
        clock=lambda: 100.0,
        unix_clock=lambda: 1_732_900_000.0,
        new_id=iter("abc").__next__,
        metrics=Metrics(),
        limits=ConnectionLimits(),
        tiers=Tiers(best={"anna": "priority"}),
    )
    for _ in range(2):
        exchange.asked(ResponseCreate(input="Hi", service_tier="ultrafast"), 100.0, 100)
    exchange.give_turns()
    (ask,) = tokeniser.of(Ask)
    exchange.said(Accepted(ask.request, 9, 64, 100.0))
    exchange.end_all(None)
    shown = [(event["type"], event["response"]["service_tier"]) for event in map(json.loads, frames)]
    ends = ["response.created", "response.incomplete"] * 2
    assert shown == [(kind, "priority") for kind in ends]


# --- how it is written ---


def test_a_tier_that_is_not_named_keeps_its_default() -> None:
    expected = TierTable(default=Target(1_000.0, 20.5), fast=Target(3.0, 4.0))
    assert table_of("default=1000/20.5, fast = 3 / 4") == expected
    assert table_of(["default=1000/20.5", "fast=3/4"]) == expected
    assert table_of({"default": {"ttft_ms": 1_000, "itl_ms": 20.5}, "fast": {"itl_ms": 4, "ttft_ms": 3}}) == expected
    assert table_of("") == table_of([]) == table_of({}) == TierTable()


def test_a_figure_that_is_not_named_keeps_its_default() -> None:
    assert table_of({"flex": {"itl_ms": 7}}) == TierTable(flex=Target(60_000.0, 7.0))


def test_a_table_is_read_as_it_is_shown() -> None:
    table = TierTable(default=Target(12_345_678.0, 0.125))
    assert str(table).startswith("default=12345678/0.125, flex=60000/1000, ")
    assert table_of(str(table)) == table


FORM = "a tier's targets are written TIER=TTFT_MS/ITL_MS, such as default=5000/250."
ABOVE = "it must be a number of milliseconds above 0."


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("default", f"cannot be 'default': {FORM}"),
        ("default=5000", f"cannot be 'default=5000': {FORM}"),
        ("default=1/2/3", f"cannot be 'default=1/2/3': {FORM}"),
        ("fast=1/2,default=soon/250", f"cannot be 'default=soon/250': {FORM}"),
        (3, f"cannot be 3: {FORM}"),
        (["default=1/2", 3], f"cannot be 3: {FORM}"),
        ("priorty=1/2", "has no tier 'priorty'. Did you mean priority?"),
        ("auto=1/2", "has no tier 'auto'. Did you mean default?"),
        ("gold=1/2", "has no tier 'gold'. The tiers are default, flex, scale, priority, fast, ultrafast."),
        ({"Fast": {}}, "has no tier 'Fast'. Did you mean fast?"),
        ("flex=0/250", f"cannot have flex.ttft_ms = 0: {ABOVE}"),
        ("flex=5000/-1.5", f"cannot have flex.itl_ms = -1.5: {ABOVE}"),
        ("flex=nan/1", f"cannot have flex.ttft_ms = nan: {ABOVE}"),
        ("flex=1/inf", f"cannot have flex.itl_ms = inf: {ABOVE}"),
        ({"flex": {"ttft_ms": True}}, f"cannot have flex.ttft_ms = True: {ABOVE}"),
        ({"flex": {"ttft_ms": "soon"}}, f"cannot have flex.ttft_ms = 'soon': {ABOVE}"),
        ({"flex": {"ttft": 5}}, "has no flex.ttft. Did you mean flex.ttft_ms?"),
        ({"flex": {"colour": 5}}, "has no flex.colour. A tier has ttft_ms and itl_ms."),
        ({"flex": 5}, "cannot have flex = 5: write flex = { ttft_ms = 5000, itl_ms = 250 }."),
    ],
)
def test_what_cannot_be_used_is_named_with_the_reason(written: object, said: str) -> None:
    with pytest.raises(TargetsError) as caught:
        table_of(written)
    assert str(caught.value) == said
