"""Runs ranges of seeds, in this process or in several."""

import tempfile
from operator import add
from pathlib import Path
from typing import NamedTuple

from actors.vocabulary import Vocabulary
from kernels.byte_tokeniser import write_byte_tokeniser
from tests.simulation import world


def small_vocabulary() -> Vocabulary:
    """One token a byte, and ChatML."""
    with tempfile.TemporaryDirectory() as folder:
        write_byte_tokeniser(Path(folder))
        return Vocabulary.load(folder)


class Tally(NamedTuple):
    """What happened in some runs, for the record."""

    messages: int = 0
    steps: int = 0
    heard: int = 0
    """Responses whose readers heard more than once how much of the prompt is read."""
    followed: int = 0
    """Rows that were planned before their token was known."""
    refused: int = 0
    """Steps that found no memory."""
    resumed: int = 0
    """Responses that went on on another socket."""


def run_seeds(first: int, count: int) -> Tally:
    """Run seeds `first` to `first + count - 1`."""
    world.install()
    vocabulary = small_vocabulary()
    tally = Tally()
    for seed in range(first, first + count):
        run = world.World(seed, vocabulary)
        run.run()
        responses = [one for socket in run.sockets for one in socket.books.responses.values()]
        heard = sum(len(one.read) > 1 for one in responses)
        resumed = sum(socket.books.resumed for socket in run.sockets)
        ran = (run.messages, run.worker.steps, heard, run.worker.followed, run.worker.refused, resumed)
        tally = Tally(*map(add, tally, ran))
    return tally
