"""Whatever becomes of a request on the CPU kernels, its tokens are the same, in every number format."""

import random

import pytest

from kernels.native.stack import NativeStack
from kernels.runner import Runner
from protocol.messages import Sampling
from tests.kernels.driving import Driver
from tests.kernels.native.decoders import WAYS, Decoders, Stacks, Way, new_cache

NEW = 12
FAMILY = "mistral, window of 300"
VOCABULARY = 301


def made_prompts() -> list[list[int]]:
    """Thirty, from 1 to 320 tokens; every third begins as the first does, some of them in the midst of a block."""
    draw = random.Random(9)
    common = [draw.randrange(VOCABULARY) for _ in range(150)]
    lengths = [1, 2, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 320, *(draw.randint(3, 200) for _ in range(17))]
    prompts = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in lengths]
    for place in range(2, 30, 3):
        shared = common[: draw.choice([32, 64, 100, 150])]
        prompts[place] = shared + prompts[place][: 320 - len(shared)]
    return prompts


PROMPTS = made_prompts()
WISHES = [
    Sampling(temperature=0.5 + index / 20, top_p=0.95, top_k=(0, 40)[index % 2], seed=index)
    if index % 2
    else Sampling(logprobs=(None, 2)[index % 4 // 2])
    for index in range(30)
]
"""Greedy ones with and without log-probabilities, and seeded ones."""


class Served:
    """A decoder with what each of PROMPTS is answered alone."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.alone = [
            Driver(runner, seed).generate([prompt], NEW, sampling=[wish])[0].sampled
            for seed, (prompt, wish) in enumerate(zip(PROMPTS, WISHES, strict=True))
        ]

    def together(self, driver: Driver, chunk: int, preempt: float = 0.0, reuse: bool = False) -> None:
        found = driver.generate(PROMPTS, NEW, chunk=chunk, preempt=preempt, reuse=reuse, sampling=WISHES)
        assert [it.sampled for it in found] == self.alone


@pytest.fixture(scope="module", params=WAYS, ids=str)
def served(request: pytest.FixtureRequest, decoders: Decoders, stacks: Stacks) -> Served:
    way: Way = request.param
    decoder = decoders(FAMILY, way.dtype)
    native: NativeStack = stacks(FAMILY, way, threads=2)
    return Served(Runner(decoder, new_cache(native, decoder, 400, 32), native))


def test_the_answers_differ_from_one_another(served: Served) -> None:
    assert len({tuple(token.token for token in it) for it in served.alone}) == 30


@pytest.mark.parametrize("chunk", [16, 64, 200, 512])
def test_company_and_chunk_size_change_no_token_and_no_probability(served: Served, chunk: int) -> None:
    served.together(Driver(served.runner, chunk), chunk)


@pytest.mark.parametrize("chunk", [16, 100, 512])
def test_preemption_changes_no_token(served: Served, chunk: int) -> None:
    served.together(Driver(served.runner, chunk + 1), chunk, preempt=0.05)


@pytest.mark.parametrize(("chunk", "preempt"), [(64, 0.0), (100, 0.05)])
def test_reuse_of_blocks_changes_no_token(served: Served, chunk: int, preempt: float) -> None:
    driver = Driver(served.runner, chunk)
    served.together(driver, chunk, preempt, reuse=True)
    before = driver.reused
    served.together(driver, chunk, preempt, reuse=True)
    assert driver.reused - before > 60
