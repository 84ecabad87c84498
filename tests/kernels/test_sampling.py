from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import WIDTHS, sample, uniform
from protocol.messages import Sampling

samplings = st.builds(
    Sampling,
    temperature=st.floats(0.05, 3),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    top_k=st.one_of(st.just(0), st.integers(1, 400)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    seed=st.integers(-(2**63), 2**63 - 1),
)


def naive(logits: np.ndarray, asked: Sampling, position: int) -> int:
    """One row, one filter after the other, over a full sort: the definition."""
    scaled = logits.astype(np.float64) / asked.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    if asked.top_k:
        order = order[: asked.top_k]
    if asked.top_p < 1:
        running = np.cumsum(weights[order])
        order = order[: 1 + int((running[:-1] < asked.top_p * running[-1]).sum())]
    order = order[weights[order] >= asked.min_p * weights.max()]
    if not (0 < asked.top_k < len(logits) or asked.top_p < 1 or asked.min_p > 0):
        order = np.arange(len(logits))  # nothing is filtered: drawn in the vocabulary's order
    running = np.cumsum(weights[order])
    place = np.searchsorted(running, uniform(asked.seed, position) * running[-1], side="right")
    return int(order[min(int(place), len(order) - 1)])


@settings(max_examples=80, deadline=None)
@given(
    asked=st.lists(samplings, min_size=1, max_size=6),
    scale=st.sampled_from([0.01, 1.0, 5.0]),
    vocabulary=st.sampled_from([3, WIDTHS[0], 1000, 6000]),
    seed=st.integers(0, 10),
)
def test_every_row_is_drawn_by_the_definition_whatever_its_company(
    asked: list[Sampling], scale: float, vocabulary: int, seed: int
) -> None:
    rows = torch.randn(len(asked), vocabulary, generator=torch.Generator().manual_seed(seed)) * scale
    positions = list(range(7, 7 + len(asked)))
    together = sample(rows, asked, positions)
    alone = [sample(rows[i : i + 1], [asked[i]], [positions[i]])[0] for i in range(len(asked))]
    assert list(together) == alone
    found = [it.token for it in together]
    # float32 weights against float64: on the very edge of a filter or a draw the two may differ, hence not all.
    agree = [found[i] == naive(rows[i].numpy(), it, positions[i]) for i, it in enumerate(asked)]
    assert sum(agree) >= len(agree) - 1


def test_temperature_zero_takes_the_likeliest() -> None:
    rows = torch.randn(5, 100, generator=torch.Generator().manual_seed(1))
    wishes = [Sampling(top_k=3, top_p=0.1, seed=row) for row in range(5)]
    assert [it.token for it in sample(rows, wishes, [1] * 5)] == rows.argmax(-1).tolist()
    assert [it.token for it in sample(rows.bfloat16(), wishes, [1] * 5)] == rows.bfloat16().argmax(-1).tolist()


def test_a_greedy_row_among_sampled_ones_stays_greedy() -> None:
    rows = torch.zeros(3, 50)
    rows[1, 7] = 1e-3
    found = sample(rows, [Sampling(temperature=5), Sampling(), Sampling(temperature=5)], [1, 2, 3])
    assert found[1].token == 7


@pytest.mark.parametrize("temperature", [5e-324, 1e-46, 1e-45, 1e-38, 1e-30, 9e-6, 1.1e-5])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "min_p": 0.1}, {"top_k": 5}, {"top_p": 5e-324}])
def test_a_tiny_temperature_is_as_good_as_greedy(temperature: float, filters: dict[str, Any]) -> None:
    wish = Sampling(temperature=temperature, seed=-(2**63), logprobs=1, **filters)
    rows = torch.randn(4, 300, generator=torch.Generator().manual_seed(2)) * 20
    assert [it.token for it in sample(rows, [wish] * 4, range(4))] == rows.argmax(-1).tolist()


