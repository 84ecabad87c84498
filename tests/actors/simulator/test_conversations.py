"""People in a simulation: a question comes when the one before is answered; what is left out is said."""

import pytest

from actors.scheduling.policies import PolicyName
from actors.simulator.left_out import left_out
from actors.simulator.simulation import Simulation
from protocol.people import people
from protocol.scenario import Scenario, crowd, read_scenario
from protocol.timeline import Life
from tests.actors.simulator.plain import SETUP, lives, step_s


def run(scenario: Scenario, policy: PolicyName = "fixed_chunk") -> dict[str, Life]:
    return lives(Simulation(scenario, policy, SETUP).run())


def test_the_next_question_comes_so_long_after_the_last_answer_with_all_that_was_said() -> None:
    found = run(crowd(name="p", count=1, questions=3, think_s=4.0, prompt_tokens=100, output_tokens=30))
    first, second, third = found["p 1"], found["p 1, question 2"], found["p 1, question 3"]
    assert first.ended_s is not None
    assert second.arrived_s == pytest.approx(first.ended_s + 4.0)
    assert [life.prompt_tokens for life in (first, second, third)] == [100, 230, 360]
    assert all(life.finished for life in found.values())


def test_what_was_said_before_is_found_in_the_cache() -> None:
    """16 tokens a block: of the 230, the 8 full blocks of the 129 that were computed are there."""
    found = run(crowd(name="p", count=1, questions=2, prompt_tokens=100, output_tokens=30))
    assert found["p 1, question 2"].ttft_s == pytest.approx(step_s(230 - 128))


def test_who_does_not_remember_asks_each_question_alone() -> None:
    found = run(crowd(name="p", count=1, questions=2, prompt_tokens=100, output_tokens=30, remember=False))
    assert found["p 1, question 2"].prompt_tokens == 100
    assert found["p 1, question 2"].ttft_s == pytest.approx(step_s(100))


def test_after_a_question_that_was_refused_there_is_no_other() -> None:
    found = run(crowd(name="p", count=1, questions=3, prompt_tokens=3000, output_tokens=50))
    outcomes = [found[name].outcome for name in ("p 1", "p 1, question 2", "p 1, question 3")]
    assert outcomes == ["length", "context_length_exceeded", "not_sent"]


def test_what_a_simulation_leaves_out_is_one_sentence() -> None:
    (said,) = left_out(read_scenario("chat"))
    assert (
        "of 75 people there are 8 who leave in the middle of an answer, 4 who read slowly and 4 who reconnect" in said
    )
    (said,) = left_out(read_scenario("rush"))
    assert "there are 210 who leave in the middle of an answer; here all stay" in said
    assert left_out(read_scenario("laptops")) == []


def test_a_conversation_is_as_many_requests_as_it_has_questions() -> None:
    scenario = read_scenario("chat")
    assert len(run(scenario)) == sum(len(person.questions) for person in people(scenario)) > len(people(scenario))
