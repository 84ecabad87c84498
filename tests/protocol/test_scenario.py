"""Scenarios: what a file may say, and the one sentence about what it may not."""

import math
import os
import re
import sys
from pathlib import Path

import pytest

from protocol.scenario import Arrival, Scenario, ScenarioError, is_trace, read_azure, read_scenario, shipped

ONE = '[[arrivals]]\nname = "A"\nprompt_tokens = 200\noutput_tokens = 128\n'
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
2023-11-16 18:16:06.6805900,12000,16
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text(TRACE, encoding="utf-8")
    return file


def test_every_shipped_scenario_is_found_by_its_name() -> None:
    assert "laptops" in shipped()
    for name in shipped():
        scenario = read_scenario(name)
        assert scenario.name == name
        assert scenario.about


def test_the_laptops_are_the_three_requests_of_the_story() -> None:
    scenario = read_scenario("laptops")
    assert [(one.name, one.prompt_tokens, one.output_tokens, one.after) for one in scenario.arrivals] == [
        ("A", 200, 128, ()),
        ("C", 300, 128, ()),
        ("B", 12_000, 256, ("A", "C")),
    ]
    assert [scenario.targets(one) for one in scenario.arrivals] == [(5.0, 0.15), (5.0, 0.15), (60.0, 0.15)]
    assert "\n" not in scenario.about


def test_a_file_may_leave_out_all_but_the_arrivals(tmp_path: Path) -> None:
    scenario = read_scenario(written(tmp_path, ONE))
    assert scenario == Scenario("mine", (Arrival("A", 200, 128),))
    assert scenario.targets(scenario.arrivals[0]) == (5.0, 0.25)


