"""The tokens that the CPU kernels choose are those that sampling.py chooses from the same logits."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.batch import Batch, batch_of
from kernels.decoder import Decoder
from kernels.kv_cache import KVCache
from kernels.native.stack import NativeStack
from kernels.runner import TorchForward
from kernels.sampling import sample
from protocol.messages import Sampling
from tests.kernels.native.decoders import (
    FAMILIES,
    WAYS,
    Decoders,
    Part,
    Stacks,
    Way,
    heads,
    make_decoder,
    new_cache,
)

ROWS = 70
GREEDY = Sampling()
FILTERS: dict[str, Any] = {
    "no filter": {},
    "top-k": {"top_k": 5},
    "a wide top-k": {"top_k": 250},
    "a top-k of one": {"top_k": 1},
    "top-p": {"top_p": 0.9},
    "a narrow top-p": {"top_p": 0.01},
    "a wide top-p": {"top_p": 0.9999},
    "min-p": {"min_p": 0.05},
    "min-p of one": {"min_p": 1.0},
    "all of them": {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "none that matter": {"top_k": 10**9, "top_p": 1.0, "min_p": 0.0},
}


class Rows:
    """A stack and a step of ROWS rows on it, one token each."""

    def __init__(self, native: NativeStack, decoder: Decoder) -> None:
        draw = random.Random(4)
        ids = [draw.randrange(decoder.vocabulary) for _ in range(ROWS)]
        self.native = native
        self.batch: Batch = batch_of([Part([it], 0, 1, [row]).chunk for row, it in enumerate(ids)], 32, ROWS)
        self.cache: KVCache = new_cache(native, decoder, ROWS, 32)
        self.logits = native.logits(self.cache, self.batch, list(range(ROWS))).clone()

    def agree(self, asked: list[Sampling], rows: list[int]) -> int:
        """How many tokens are those of sampling.py."""
        found = self.native.answer(self.cache, self.batch, rows, asked)
        truth = sample(self.logits[rows], asked, [1] * len(rows))
        assert [it.logprob for it in found] == [it.logprob for it in truth]
        assert [it.top for it in found] == [it.top for it in truth]
        return sum(one.token == other.token for one, other in zip(found, truth, strict=True))


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A large vocabulary whose tokens are nearly equally likely."""
    sizes = {"vocab_size": 6001, **heads(4, 2, 32)}
    decoder = make_decoder(tmp_path_factory.mktemp("flat"), torch.float32, "llama", **sizes)
    with torch.no_grad():
        decoder.model.get_parameter("lm_head.weight").mul_(0.05)
    return decoder


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_greedy_tokens_are_the_likeliest(way: Way, decoders: Decoders, stacks: Stacks) -> None:
    family = "mistral, no window"
    rows = Rows(stacks(family, way, threads=2), decoders(family, way.dtype))
    truth = rows.logits.argmax(-1).tolist()
    assert len(set(truth)) > 20
    found = rows.native.answer(rows.cache, rows.batch, list(range(ROWS)), [GREEDY] * ROWS)
    assert [it.token for it in found] == truth


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_of_equal_logits_the_first_token_is_the_likeliest(way: Way, tmp_path: Path, stacks: Stacks) -> None:
    stacks("llama, heads of 32", way)  # skips where there is no such way
    decoder = make_decoder(tmp_path, way.dtype, **{**FAMILIES["llama, heads of 32"], "tie_word_embeddings": False})
    head = decoder.model.get_parameter("lm_head.weight")
    batch = batch_of([Part([5], 0, 1, [0]).chunk], 32, 1)
    seen = set()
    for equal in ([300, 17, 40], [16, 15, 31], [299, 300], list(range(301))):
        for sign in (1.0, -1.0):
            with torch.no_grad():
                head.zero_()
                head[equal, 3] = sign  # one product alone, so that no order of a sum makes them unequal
            native, plain = NativeStack(decoder, threads=1, block_size=32, unit=way.unit), TorchForward(decoder)
            ours, torchs = (
                it.answer(new_cache(it, decoder, 1, 32), batch, [0], [GREEDY])[0].token for it in (native, plain)
            )
            assert ours == torchs
            seen.add(ours)
    assert {15, 17, 299, 0} <= seen


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocabulary", ["peaked", "flat"])
def test_drawn_tokens_are_those_of_sampling(
    filters: str, vocabulary: str, decoders: Decoders, stacks: Stacks, flat: Decoder, cpu_kernels: object
) -> None:
    if vocabulary == "flat":
        rows = Rows(NativeStack(flat, threads=2, block_size=32), flat)
    else:
        rows = Rows(stacks("mistral, no window", WAYS[0], threads=2), decoders("mistral, no window", torch.float32))
    agreed = 0
    for turn in range(6):
        asked = [
            Sampling(temperature=(0.3, 1.0, 2.0)[turn % 3], seed=1000 * turn + row, **FILTERS[filters])
            for row in range(ROWS)
        ]
        agreed += rows.agree(asked, list(range(ROWS)))
    # A draw within a rounding of the boundary between two tokens may be either.
    assert agreed >= 6 * ROWS - 1


def test_rows_of_every_kind_in_any_order_are_answered_as_alone(decoders: Decoders, stacks: Stacks) -> None:
    family = "mistral, no window"
    rows = Rows(stacks(family, WAYS[0], threads=3), decoders(family, torch.float32))
    draw = random.Random(8)
    kinds = (
        GREEDY,
        Sampling(logprobs=0),
        Sampling(temperature=0.8, seed=5, logprobs=3),
        Sampling(temperature=0.8, seed=6),
        Sampling(temperature=1e-9, seed=6),
        Sampling(temperature=1.1, top_p=0.8, seed=-(2**63)),
    )
    for _ in range(10):
        some = draw.sample(range(ROWS), draw.randint(1, ROWS))
        asked = [draw.choice(kinds) for _ in some]
        assert rows.agree(asked, some) == len(some)
        together = rows.native.answer(rows.cache, rows.batch, some, asked)
        alone = [
            rows.native.answer(rows.cache, rows.batch, [row], [it])[0] for row, it in zip(some, asked, strict=True)
        ]
        assert list(together) == alone


@pytest.mark.parametrize("overflow", [float("inf"), float("nan")])
def test_logits_that_are_no_numbers_still_give_a_token(overflow: float, tmp_path: Path, cpu_kernels: object) -> None:
    decoder = make_decoder(tmp_path, torch.float32, **FAMILIES["mistral, no window"])
    with torch.no_grad():
        decoder.model.get_parameter("model.embed_tokens.weight")[300] = overflow
    native = NativeStack(decoder, threads=1, block_size=32)
    batch = batch_of([Part([300], 0, 1, [row]).chunk for row in range(len(FILTERS) + 1)], 32, 20)
    asked = [GREEDY, *(Sampling(temperature=1.0, seed=3, **it) for it in FILTERS.values())]
    found = native.answer(new_cache(native, decoder, 20, 32), batch, list(range(len(asked))), asked)
    assert all(0 <= it.token < 301 for it in found)
