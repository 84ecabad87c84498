"""The arguments that name a scenario: what each may be, and what becomes of it."""

import argparse
from pathlib import Path

import pytest

from protocol.distributions import Drawn
from protocol.people import people
from protocol.scenario import Scenario, ScenarioError
from protocol.scenario_arguments import add_part, amount, scenario_of, whole


def parsed(*flags: str) -> Scenario:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("--seed", type=whole(0))
    add_part(parser)
    return scenario_of(parser.parse_args(flags))


def test_a_seed_draws_other_people_and_without_one_they_are_the_files() -> None:
    assert people(parsed("chat")) == people(parsed("chat", "--seed", "1")), "chat.toml has 1"
    assert people(parsed("chat", "--seed", "2")) != people(parsed("chat"))


def test_a_rate_hurries_people_and_arrivals_alike() -> None:
    slow, fast = people(parsed("rush")), people(parsed("rush", "--rate", "2"))
    assert fast[-1].at_s == pytest.approx(slow[-1].at_s / 2)


def test_targets_are_everybodys() -> None:
    found = people(parsed("long-documents", "--targets", "ttft=1s,itl=none"))
    assert {person.ttft_target_s for person in found} == {1.0}


def test_a_trace_has_flags_that_nothing_else_has(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,2\n2023-11-16 18:15:48,20,4\n")
    (only,) = parsed(str(file), "--first", "1", "--tokens", "2", "--rate", "3").arrivals
    assert (only.prompt_tokens, only.output_tokens) == (40, 8)
    assert len(parsed(str(file), "--for-s", "1").arrivals) == 1
    with pytest.raises(ScenarioError, match=r"--for-s is for a \.csv trace, and chat is none\."):
        parsed("chat", "--for-s", "1")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200", 200),
        ("0.5", 0.5),
        ("from=100,to=400", Drawn(from_=100, to=400)),
        ("median=200, spread=0.5, most=900", Drawn(median=200, spread=0.5, most=900)),
        ("mean=5", Drawn(mean=5)),
    ],
)
def test_an_amount_is_a_number_or_drawn_as_in_a_file(text: str, value: float | Drawn) -> None:
    assert amount(text) == value
    assert type(amount(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("many", "'many' is not like 200, from=100,to=400"),
        ("mean=x", "is not like 200"),
        ("from=3", "it has from and to"),
        ("form=3,to=4", "unknown field `form`"),
    ],
)
def test_an_amount_that_is_none_is_told(text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        amount(text)
