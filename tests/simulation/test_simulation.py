"""All seven actors in virtual time, thousands of times, with faults at any message (DESIGN, "Proof by simulation")."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.seeds import run_seeds

SEEDS = 2_000
BATCH = 100


def test_every_seed_holds() -> None:
    """Replay a failing one with `python -m tests.simulation SEED`."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        futures = [processes.submit(run_seeds, first, BATCH) for first in range(0, SEEDS, BATCH)]
        results = [future.result() for future in futures]
    assert sum(messages for messages, _, _ in results) > 100 * SEEDS, "the runs are too short to prove anything"
    assert sum(heard for _, _, heard in results) > SEEDS // 4, "hardly anybody heard twice how much was read"
