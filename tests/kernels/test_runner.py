import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from kernels import ModelError
from kernels.checkpoint import Checkpoint, resolve
from kernels.decoder import Decoder, load_decoder
from kernels.default_model import DEFAULT_MODEL
from kernels.memory import PeakMeter
from kernels.native.stack import NativeStack
from kernels.quiet import quiet_transformers
from kernels.runner import Forward, Runner, TorchForward, make_runner, measure_working_memory
from protocol.messages import Chunk, Sampling
from tests.kernels.driving import Driver
from tests.kernels.native.decoders import remembered
from tests.models import make_small_model

CPU = torch.device("cpu")
NEW = 24
OF_THE_DEFAULT_MODEL = 9
"""Tokens: enough to name Paris, and each is some work for one core."""


def expected(model: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """What transformers' own `generate` answers, end tokens ignored."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            # All ones, or tokens that look like padding (the end token) are masked: TRANSFORMERS.md, 16.
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=None,
            eos_token_id=-1,
            pad_token_id=0,
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(5)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 100, 127, 200, 255, 256, 300]
    return [[draw.randrange(258) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def answers(small_reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    return expected(small_reference, prompts, NEW)


def test_each_prompt_alone_gives_the_tokens_of_generate(
    small_runner: Runner, prompts: list[list[int]], answers: list[list[int]]
) -> None:
    found = [Driver(small_runner, seed).generate([prompt], NEW)[0].answer for seed, prompt in enumerate(prompts)]
    assert found == answers
    assert len({tuple(it) for it in answers}) == len(answers), "the small model's answers should differ"


@pytest.mark.parametrize("chunk", [1, 16, 64, 512])
def test_company_and_chunk_size_do_not_change_tokens(
    small_runner: Runner, prompts: list[list[int]], answers: list[list[int]], chunk: int
) -> None:
    assert [it.answer for it in Driver(small_runner, chunk).generate(prompts, NEW, chunk=chunk)] == answers


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_preemption_and_recomputing_do_not_change_tokens(
    small_runner: Runner, prompts: list[list[int]], answers: list[list[int]], chunk: int
) -> None:
    found = Driver(small_runner, chunk + 1).generate(prompts, NEW, chunk=chunk, preempt=0.04)
    assert [it.answer for it in found] == answers


def test_sampled_tokens_do_not_depend_on_company_chunk_or_preemption(
    small_runner: Runner, prompts: list[list[int]]
) -> None:
    wishes = [
        Sampling(temperature=0.5 + index / 10, top_p=0.9, top_k=(0, 40)[index % 2], seed=index)
        for index in range(len(prompts))
    ]
    alone = [
        Driver(small_runner).generate([prompt], NEW, sampling=[wish])[0].answer
        for prompt, wish in zip(prompts, wishes, strict=True)
    ]
    crowd = Driver(small_runner, 3).generate(prompts, NEW, chunk=64, preempt=0.02, sampling=wishes)
    assert [it.answer for it in crowd] == alone


def test_logprobs_are_the_models_own(small_runner: Runner, small_reference: Any) -> None:
    request = Driver(small_runner).generate([[1, 2, 3]], 4, sampling=[Sampling(logprobs=3)])[0]
    with torch.inference_mode():
        logits = small_reference(input_ids=torch.tensor([request.history])).logits[0]
    truth = logits.log_softmax(-1)
    for index, token in enumerate(request.sampled):
        row = truth[request.prompt - 1 + index]
        assert token.logprob == pytest.approx(row[token.token].item(), abs=1e-4)
        assert [it[0] for it in token.top] == row.topk(3).indices.tolist()


def test_a_step_without_sampling_returns_nothing_and_fills_the_cache(small_runner: Runner) -> None:
    table = np.array([3], "<i4").tobytes()
    assert small_runner.run((Chunk("a", 0, np.array([1, 2], "<i4").tobytes(), table),)) == ()
    first, second, *rest = remembered(small_runner.cache, [3], 16)[2]
    assert first.abs().sum() > 0
    assert second.abs().sum() > 0
    assert all(it.count_nonzero() == 0 for it in rest)
    assert small_runner.run(()) == ()


def test_tokens_come_in_the_order_of_their_chunks(small_runner: Runner, answers: list[list[int]]) -> None:
    def chunk(name: str, tokens: list[int], block: int, sampling: Sampling | None) -> Chunk:
        return Chunk(name, 0, np.array(tokens, "<i4").tobytes(), np.array([block], "<i4").tobytes(), sampling)

    first, third = [5], [9, 9, 9]
    one = small_runner.run((chunk("a", first, 0, Sampling()),))
    three = small_runner.run((chunk("c", third, 2, Sampling()),))
    mixed = small_runner.run(
        (chunk("a", first, 0, Sampling()), chunk("b", [7, 8], 1, None), chunk("c", third, 2, Sampling()))
    )
    assert mixed == one + three


def test_a_table_that_does_not_cover_the_chunk_is_an_error(small_runner: Runner) -> None:
    one = np.array([0], "<i4").tobytes()
    with pytest.raises(ValueError, match="do not cover positions up to 16"):
        small_runner.run((Chunk("a", 16, bytes(4), one),))
    with pytest.raises(ValueError, match="outside 0"):
        small_runner.run((Chunk("a", 0, bytes(4), np.array([512], "<i4").tobytes()),))


def test_make_runner_measures_and_divides_memory(small_decoder: Decoder, small_forward: Forward) -> None:
    runner, budget = make_runner(
        small_decoder,
        forward=small_forward,
        kv_memory=2**21,
        block_size=16,
        max_step_tokens=512,
        max_step_rows=256,
    )
    per_block = 2 * 2 * 2 * 16 * 16 * 4
    assert budget.blocks == 2**21 // per_block == runner.cache.blocks
    assert budget.kv_bytes == budget.blocks * per_block == runner.cache.bytes
    assert budget.weights_bytes == sum(it.numel() * 4 for it in small_decoder.model.parameters()) + sum(
        it.numel() * it.element_size() for it in small_decoder.model.buffers()
    )


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_working_memory_is_that_of_the_largest_step(kernels: str, tmp_path: Path, cpu_kernels: object) -> None:
    """So wide a model that its chunks are told from what the process has free anyway."""
    folder = make_small_model(tmp_path / "wide", intermediate_size=16_384)
    decoder = load_decoder(Checkpoint("wide", folder), CPU, torch.float32)

    def new_forward() -> Forward:  # it keeps what it once needed
        return TorchForward(decoder) if kernels == "torch" else NativeStack(decoder, threads=1, block_size=16)

    def taken(tokens: int) -> float:
        return measure_working_memory(decoder, 16, tokens, 8, new_forward()) / 2**20

    def run(tokens: int) -> float:
        forward = new_forward()
        cache = forward.new_cache(decoder.layers, 128, 16, torch.float32, CPU)
        chunk = Chunk("run", 0, bytes(4 * tokens), np.arange(128, dtype="<i4").tobytes())
        with PeakMeter(CPU) as meter:
            Runner(decoder, cache, forward).run((chunk,))
        return meter.bytes / 2**20

    taken(32)  # what comes with the first step of a process
    needed = run(2048)
    print(f"a step of 2,048 tokens takes {needed:.0f} MiB, of 32 {taken(32):.0f}, expected were {taken(2048):.0f}")
    assert needed > 32, "too little to be told from anything"
    assert 0.8 * needed < taken(2048) < 2 * needed
    assert taken(32) < needed / 8


def test_too_little_kv_memory_is_refused_with_the_arithmetic(small_decoder: Decoder) -> None:
    with pytest.raises(ModelError, match=r"2,048 tokens need 128 blocks of 16"):
        make_runner(small_decoder, kv_memory=2**19, block_size=16, max_step_tokens=64, max_step_rows=8)


class Asked(NamedTuple):
    """The default model, what it is asked and what `generate` answers, as tokens; and the first answer as text."""

    decoder: Decoder
    prompts: list[list[int]]
    answers: list[list[int]]
    text: str


@pytest.fixture(scope="module")
def default_model() -> Asked:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    checkpoint = resolve(DEFAULT_MODEL)
    tokeniser: Any = AutoTokenizer.from_pretrained(checkpoint.folder)
    questions = ["What is the capital of France?", "Why? " * 40]
    prompts = [
        tokeniser.apply_chat_template([{"role": "user", "content": it}], add_generation_prompt=True, return_dict=False)
        for it in questions
    ]
    plain: Any = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    answers = expected(plain, prompts, OF_THE_DEFAULT_MODEL)
    del plain
    decoder = load_decoder(checkpoint, CPU, torch.float32)
    assert decoder.end_tokens == (tokeniser.eos_token_id,)
    return Asked(decoder, prompts, answers, tokeniser.decode(answers[0]))


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_the_default_model_gives_the_tokens_of_generate(
    kernels: str, default_model: Asked, request: pytest.FixtureRequest
) -> None:
    decoder = default_model.decoder
    forward: Forward = TorchForward(decoder)
    if kernels == "native":
        request.getfixturevalue("cpu_kernels")
        forward = NativeStack(decoder, threads=2, block_size=32)
    runner = Runner(decoder, forward.new_cache(decoder.layers, 32, 32, torch.float32, CPU), forward)
    found = Driver(runner).generate(default_model.prompts, OF_THE_DEFAULT_MODEL, chunk=64, preempt=0.05)
    assert [it.answer for it in found] == default_model.answers
    assert "Paris" in default_model.text
