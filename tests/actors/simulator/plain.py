"""Hardware whose steps can be added up by hand, and scenarios of a few numbers."""

from msgspec import structs

from actors.scheduling.policies import PolicyName
from actors.simulator.hardware import Hardware, StepCosts
from actors.simulator.simulation import Setup, Simulation, setup_for
from protocol.scenario import Arrival, Scenario
from protocol.timeline import Life, Timeline

BASE, TOKEN, ROW, OVERHEAD = 0.1, 0.001, 0.01, 0.005
PLAIN = Hardware(
    name="plain",
    about="made up",
    step=StepCosts(
        base_s=BASE,
        prefill_token_s=TOKEN,
        prefill_pair_s=0.0,
        prefill_context_s=0.0,
        decode_row_s=ROW,
        decode_context_s=0.0,
    ),
    overhead_s=OVERHEAD,
    blocks=1000,
    max_context=4096,
    max_running=8,
)
SETUP = setup_for(PLAIN)


def step_s(prefill: int = 0, rows: int = 0) -> float:
    return BASE + TOKEN * prefill + ROW * rows + OVERHEAD


def scenario(*arrivals: Arrival) -> Scenario:
    return Scenario("by hand", arrivals)


def simulate(policy: PolicyName, *arrivals: Arrival, setup: Setup = SETUP, **changes: object) -> Timeline:
    return Simulation(scenario(*arrivals), policy, structs.replace(setup, **changes)).run()


def lives(timeline: Timeline) -> dict[str, Life]:
    return {life.name: life for life in timeline.lives}
