"""A run in virtual time is what can be added up by hand; refusals, waits and preemptions are the engine's own."""

import pytest
from msgspec import structs

from actors.scheduling.policies import POLICIES, PolicyName
from actors.simulator.hardware import named
from actors.simulator.simulation import Simulation, setup_for
from protocol.scenario import Arrival, read_scenario
from protocol.timeline import Timeline, Turn
from tests.actors.simulator.plain import PLAIN, SETUP, lives, scenario, simulate, step_s


def test_a_first_token_takes_the_chunks_of_its_prompt_and_nothing_else() -> None:
    (life,) = simulate("fixed_chunk", Arrival("A", 700, 4, at_s=3.0)).lives
    assert life.arrived_s == life.started_s == 3.0
    assert life.ttft_s == pytest.approx(step_s(512) + step_s(188))
    assert life.gaps_s == pytest.approx([step_s(rows=1)] * 3)
    assert (life.finished, life.outcome, life.preemptions) == (True, "length", 0)
    assert life.ended_s == life.token_times[-1]


def test_who_comes_during_a_step_is_in_the_next_one_beside_those_who_decode() -> None:
    both = lives(simulate("fixed_chunk", Arrival("A", 200, 3), Arrival("B", 100, 2, at_s=0.1)))
    first = step_s(200)
    assert both["A"].token_times == pytest.approx(
        (first, first + step_s(100, 1), first + step_s(100, 1) + step_s(0, 2))
    )
    assert both["B"].started_s == pytest.approx(first)
    assert both["B"].token_times == pytest.approx(both["A"].token_times[1:])


def test_prefill_first_makes_those_wait_who_decode() -> None:
    both = lives(simulate("prefill_first", Arrival("A", 200, 3), Arrival("B", 2000, 1, at_s=0.1)))
    assert both["A"].gaps_s[0] == pytest.approx(step_s(1024) + step_s(976) + step_s(rows=1))


def test_what_comes_after_others_comes_when_they_have_their_first_tokens() -> None:
    arrivals = (
        Arrival("A", 200, 3),
        Arrival("C", 400, 3, after=("B",), at_s=0.25),
        Arrival("B", 100, 1, at_s=2.0),
        Arrival("D", 100, 1, after=("A", "B")),
    )
    found = lives(simulate("fixed_chunk", *arrivals))
    assert found["C"].arrived_s == pytest.approx(found["B"].token_times[0] + 0.25)
    assert found["D"].arrived_s == found["D"].started_s == found["B"].token_times[0]


def test_what_comes_after_one_that_was_refused_is_never_sent() -> None:
    long = Arrival("long", 5000, 3)
    found = lives(simulate("fixed_chunk", long, Arrival("B", 100, 1, after=("long",)), Arrival("C", 100, 1)))
    assert (found["long"].outcome, found["long"].ended_s) == ("context_length_exceeded", 0.0)
    assert (found["B"].outcome, found["B"].token_times) == ("not_sent", ())
    assert found["B"].arrived_s == found["C"].ended_s
    assert found["C"].finished


def test_without_places_whoever_cannot_run_at_once_is_refused() -> None:
    arrivals = [Arrival(name, 100, 3) for name in "ABC"]
    timeline = simulate("fixed_chunk", *arrivals, max_running=1, max_waiting=0)
    assert [life.outcome for life in timeline.lives] == ["length", "server_overloaded", "server_overloaded"]
    assert not timeline.lives[1].met


def test_with_places_they_wait_for_one_another() -> None:
    timeline = simulate("fixed_chunk", *(Arrival(name, 100, 3) for name in "ABC"), max_running=1, max_waiting=2)
    starts = [life.started_s for life in timeline.lives]
    assert starts == pytest.approx([turn * (step_s(100) + 2 * step_s(rows=1)) for turn in range(3)])


def test_whoever_waits_too_long_for_a_first_step_is_given_up() -> None:
    # Nothing has ended yet, so the first answer is taken for one of usual length.
    arrivals = (Arrival("A", 100, 1000), Arrival("B", 100, 2))
    found = lives(simulate("fixed_chunk", *arrivals, max_running=1, max_wait_s=30.0))
    assert found["A"].finished
    assert found["B"].outcome == "deadline_exceeded"
    assert found["B"].ended_s == 30.0
    assert found["B"].started_s is None


