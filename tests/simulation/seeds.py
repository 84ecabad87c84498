"""Runs ranges of seeds, in this process or in several."""

import tempfile
from pathlib import Path

from actors.vocabulary import Vocabulary
from kernels.byte_tokeniser import write_byte_tokeniser
from tests.simulation import world


def small_vocabulary() -> Vocabulary:
    """One token a byte, and ChatML."""
    with tempfile.TemporaryDirectory() as folder:
        write_byte_tokeniser(Path(folder))
        return Vocabulary.load(folder)


def run_seeds(first: int, count: int) -> tuple[int, int, int]:
    """Run seeds `first` to `first + count - 1`. Returns messages handled, worker steps run, and responses whose
    readers heard more than once how much of the prompt is read, for the record."""
    world.install()
    vocabulary = small_vocabulary()
    messages = steps = heard = 0
    for seed in range(first, first + count):
        run = world.World(seed, vocabulary)
        run.run()
        messages += run.messages
        steps += run.worker.steps
        heard += sum(len(one.read) > 1 for socket in run.sockets for one in socket.books.responses.values())
    return messages, steps, heard
