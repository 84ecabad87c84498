"""Steps taken at once change nothing: a run with the shortcut is the run without it, to the last figure."""

import random

import pytest
from msgspec import structs

from actors.scheduling.policies import POLICIES, PolicyName
from actors.simulator import simulation
from actors.simulator.coasting import coast
from actors.simulator.hardware import Hardware
from actors.simulator.simulation import Setup, Simulation, setup_for
from protocol.scenario import Arrival, Scenario
from protocol.timeline import Timeline
from tests.actors.simulator.plain import PLAIN

NOISY = structs.replace(PLAIN, spread=0.1)
SMALL = structs.replace(NOISY, blocks=24, max_context=384)


def crowd(seed: int, itl_target_s: float) -> Scenario:
    chance = random.Random(seed)
    return Scenario(
        "crowd",
        tuple(
            Arrival(f"r{number}", chance.randint(1, 200), chance.randint(1, 60), at_s=chance.uniform(0, 60))
            for number in range(40)
        ),
        itl_target_s=itl_target_s,
    )


def run(scenario: Scenario, policy: PolicyName, setup: Setup) -> tuple[Timeline, int]:
    one = Simulation(scenario, policy, setup)
    return one.run(), one.steps


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("hardware", [NOISY, SMALL], ids=["roomy", "small"])
@pytest.mark.parametrize("itl_target_s", [0.5, 0.125], ids=["easy", "too tight for all"])
def test_a_run_with_the_shortcut_is_the_run_without_it(
    policy: PolicyName,
    hardware: Hardware,
    itl_target_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = structs.replace(setup_for(hardware), most_turns=100_000)
    scenario = crowd(7, itl_target_s)
    with_it = run(scenario, policy, setup)
    monkeypatch.setattr(simulation, "coast", lambda *args: [])
    assert run(scenario, policy, setup) == with_it


def test_it_is_taken_where_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def counting(*args: object) -> list[float]:
        ends = coast(*args)  # type: ignore[arg-type]
        taken.append(len(ends))
        return ends

    monkeypatch.setattr(simulation, "coast", counting)
    timeline = Simulation(Scenario("one", (Arrival("A", 100, 50),)), "slack", setup_for(PLAIN)).run()
    assert len(timeline.lives[0].token_times) == 50
    assert sum(taken) == 48, "all but the first token and the last"