@pytest.mark.parametrize("policy", POLICIES)
def test_in_a_pool_too_small_for_both_one_is_preempted_and_both_finish(policy: PolicyName) -> None:
    small = structs.replace(PLAIN, blocks=8, max_context=128)
    both = simulate(policy, Arrival("A", 40, 60), Arrival("B", 40, 60), setup=setup_for(small)).lives
    assert [life.outcome for life in both] == ["length", "length"]
    assert [len(life.token_times) for life in both] == [60, 60]
    assert [life.preemptions > 0 for life in both] == [False, True], "who came first keeps"


def test_the_same_seed_is_the_same_run_and_another_one_is_not() -> None:
    noisy = structs.replace(SETUP, hardware=structs.replace(PLAIN, spread=0.2), most_turns=1000)
    arrivals = [Arrival(f"r{number}", 50 + 90 * number, 20, at_s=0.3 * number) for number in range(12)]

    def run(seed: int) -> Timeline:
        return simulate("slack", *arrivals, setup=noisy, seed=seed)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_turns_say_who_was_in_each_step_and_how_long_it_took() -> None:
    timeline = simulate("fixed_chunk", Arrival("A", 600, 2), Arrival("B", 100, 1), most_turns=100)
    ends = [step_s(512), step_s(512) + step_s(188), step_s(512) + step_s(188) + step_s(rows=1)]
    assert [turn.end_s for turn in timeline.turns] == pytest.approx(ends)
    assert [(turn.prefills, turn.decodes) for turn in timeline.turns] == [
        (((0, 512),), ()),
        (((0, 88), (1, 100)), ()),
        ((), (0,)),
    ]
    assert all(isinstance(turn, Turn) for turn in timeline.turns)


def test_of_a_long_run_only_the_first_turns_are_kept_and_every_token_counts() -> None:
    timeline = simulate("fixed_chunk", Arrival("A", 10, 50), most_turns=3)
    assert len(timeline.turns) == 3
    assert len(timeline.lives[0].token_times) == 50


def test_a_run_is_given_up_once_too_many_have_missed_their_targets() -> None:
    arrivals = [Arrival(f"r{number}", 1000, 5, at_s=float(number), itl_target_s=0.01) for number in range(50)]
    given_up = Simulation(scenario(*arrivals), "fixed_chunk", SETUP, most_missed=3)
    timeline = given_up.run()
    assert given_up.missed == 4
    assert sum(life.finished for life in timeline.lives) < 10


def test_those_of_one_client_take_turns_with_another() -> None:
    crowd = [Arrival(f"r{number}", 100, 5, client="many") for number in range(6)]
    timeline = simulate("fixed_chunk", *crowd, Arrival("one", 100, 5, at_s=0.01, client="one"), max_running=1)
    starts = {life.name: life.started_s or 0.0 for life in timeline.lives}
    assert starts["one"] < starts["r2"], "it came last and does not wait for all of another's"


@pytest.fixture(scope="module")
def laptops() -> dict[str, Timeline]:
    # Without noise: then a promise about the worst gap can be kept to the last one.
    setup = setup_for(structs.replace(named("laptop"), spread=0.0))
    return {policy: Simulation(read_scenario("laptops"), policy, setup).run() for policy in POLICIES}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_laptops_all_finish_under_every_policy(policy: PolicyName, laptops: dict[str, Timeline]) -> None:
    assert [life.outcome for life in laptops[policy].lives] == ["length"] * 3


def test_under_prefill_first_a_and_c_pause_while_b_is_read(laptops: dict[str, Timeline]) -> None:
    found = lives(laptops["prefill_first"])
    for name in "AC":
        assert max(found[name].gaps_s) > 10.0
    assert max(found["A"].gaps_s) > 0.9 * (found["B"].ttft_s or 0.0)


def test_under_slack_nobody_waits_longer_than_wished(laptops: dict[str, Timeline]) -> None:
    for life in laptops["slack"].lives:
        assert life.met
        assert max(life.gaps_s) <= life.itl_target_s


def test_under_decode_first_b_waits_for_the_answers_of_the_others(laptops: dict[str, Timeline]) -> None:
    found = lives(laptops["decode_first"])
    assert (found["B"].started_s or 0.0) >= max(found["A"].token_times[-1], found["C"].token_times[-1])
