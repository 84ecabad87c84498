"""A tracer changes nothing, misses nothing, and knows of every message who sent it."""

import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from actors.trace_lines import line_of
from tests.simulation import world
from tests.simulation.seeds import small_vocabulary

SEEDS = range(32)
BATCH = 8
ACTOR = r"connection \d+|tokeniser|admission|scheduler|executor|detokeniser|reaper|gallery|watcher \d+"
SENDERS = re.compile(rf"{ACTOR}|engine|socket|writer|thread|timer|worker")
RECEIVERS = re.compile(rf"{ACTOR}|engine")
LANES = {"control", "data", "slots"}


def run_both(first: int) -> Counter[str]:
    """Runs each seed of a batch with and without a tracer. Returns how often each sender was seen."""
    world.install()
    vocabulary = small_vocabulary()
    senders: Counter[str] = Counter()
    for seed in range(first, first + BATCH):
        plain: list[str] = []
        traced: list[str] = []
        world.World(seed, vocabulary, trace=plain.append).run()
        run = world.World(seed, vocabulary, trace=traced.append, traced=True)
        run.run()
        assert traced == plain, f"seed {seed}: with a tracer it was another run"
        assert run.tracer is not None
        lines = [line_of(record, run.tracer.unix_s) for record in run.tracer.records]
        handled = [line for line in lines if line.handled_s is not None]
        assert len(handled) == run.messages, f"seed {seed}: {run.messages} messages were handled"
        assert all(line.to == "engine" for line in lines if line.handled_s is None)
        for line in lines:
            assert SENDERS.fullmatch(line.from_), f"seed {seed}: {line}"
            assert RECEIVERS.fullmatch(line.to), f"seed {seed}: {line}"
            assert line.lane in LANES
            assert line.waited_s >= 0
            senders[line.from_.split()[0]] += 1
    return senders


def test_a_run_is_the_same_with_a_tracer_and_every_message_has_its_sender() -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        senders = sum(processes.map(run_both, SEEDS[::BATCH]), Counter[str]())
    every = {"connection", "tokeniser", "admission", "scheduler", "executor", "detokeniser", "reaper", "engine"}
    assert senders.keys() == every | {"gallery", "watcher", "socket", "writer", "timer", "worker"}
