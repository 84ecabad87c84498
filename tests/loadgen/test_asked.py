"""Which flags of `rota load` go together, and what they mean."""

import math
from pathlib import Path

import pytest

from loadgen.asked import Asked, asked
from loadgen.command_line import Misuse
from protocol.scenario import ScenarioError
from tests.loadgen.load_command import parsed


def one(*flags: str) -> Asked:
    [only] = asked(parsed(*flags), 99)
    return only


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:15:{second:02}.0000000,{100 + second},10\n" for second in range(10))
    file.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    return file


def test_without_people_a_load_is_sockets_with_requests_one_after_another() -> None:
    load, scene = one("--sockets", "3", "--requests", "2", "--prompt-tokens", "50", "--targets", "ttft=1s")
    assert (load.sockets, load.requests_per_socket, load.prompt_tokens, load.seed) == (3, 2, 50, 99)
    assert (scene.name, scene.questions, scene.offered_per_s) == (None, 6, None)
    assert {person.at_s for person in scene.people} == {0.0}
    assert {(person.ttft_target_s, person.itl_target_s) for person in scene.people} == {(1.0, math.inf)}


def test_a_rate_is_people_who_come_by_chance() -> None:
    load, scene = one("--rate", "4", "--people", "10", "--questions", "2", "--think-s", "3", "--max-output-tokens", "9")
    assert (scene.name, scene.arrivals, len(scene.people), scene.questions) == ("load", "poisson, 4/s", 10, 20)
    assert [(question.think_s, question.output_tokens) for question in scene.people[0].questions] == [(0, 9), (3, 9)]
    assert scene.offered_per_s is not None
    assert (load.sockets, load.requests_per_socket, load.prompt_tokens) == (10, 0, None)
    assert scene.people[0].ttft_target_s == math.inf, "nobody asked for a target"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--people", "5"), "together"),
        (("--arrive", "fixed", "--rate", "2"), "fixed, 2/s"),
        (("--arrive", "gamma", "--rate", "2", "--burstiness", "3"), "gamma with burstiness 3, 2/s"),
    ],
)
def test_people_come_as_they_are_told(flags: tuple[str, ...], words: str) -> None:
    assert one(*flags).scene.arrivals == words


def test_shares_of_people_leave_come_back_read_slowly_and_reconnect() -> None:
    _, scene = one(
        *("--people", "20", "--questions", "2", "--leave", "0.5", "--come-back", "0.5", "--read-slowly", "0.25"),
        *("--reconnect", "0.1"),
    )
    assert sum(person.leaves_after_chunks == 8 for person in scene.people) == 10
    assert sum(person.comes_back_s == 5.0 for person in scene.people) == 5
    assert sum(person.reads_chunks_per_s == 5.0 for person in scene.people) == 5
    assert sum(person.reconnects for person in scene.people) == 2
    assert {person.leaves_after_s for person in one("--leave", "1", "--leave-after-s", "2").scene.people} == {2.0}


def test_people_share_as_many_sockets_as_asked() -> None:
    load, scene = one("--people", "20", "--sockets", "4", "--idle", "7")
    assert (load.sockets, load.idle, scene.own_sockets) == (4, 7, 0)
    assert len({person.client for person in scene.people}) == 4
    load, scene = one("--scenario", "rush", "--sockets", "4")
    assert load.sockets == 4 + scene.own_sockets


def test_a_scenario_has_its_own_seed_and_lengths_and_targets_unless_told() -> None:
    load, scene = one("--scenario", "chat")
    assert (load.seed, scene.name, load.prompt_tokens, load.max_output_tokens) == (
        1,
        "chat",
        None,
        scene.longest_answer,
    )
    assert {person.ttft_target_s for person in scene.people} == {2.0}
    load, other = one("--scenario", "chat", "--seed", "5", "--targets", "ttft=9s", "--prompts", "exact")
    assert (load.seed, other.prompts, load.ttft_target_s) == (5, "exact", 9.0)
    assert {person.ttft_target_s for person in other.people} == {9.0}
    assert [person.at_s for person in other.people] != [person.at_s for person in scene.people]