@pytest.mark.parametrize("top_p", [1.0, 0.999999])
def test_tokens_come_as_often_as_they_are_likely(top_p: float) -> None:
    truth = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])
    draws = 8000
    rows = truth.log().expand(draws, 5)
    wish = Sampling(temperature=1.0, seed=42, top_p=top_p)
    found = np.bincount([it.token for it in sample(rows, [wish] * draws, range(draws))], minlength=5) / draws
    # Five standard deviations of a proportion.
    assert np.all(np.abs(found - truth.numpy()) < 5 * np.sqrt(truth.numpy() / draws))


def kept(logits: torch.Tensor, wish: Sampling, draws: int = 3000) -> set[int]:
    return {it.token for it in sample(logits.expand(draws, -1), [wish] * draws, range(draws))}


def test_top_k_keeps_the_k_likeliest() -> None:
    logits = torch.linspace(0, 1, 20)
    assert kept(logits, Sampling(temperature=1.0, top_k=3)) == {17, 18, 19}
    assert kept(logits, Sampling(temperature=1.0, top_k=1)) == {19}


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert kept(logits, Sampling(temperature=1.0, top_p=0.39)) == {0}
    assert kept(logits, Sampling(temperature=1.0, top_p=0.6)) == {0, 1}
    assert kept(logits, Sampling(temperature=1.0, top_p=0.85)) == {0, 1, 2}
    assert kept(logits, Sampling(temperature=1.0, top_p=0.0)) == {0}


def test_top_p_counts_what_top_k_has_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the two that are left, the first has 4/7 = 0.571.
    assert kept(logits, Sampling(temperature=1.0, top_k=2, top_p=0.55)) == {0}
    assert kept(logits, Sampling(temperature=1.0, top_k=2, top_p=0.6)) == {0, 1}


def test_min_p_is_relative_to_the_likeliest_after_temperature() -> None:
    logits = torch.tensor([0.4, 0.3, 0.19, 0.11]).log()
    assert kept(logits, Sampling(temperature=1.0, min_p=0.5)) == {0, 1}
    assert kept(logits, Sampling(temperature=1.0, min_p=1.0)) == {0}
    assert kept(logits, Sampling(temperature=4.0, min_p=0.7)) == {0, 1, 2, 3}


def test_a_nucleus_wider_than_the_first_sort_is_still_whole() -> None:
    gentle = -torch.arange(10_000) * 1e-6
    found = kept(gentle, Sampling(temperature=1.0, top_p=0.5), draws=300)
    assert WIDTHS[1] < max(found) < 5_000


def test_the_same_seed_and_position_give_the_same_number() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(seed, position) for seed in range(50) for position in range(50)}) == 2500
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)


def test_the_numbers_are_spread_evenly_over_seeds_and_over_positions() -> None:
    for numbers in ([uniform(3, it) for it in range(4000)], [uniform(it, 3) for it in range(4000)]):
        counts = np.histogram(numbers, bins=16, range=(0, 1))[0]
        # Chi-squared with 15 degrees of freedom: 50 is past one in 100,000.
        assert ((counts - 250) ** 2 / 250).sum() < 50
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.08


def test_logprobs_are_log_softmax_of_the_raw_logits() -> None:
    rows = torch.randn(4, 200, generator=torch.Generator().manual_seed(3))
    wishes = [
        Sampling(logprobs=0),
        Sampling(),
        Sampling(temperature=0.3, top_k=5, logprobs=5),
        Sampling(logprobs=20),
    ]
    truth = rows.log_softmax(-1)
    found = sample(rows, wishes, range(4))
    assert found[1].logprob is None
    assert found[1].top == ()
    for row in (0, 2, 3):
        own = found[row]
        assert own.logprob == pytest.approx(truth[row, own.token].item())
        values, tokens = truth[row].topk(wishes[row].logprobs or 0)
        assert [it[0] for it in own.top] == tokens.tolist()
        assert [it[1] for it in own.top] == pytest.approx(values.tolist())


def test_more_rows_than_fit_a_slice_are_all_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(9, 300, generator=torch.Generator().manual_seed(4))
    wishes = [Sampling(temperature=1.0, top_p=0.9, seed=row, logprobs=1) for row in range(9)]
    whole = sample(rows, wishes, range(9))
    monkeypatch.setattr("kernels.sampling.SLICE_ELEMENTS", 600)
    assert sample(rows, wishes, range(9)) == whole
