"""Steps come back in their order with the same tokens, whether one is planned while another runs or not."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kernels.decoder import Decoder
from kernels.runner import Runner, TorchForward
from kernels.turns import one_by_one, overlapped
from protocol.messages import Chunk, Sampling, Step, StepDone, StepFailed
from tests.kernels.beside import Beside

Serve = Callable[[Runner, Callable[[], Step | None], Callable[[StepDone | StepFailed], None]], None]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
BLOCKS = np.arange(8, dtype="<i4").tobytes()


@pytest.fixture
def small_runner(small_decoder: Decoder) -> Runner:
    """On plain torch."""
    forward = TorchForward(small_decoder)
    cache = forward.new_cache(small_decoder.layers, 512, 16, torch.float32, small_decoder.device)
    return Runner(small_decoder, cache, forward)


def runner(small_runner: Runner, serve: Serve, **how: Any) -> Runner:
    if serve is one_by_one:
        return small_runner
    forward = Beside(TorchForward(small_runner.decoder), **how)
    return Runner(small_runner.decoder, small_runner.cache, forward)


def run(on: Runner, serve: Serve, steps: Sequence[Step]) -> list[StepDone | StepFailed]:
    told: list[StepDone | StepFailed] = []
    coming = iter([*steps, None])
    serve(on, lambda: next(coming), told.append)
    return told


def prompt(step: int, behind: int = 0, tokens: Sequence[int] = PROMPT, sampling: Sampling | None = None) -> Step:
    whole = np.array(tokens, "<i4").tobytes()
    return Step(step, (Chunk("a", 0, whole, BLOCKS, sampling or Sampling()),), behind)


def row(step: int, start: int, sampling: Sampling | None = None) -> Step:
    """A decode row planned before its token was known."""
    return Step(step, (Chunk("a", start, bytes(4), BLOCKS, sampling or Sampling(), follows=0),), step - 1)


@pytest.mark.parametrize("serve", [one_by_one, overlapped])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.0, seed=3, logprobs=2)], ids=["greedy", "drawn"]
)
def test_rows_follow_what_the_step_before_chooses(small_runner: Runner, serve: Serve, sampling: Sampling) -> None:
    on = runner(small_runner, serve, takes_s=0.01)
    steps = [prompt(1, sampling=sampling), *(row(number, len(PROMPT) + number - 2, sampling) for number in range(2, 9))]
    told = run(on, serve, steps)
    assert [it.step for it in told] == list(range(1, 9))
    history = list(PROMPT)
    for number, done in enumerate(told):
        assert isinstance(done, StepDone)
        assert done.took_s > 0
        (known,) = small_runner.run(
            (Chunk("b", 0, np.array(history, "<i4").tobytes(), (np.arange(8, dtype="<i4") + 100).tobytes(), sampling),)
        )
        assert done.tokens[0].token == known.token, f"step {number + 1}"
        assert len(done.tokens[0].top) == (2 if sampling.logprobs else 0)
        history.append(known.token)


def test_each_row_follows_its_own_token_in_whatever_order_they_come(small_runner: Runner) -> None:
    prompts = {"a": [1, 2, 3], "b": [9, 8], "c": [5, 5, 5, 5]}
    table = {name: np.array([10 * place], "<i4").tobytes() for place, name in enumerate(prompts, 1)}

    def first(name: str) -> Chunk:
        return Chunk(name, 0, np.array(prompts[name], "<i4").tobytes(), table[name], Sampling())

    def second(name: str, follows: int) -> Chunk:
        return Chunk(name, len(prompts[name]), bytes(4), table[name], Sampling(), follows)

    unsampled = Chunk("d", 0, np.array([7, 7], "<i4").tobytes(), np.array([90], "<i4").tobytes())
    steps = [
        Step(1, (first("a"), unsampled, first("b"), first("c"))),
        Step(2, (second("c", 2), second("a", 0), second("b", 1)), 1),
    ]
    told = {serve: run(runner(small_runner, serve, takes_s=0.01), serve, steps) for serve in (one_by_one, overlapped)}
    expected = []
    for name in "cab":
        (one,) = small_runner.run((first(name),))
        (two,) = small_runner.run(
            (Chunk(name, len(prompts[name]), np.array([one.token], "<i4").tobytes(), table[name], Sampling()),)
        )
        expected.append(two)
    for found in told.values():
        done = found[1]
        assert isinstance(done, StepDone)
        assert [it.token for it in done.tokens] == [it.token for it in expected]


class Scarce(TorchForward):
    """No memory for steps of more than 4 tokens."""

    def answer(self, cache: Any, batch: Any, rows: Any, asked: Any) -> Any:
        if batch.ids.size > 4:
            raise torch.OutOfMemoryError(f"{batch.ids.size} tokens\nare too many")
        return super().answer(cache, batch, rows, asked)


@pytest.mark.parametrize("serve", [one_by_one, overlapped])
def test_a_step_without_memory_is_told_of_and_none_that_was_planned_behind_it_is_run(
    small_runner: Runner, serve: Serve
) -> None:
    scarce = Scarce(small_runner.decoder)
    forward = scarce if serve is one_by_one else Beside(TorchForward(small_runner.decoder), most_tokens=4)
    on = Runner(small_runner.decoder, small_runner.cache, forward)
    steps = [
        prompt(1, tokens=[1, 2]),
        prompt(2, behind=1),
        row(3, len(PROMPT)),
        row(4, len(PROMPT) + 1),
        prompt(5, tokens=[1, 2, 3]),
        row(6, 3),
    ]
    told = run(on, serve, steps)
    assert [type(it) for it in told] == [StepDone, StepFailed, StepFailed, StepFailed, StepDone, StepDone]
    assert isinstance(told[1], StepFailed)
    assert "\n" not in told[1].message
    assert "8 tokens" in told[1].message
    assert isinstance(told[2], StepFailed)
    assert told[2].message == "step 2 was not run, and this one was planned behind it"


def test_what_goes_wrong_otherwise_is_not_taken_for_lack_of_memory(small_runner: Runner) -> None:
    with pytest.raises(ValueError, match="do not cover"):
        run(small_runner, one_by_one, [Step(1, (Chunk("a", 600, bytes(4), BLOCKS),))])
    with pytest.raises(ValueError, match="several tokens cannot follow"):
        run(small_runner, one_by_one, [Step(1, (Chunk("a", 0, bytes(8), BLOCKS, None, follows=0),))])
