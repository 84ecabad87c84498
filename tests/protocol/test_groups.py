"""What a file may not say of its people, and the one sentence about it."""

import re
from pathlib import Path

import pytest

from protocol.scenario import Scenario, ScenarioError, crowd, read_scenario, with_targets

GROUP = '[[people]]\nname = "chat"\ncount = 9\nprompt_tokens = 10\noutput_tokens = 5\n'
TRACED = '[[people]]\nname = "t"\narrive = "trace"\ntrace = "t.csv"\n'
ARRIVAL = '[[arrivals]]\nname = "chat 3"\nprompt_tokens = 1\noutput_tokens = 1\n'


def read(folder: Path, text: str) -> Scenario:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return read_scenario(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GROUP + "counts = 2", "people[0]: there is no key `counts`."),
        (GROUP.replace("count = 9\n", ""), "people[0]: count: it says how many people there are, and is missing."),
        (GROUP.replace("9", "0"), "people[0].count: Expected `int` >= 1."),
        (GROUP.replace("9", "100_001"), "mine.toml: 100,001 people come, and 100,000 is the most: ask for fewer."),
        (ARRIVAL.replace("chat", "one") + GROUP.replace("9", "100_000"), "100,001 people come, and 100,000 is the"),
        (GROUP.replace("10", "2_000_000"), "people[0]: prompt_tokens: 2,000,000 is more than 1,000,000."),
        (
            GROUP.replace("= 5", "= { from = 1, to = 2e6 }"),
            "people[0]: output_tokens: 2,000,000 is more than 1,000,000.",
        ),
        (
            GROUP + 'arrive = "never"',
            "people[0].arrive: Invalid enum value 'never'; it is one of together, fixed, poisson, gamma, trace.",
        ),
        (GROUP + 'arrive = "poisson"', 'people[0]: rate: people who arrive "poisson" need one, in people a second.'),
        (GROUP + "rate = 1", 'people[0]: rate: people who arrive "together" have none'),
        (
            GROUP + 'arrive = "gamma"\nrate = 1',
            'people[0]: burstiness: it belongs to arrive = "gamma", which needs it.',
        ),
        (GROUP + 'arrive = "fixed"\nrate = 1\nburstiness = 2', "people[0]: burstiness: it belongs to"),
        (GROUP + 'arrive = "fixed"\nrate = 0', "people[0].rate: Expected `float` > 0.0."),
        (GROUP + 'arrive = "trace"', 'people[0]: trace: it belongs to arrive = "trace", which needs it.'),
        (GROUP + 'trace = "t.csv"', "people[0]: trace: it belongs to"),
        (GROUP + "first = 1", 'people[0]: first: it belongs to arrive = "trace".'),
        (GROUP + "tokens = 2", 'people[0]: tokens: it belongs to arrive = "trace".'),
        (TRACED + "prompt_tokens = 3", "people[0]: prompt_tokens: the trace has its own."),
        (TRACED + "questions = 3", "people[0]: questions: whoever comes from a trace has one."),
        (TRACED, "people[0].trace: The trace "),
        (GROUP.replace("output_tokens = 5\n", ""), "people[0]: output_tokens: it is missing."),
        (GROUP.replace("10", "2.5"), "people[0].prompt_tokens: Expected `int | table`, got `float`."),
        (GROUP.replace("10", "{ from = 3 }"), "people[0].prompt_tokens: it has from and to, or median and spread"),
        (
            GROUP.replace("10", "{ from = 0, to = 3 }"),
            "people[0]: prompt_tokens: there is no whole number of 1 or more",
        ),
        (GROUP.replace("10", "{ form = 3 }"), "people[0].prompt_tokens: there is no key `form`."),
        (GROUP + "questions = { mean = 3 }", "people[0]: questions: at most 10,000, not without a bound."),
        (GROUP + "questions = 20_000", "people[0]: questions: at most 10,000, not 20000."),
        (GROUP + "think_s = 3", "people[0]: think_s: it says nothing where nobody has a second question."),
        (GROUP + "reconnect = 0.1", "people[0]: reconnect: it says nothing where nobody has a second question."),
        (GROUP + "leave = 1.5", "people[0].leave: Expected `float` <= 1.0."),
        (GROUP + "leave = 0.5", "people[0]: leave: it needs either leave_after_s or leave_after_chunks."),
        (GROUP + "leave = 0.5\nleave_after_s = 1\nleave_after_chunks = 2", "people[0]: leave: it needs either"),
        (GROUP + "leave_after_s = 1", "people[0]: leave_after_s: it says nothing without a leave above 0."),
        (GROUP + "come_back = 1", "people[0]: come_back: it says nothing without a leave above 0."),
        (GROUP + "leave = 1\nleave_after_s = 1\ncome_back = 1", "people[0]: come_back: it needs come_back_s."),
        (GROUP + "leave = 1\nleave_after_s = 1\ncome_back_s = 1", "people[0]: come_back_s: it says nothing without"),
        (GROUP + "read_slowly = 0.5", "people[0]: read_slowly: it needs chunks_per_s."),
        (GROUP + "chunks_per_s = 5", "people[0]: chunks_per_s: it says nothing without a read_slowly above 0."),
        (GROUP + GROUP, "people[1].name: 'chat' is the name of an earlier one."),
        (GROUP + ARRIVAL, "people[0].name: its people would be named like the arrival 'chat 3'."),
        (
            "sockets = 2\n" + GROUP + "read_slowly = 0.5\nchunks_per_s = 1",
            "people[0].read_slowly: not on `sockets` that others share.",
        ),
        ("sockets = 0\n" + GROUP, "sockets: Expected `int` >= 1."),
        ("seed = -1\n" + GROUP, "seed: Expected `int` >= 0."),
        ('prompts = "no.txt"\n' + GROUP, "prompts: There is no file of prompts "),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(said)) as error:
        read(tmp_path, text)
    assert str(tmp_path / "mine.toml") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_prompts_is_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("One.\n\nTwo.\n")
    assert read(tmp_path, 'prompts = "real.txt"\n' + GROUP).prompts == str(tmp_path / "real.txt")
    assert read(tmp_path, 'prompts = "exact"\n' + GROUP).prompts == "exact"
    assert read(tmp_path, GROUP).prompts == "letters"


def test_targets_are_told_for_people_as_for_requests(tmp_path: Path) -> None:
    scenario = read(tmp_path, GROUP + "ttft_target_s = 9\n" + GROUP.replace("chat", "two").replace("9", "20"))
    assert scenario.wanted() == "targets: first token 5 s, gap 250 ms (9 of 29 people have others)"
    same = with_targets(scenario, {"ttft_target_s": 1.0})
    assert same.wanted() == "targets: first token 1 s, gap 250 ms"
    assert with_targets(scenario, {}) is scenario


def test_a_crowd_is_a_scenario_of_one_group(tmp_path: Path) -> None:
    made = crowd(count=9, prompt_tokens=10, output_tokens=5, rate=None, leave=0.0)
    assert made.people == crowd(name="load", count=9, prompt_tokens=10, output_tokens=5).people
    drawn = crowd(count=9, prompt_tokens={"from": 1, "to": 3}, output_tokens=5, seed=4, prompts="exact", sockets=2)
    assert (drawn.seed, drawn.prompts, drawn.sockets) == (4, "exact", 2)
    with pytest.raises(ScenarioError, match=re.escape("load: people[0]: rate: people who arrive")):
        crowd(count=9, prompt_tokens=10, output_tokens=5, arrive="poisson")