def test_a_scenario_can_be_hurried() -> None:
    scene, faster = one("--scenario", "chat").scene, one("--scenario", "chat", "--rate", "2").scene
    assert [person.at_s for person in faster.people] == pytest.approx([person.at_s / 2 for person in scene.people])
    assert faster.arrivals == "as written, 2 times as fast"


def test_a_trace_is_cut_hurried_and_shortened(trace: Path) -> None:
    flags = ("--first", "2", "--count", "3", "--rate", "2", "--tokens", "0.5")
    _, scene = one("--scenario", str(trace), *flags)
    assert [person.at_s for person in scene.people] == [0.0, 0.5, 1.0]
    assert [person.questions[0].prompt_tokens for person in scene.people] == [51, 52, 52]
    assert scene.arrivals == "as recorded, 2 times as fast"


def test_a_sweep_is_the_same_people_at_each_rate_who_say_other_things() -> None:
    runs = asked(parsed("--rates", "1,2,4", "--people", "5"), 99)
    assert [scene.arrivals for _, scene in runs] == ["poisson, 1/s", "poisson, 2/s", "poisson, 4/s"]
    slow, _, fast = (scene.people for _, scene in runs)
    assert [person.at_s for person in fast] == pytest.approx([person.at_s / 4 for person in slow], abs=1e-6)
    assert [load.seed for load, _ in runs] == [99, 100, 101], "the server may have kept what was said before"


def test_connects_can_be_staggered() -> None:
    assert one("--connect-rate", "50").scene.connects_per_s == 50.0
    assert one("--connect-rate", "50", "--rate", "2").scene.connects_per_s == 50.0
    assert one().scene.connects_per_s == math.inf


def test_a_file_of_prompts_is_looked_for_before_anything_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    with pytest.raises(ScenarioError, match="There is no file of prompts"):
        one("--prompts", str(file))
    file.write_text("One.\n\nTwo.\n")
    load, scene = one("--prompts", str(file))
    assert (scene.prompts, load.prompt_tokens) == (str(file), None)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--null-executor", "--api", "chat"), "--api responses only"),
        (("--prompt", "Hi.", "--prompts", "exact"), "leave out --prompts"),
        (("--rate", "1", "--rates", "1,2"), "leave out --rate."),
        (("--first", "1"), "--first is for a .csv trace: name one"),
        (("--scenario", "chat", "--tokens", "2"), "--tokens is for a .csv trace, and chat is none."),
        (("--scenario", "chat", "--people", "2"), "--people is not for a scenario"),
        (("--scenario", "chat", "--max-output-tokens", "2"), "--max-output-tokens is not for a scenario"),
        (("--scenario", "chat", "--requests", "2"), "--requests is for sockets without people"),
        (("--people", "2", "--requests", "2"), "--requests is for sockets without people"),
        (("--people", "2", "--sockets", "2", "--api", "chat"), "leave out --sockets"),
        (("--sockets", "2", "--leave", "0.5"), "--leave takes a socket of one's own"),
        (("--leave-after-s", "2"), "--leave-after-s says nothing without --leave above 0"),
        (("--leave", "0", "--come-back", "0.5"), "--come-back says nothing without --leave above 0"),
        (("--leave", "1", "--leave-after-s", "2", "--leave-after-chunks", "2"), "choose one"),
        (("--think-s", "2"), "add --questions"),
        (("--arrive", "together", "--rate", "2"), "have no rate"),
        (("--arrive", "fixed"), "need a --rate"),
        (("--arrive", "gamma", "--rate", "2"), "--burstiness belongs to --arrive gamma"),
        (("--burstiness", "2", "--rate", "2"), "--burstiness belongs to --arrive gamma"),
    ],
)
def test_flags_that_do_not_go_together_are_one_sentence(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(Misuse) as misuse:
        asked(parsed(*flags), 99)
    assert said in str(misuse.value)
    assert str(misuse.value).endswith(".")


def test_a_trace_takes_no_shared_sockets(trace: Path) -> None:
    with pytest.raises(Misuse, match="--sockets is not for a trace"):
        asked(parsed("--scenario", str(trace), "--sockets", "2"), 99)


def test_a_scenario_that_does_not_exist_is_one_sentence() -> None:
    with pytest.raises(ScenarioError, match="did you mean chat"):
        asked(parsed("--scenario", "chad"), 99)
