"""All seven actors in virtual time, a thousand times, with faults at any message (DESIGN, "Proof by simulation")."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.seeds import run_seeds

SEEDS = 1_000
BATCH = 50


def test_every_seed_holds() -> None:
    """Replay a failing one with `python -m tests.simulation SEED`."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        futures = [processes.submit(run_seeds, first, BATCH) for first in range(0, SEEDS, BATCH)]
        results = [future.result() for future in futures]
    assert sum(one.messages for one in results) > 100 * SEEDS, "the runs are too short to prove anything"
    assert sum(one.heard for one in results) > SEEDS // 4, "hardly anybody heard twice how much was read"
    assert sum(one.followed for one in results) > 10 * SEEDS, "hardly a row was planned before its token was known"
    assert sum(one.resumed for one in results) > SEEDS // 4, "hardly a response went on on another socket"
    assert sum(one.refused for one in results) > SEEDS // 20, "hardly a step found no memory"
