"""Nobody waits for ever under a plain policy either, while credits bound how many are here: whoever comes ends within a
number of steps that does not depend on how many come after it.
"""

from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.scheduling.policies import PolicyName, policy_named
from tests.actors.scheduling.timed import Run

CHUNK = 32
STEP_TOKENS = 64


def most_steps(policy: PolicyName, here: int, ahead: int, prompt: int, output: int, longest: int, answer: int) -> int:
    """`ahead`: tokens of all who are here; `longest`, `answer`: of a prompt and an answer that may come after."""
    match policy:
        case "fixed_chunk":
            return (ahead + prompt) // CHUNK + here + output + 2
        case "decode_first":
            # Whenever no answer is left, a step of prompts is read, and their answers go first.
            return ((ahead + prompt) // STEP_TOKENS + 2) * (answer + 1) + output + 2
        case _:
            # For each token of its answer, each place may be taken once by somebody new, whose prompt goes first.
            prefill = (ahead + prompt) // STEP_TOKENS + here + 2
            return prefill + output * (here * (longest // STEP_TOKENS + 1) + 1)


@pytest.mark.parametrize("policy", ["fixed_chunk", "decode_first", "prefill_first"])
@given(
    max_running=st.integers(2, 12),
    kinds=st.lists(st.tuples(st.integers(1, 100), st.integers(2, 20)), min_size=1, max_size=4),
    warm_up=st.integers(0, 30),
    prompt=st.integers(1, 200),
    output=st.integers(1, 20),
)
@settings(max_examples=25)
def test_whoever_comes_ends_however_many_come_after_it(
    policy: PolicyName, max_running: int, kinds: list[tuple[int, int]], warm_up: int, prompt: int, output: int
) -> None:
    """`kinds`: prompts and answers that come without end, as soon as there is a credit for them."""
    run = Run(policy_named(policy, CHUNK), (0.01, 1e-4, 0, 0, 1e-3, 0), step_tokens=STEP_TOKENS, step_rows=max_running)
    coming = cycle(kinds)

    def flood() -> None:
        while run.came < run.schedule.credit(max_running).granted:
            run.add(*next(coming))

    run.flood = flood
    for _ in range(warm_up):
        run.step()
    while len(run.schedule) >= max_running:
        # Its credit is the next one.
        run.flood = lambda: None
        assert run.step() is not None
    one = run.add(prompt, output)
    run.flood = flood
    ahead = sum(len(other.tokens) for other in run.schedule.sequences)
    answer = max(output for _, output in kinds)
    longest = max(prompt for prompt, _ in kinds)
    run.until(
        lambda: one.reason is not None,
        most_steps(policy, max_running, ahead, prompt, output, longest, max(answer, output)),
    )
    assert one.preemptions == 0
    assert len(run.schedule) <= max_running


@pytest.mark.parametrize("policy", ["fixed_chunk", "decode_first", "prefill_first"])
@pytest.mark.parametrize("output", [0, 1])
def test_an_answer_goes_on_while_prompts_without_one_come_without_end(policy: PolicyName, output: int) -> None:
    run = Run(policy_named(policy, CHUNK), (0.01, 1e-4, 0, 0, 1e-3, 0), step_tokens=STEP_TOKENS, step_rows=4)
    one = run.add(10, 5)

    def flood() -> None:
        while run.came < run.schedule.credit(4).granted:
            run.add(40, output)

    run.flood = flood
    # prefill_first lets those who stream wait for a minute at the longest, and a step takes 17 ms here.
    run.until(lambda: one.reason is not None, 5 * 60 * 60 if policy == "prefill_first" else 100)