def test_a_file_may_say_everything_and_whole_numbers_are_seconds_too(tmp_path: Path) -> None:
    text = (
        'name = "n"\nabout = "a"\nttft_target_s = 2\nitl_target_s = inf\n'
        '[[arrivals]]\nname = "late"\nprompt_tokens = 1\noutput_tokens = 1\nat_s = 3\nafter = ["A"]\nclient = "c"\n'
        f'service_tier = "priority"\nttft_target_s = 1.5\nitl_target_s = 0.1\n{ONE}'
    )
    scenario = read_scenario(str(written(tmp_path, text)))
    late, first = scenario.arrivals
    assert late == Arrival("late", 1, 1, 3.0, ("A",), "c", "priority", 1.5, 0.1)
    assert (scenario.targets(late), scenario.targets(first)) == ((1.5, 0.1), (2.0, math.inf))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name =", "is not TOML: "),
        ("", "the file: nobody comes: it needs [[arrivals]] or [[people]]."),
        ("arrivals = []", "the file: nobody comes: it needs [[arrivals]] or [[people]]."),
        ("arrival = 1\n" + ONE, "the file: there is no key `arrival`."),
        (ONE + "prompt = 3", "arrivals[0]: there is no key `prompt`."),
        (ONE + 'at_s = "0"', "arrivals[0].at_s: Expected `float`, got `str`."),
        (ONE + "at_s = nan", "arrivals[0].at_s: Expected `float` >= 0.0."),
        (ONE + "at_s = inf", "arrivals[0].at_s: Expected `float` <= 1000000000.0."),
        (ONE + "itl_target_s = 0", "arrivals[0].itl_target_s: Expected `float` > 0.0."),
        (ONE + 'service_tier = "royal"', "arrivals[0].service_tier: Invalid enum value 'royal'; it is one of "),
        (ONE + ONE.replace("200", "0"), "arrivals[1].prompt_tokens: Expected `int` >= 1."),
        (ONE.replace("200", "2.5"), "arrivals[0].prompt_tokens: Expected `int`, got `float`."),
        (ONE + ONE, "arrivals[1].name: 'A' is the name of an earlier one."),
        (ONE + 'after = ["B"]', "arrivals[0].after: nothing that arrives is named 'B'."),
        (ONE + 'after = ["A"]', "arrivals[0].after: A would wait for each other for ever."),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ScenarioError, match=re.escape(said)) as error:
        read_scenario(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_circle_of_after_is_told_with_its_members(tmp_path: Path) -> None:
    text = ONE + 'after = ["C"]\n' + ONE.replace("A", "B") + 'after = ["A"]\n' + ONE.replace("A", "C") + 'after = ["B"]'
    with pytest.raises(ScenarioError, match=r"arrivals\[\d\].after: (A|B|C) and \w and \w would wait for each other"):
        read_scenario(written(tmp_path, text))


def test_a_name_that_is_none_is_told_with_the_nearest_one() -> None:
    with pytest.raises(ScenarioError, match="did you mean laptops"):
        read_scenario("laptop")
    with pytest.raises(ScenarioError, match="rota comes with "):
        read_scenario("zebras")


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot be read: No such file"):
        read_scenario(tmp_path / "no.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ScenarioError, match="is not TOML"):
        read_scenario(tmp_path / "bytes.toml")


# -- its targets in words


def test_the_targets_are_told_in_the_unit_that_suits_them_and_with_how_many_have_others() -> None:
    one, two = Arrival("A", 1, 1), Arrival("B", 1, 1, itl_target_s=math.inf)
    assert Scenario("s", (one,), about="A story.").told() == "A story. Targets: first token 5 s, gap 250 ms."
    assert Scenario("s", (one,)).told() == "Targets: first token 5 s, gap 250 ms."
    assert Scenario("s", (two,), ttft_target_s=0.3).wanted() == "targets: first token 300 ms, gap whenever"
    many = Scenario("s", (two, *(Arrival(f"r{number}", 1, 1) for number in range(2))))
    assert many.wanted() == "targets: first token 5 s, gap 250 ms (1 of 3 requests have others)"


# -- the trace


def test_a_trace_keeps_its_distances_from_its_first_request(trace: Path) -> None:
    scenario = read_azure(trace)
    assert scenario.name == "trace"
    assert [one.name for one in scenario.arrivals] == ["line 2", "line 3", "line 4", "line 5"]
    assert [(one.prompt_tokens, one.output_tokens) for one in scenario.arrivals] == [
        (374, 44),
        (396, 109),
        (879, 55),
        (12000, 16),
    ]
    assert [one.at_s for one in scenario.arrivals] == pytest.approx([0.0, 4.314579, 4.541877, 20.0], abs=2e-6)
    assert {one.client for one in scenario.arrivals} == {""}, "each a client of its own"


def test_a_part_of_a_trace_begins_with_its_own_first_request(trace: Path) -> None:
    assert [one.name for one in read_azure(trace, first=1, count=2).arrivals] == ["line 3", "line 4"]
    assert [one.at_s for one in read_azure(trace, first=1, count=1).arrivals] == [0.0]
    assert [one.name for one in read_azure(trace, start_s=4.0, for_s=16.0).arrivals] == ["line 3", "line 4"]
    assert [one.name for one in read_azure(trace, start_s=4.0, first=2).arrivals] == ["line 5"]


def test_a_trace_can_be_made_faster_smaller_and_be_cut(trace: Path) -> None:
    scenario = read_azure(
        trace, rate=2.0, tokens=0.01, most_prompt_tokens=100, ttft_target_s=1.0, itl_target_s=math.inf
    )
    assert scenario.arrivals[-1].at_s == pytest.approx(10.0)
    assert [one.prompt_tokens for one in scenario.arrivals] == [4, 4, 9, 100]
    assert [one.output_tokens for one in scenario.arrivals] == [1, 1, 1, 1], "never none"
    assert scenario.targets(scenario.arrivals[0]) == (1.0, math.inf)


def test_a_trace_out_of_order_is_put_in_order_and_columns_go_by_their_names(trace: Path) -> None:
    trace.write_text(
        "GeneratedTokens,TIMESTAMP,ContextTokens\n"
        "7,2024-05-10 00:00:09.009930+00:00,70\n\n"
        "5,2024-05-10 00:00:00.009930+00:00,50\n"
    )
    assert [(one.name, one.at_s, one.prompt_tokens) for one in read_azure(trace).arrivals] == [
        ("line 4", 0.0, 50),
        ("line 2", 9.0, 70),
    ]


def test_times_of_several_zones_are_put_in_the_order_in_which_they_came(trace: Path) -> None:
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 03:00:05+02:00,20,2\n2024-05-10 01:00:00,10,1\n2024-05-10 00:00:07-01:00,30,3\n"
    )
    assert [(one.at_s, one.prompt_tokens) for one in read_azure(trace).arrivals] == [(0.0, 10), (5.0, 20), (7.0, 30)]


@pytest.mark.parametrize(("name", "trace"), [("a.csv", True), ("UP.CSV", True), ("a.toml", False), ("csv", False)])
def test_a_trace_is_told_by_its_suffix_in_any_case(name: str, trace: bool) -> None:
    assert is_trace(name) == trace


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: there is no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n", "line 1: there is no column GeneratedTokens"),
        (TRACE + "soon,1,1\n", "line 6: TIMESTAMP is 'soon', not a time like 2023-11-16 18:15:46.68."),
        (TRACE + "2023-11-16 18:16:06,oops,1\n", "line 6: ContextTokens is 'oops', not a whole number."),
        (TRACE + "2023-11-16 18:16:06,1,\n", "line 6: GeneratedTokens is '', not a whole number."),
        (
            TRACE + f"2023-11-16 18:16:06,{'9' * 5000},1\n",
            f"line 6: ContextTokens is '{'9' * 40}', not a whole number.",
        ),
        (
            TRACE + "2023-11-16 18:16:06,1,1000000001\n",
            "line 6: GeneratedTokens is 1,000,000,001; it must be from 1 to 1,000,000,000.",
        ),
        (TRACE + "2023-11-16 18:16:06,0,1\n", "line 6: ContextTokens is 0; it must be from 1 to 1,000,000,000."),
        (TRACE + "2023-11-16 18:16:06,1,-3\n", "line 6: GeneratedTokens is -3; it must be from 1 to 1,000,000,000."),
        (TRACE + "2023-11-16 18:16:06\n", "line 6: it has 1 of 3 columns."),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "none of its 0 requests"),
    ],
)
def test_a_trace_that_cannot_be_read_is_told_with_its_line(trace: Path, text: str, said: str) -> None:
    trace.write_text(text)
    with pytest.raises(ScenarioError, match=re.escape(said)) as error:
        read_azure(trace)
    assert str(trace) in str(error.value)


def test_an_empty_part_and_a_missing_trace_are_told(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="none of its 4 requests"):
        read_azure(trace, first=4)
    with pytest.raises(ScenarioError, match="rate and tokens must be above 0"):
        read_azure(trace, rate=0.0)
    with pytest.raises(ScenarioError, match="and finite"):
        read_azure(trace, tokens=math.inf)
    with pytest.raises(ScenarioError, match="cannot be read"):
        read_azure(tmp_path / "no.csv")


def test_a_trace_is_a_regular_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    with pytest.raises(ScenarioError, match=r"folder\.csv is no regular file: name a CSV file\.$"):
        read_azure(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_nobody_waits_for_a_pipe_to_say_a_trace(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(ScenarioError, match="is no regular file"):
        read_azure(pipe)


def test_a_trace_of_too_many_is_to_be_played_in_part(tmp_path: Path) -> None:
    file = tmp_path / "many.csv"
    file.write_text(TRACE + "2023-11-16 18:16:07,1,1\n" * 99_997, encoding="utf-8")
    with pytest.raises(ScenarioError, match="100,001 people come, and 100,000 is the most"):
        read_azure(file)
    assert len(read_azure(file, count=100_000).arrivals) == 100_000
    group = tmp_path / "mine.toml"
    group.write_text('[[people]]\nname = "t"\narrive = "trace"\ntrace = "many.csv"\n', encoding="utf-8")
    with pytest.raises(ScenarioError, match="100,001 people come"):
        read_scenario(group)
