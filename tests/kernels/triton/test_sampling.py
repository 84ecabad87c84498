"""Tokens on a GPU are drawn as `kernels/sampling.py` draws them, and told of as it tells."""

from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import sampling as on_the_cpu
from kernels.triton.sampling import MOST_TOLD, Scratch, Wishes, log_probabilities, sample
from protocol.messages import Sampling

CPU = torch.device("cpu")
UNTOUCHED = -7


@dataclass(frozen=True)
class Wish:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.5


def wishes_of(wishes: list[Wish]) -> Wishes:
    def packed(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([getattr(it, name) for it in wishes], dtype=dtype)

    return Wishes(
        packed("temperature"), packed("top_k", torch.int32), packed("top_p"), packed("min_p"), packed("uniform")
    )


def poisoned(rows: int, vocabulary: int, chunk: int, capacity: int) -> Scratch:
    scratch = Scratch.make(rows + 1, vocabulary, CPU, chunk, capacity)
    for field in fields(scratch):
        value = getattr(scratch, field.name)
        if isinstance(value, Tensor):
            value.fill_(float("nan") if value.is_floating_point() else 2**30 + 7)
    return scratch


def chosen_by(logits: Tensor, wishes: list[Wish], chunk: int = 64, capacity: int = 32) -> list[int]:
    """Into poisoned memory, from rows that lie apart with poison in between."""
    rows, vocabulary = logits.shape
    apart = torch.full((rows, vocabulary + 3), float("nan"), dtype=logits.dtype)
    apart[:, :vocabulary] = logits
    chosen = torch.full((rows + 1,), UNTOUCHED, dtype=torch.int32)
    sample(apart[:, :vocabulary], wishes_of(wishes), chosen[:rows], poisoned(rows, vocabulary, chunk, capacity))
    assert chosen[rows] == UNTOUCHED
    return chosen[:rows].tolist()


def kept(logits: Tensor, wish: Wish) -> Tensor:
    """The definition, in float64: the weight of each token that is kept, 0 for the others. Equals stay together."""
    x = logits.double()
    floored = torch.where(x.isfinite(), x, -torch.inf) if x.isfinite().any() else torch.zeros_like(x)
    weights = ((floored - floored.max()) / wish.temperature).exp()
    stays = torch.ones_like(x, dtype=torch.bool)
    if 0 < wish.top_k < len(x):
        stays &= floored >= floored.sort(descending=True).values[wish.top_k - 1]
    if wish.top_p < 1:
        falling, order = floored.sort(descending=True)
        running = (weights * stays)[order].cumsum(0)
        last = int((running < wish.top_p * running[-1]).sum())
        stays &= floored >= falling[min(last, len(x) - 1)]
    return weights * stays * (weights >= min(wish.min_p, 1.0))


NEAR = 2e-5
"""float32 against float64: the edges of filters and of the draw may be so far off."""


def allowed(logits: Tensor, wish: Wish, token: int) -> bool:
    """Whether the definition gives this token, with filters and draw a hair to either side."""
    if wish.temperature < on_the_cpu.GREEDY_BELOW:
        return token == int(logits.float().argmax())
    for over in (0.0, NEAR, -NEAR):
        for under in (0.0, NEAR, -NEAR):
            top_p = wish.top_p + over if wish.top_p < 1 else 1.0
            near = Wish(wish.temperature, wish.top_k, top_p, wish.min_p * (1 + under), wish.uniform)
            left = kept(logits, near)
            running = left.cumsum(0) / left.sum()
            before = running[token] - left[token] / left.sum()
            if left[token] > 0 and before - NEAR <= wish.uniform <= running[token] + NEAR:
                return True
    return False


def logits_like(kind: str, rows: int, vocabulary: int, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, vocabulary, generator=source)
    if kind == "peaked":
        return drawn * 4
    if kind == "flat":
        return drawn * 0.05
    if kind == "few values":
        return torch.randint(-2, 3, (rows, vocabulary), generator=source).float()
    if kind == "masked":
        return torch.where(torch.rand(rows, vocabulary, generator=source) < 0.9, -torch.inf, drawn)
    assert kind == "beneath"
    return -30 + drawn.exp()


temperatures = st.floats(0.05, 3) | st.sampled_from([0.0, 1e-6, 2e-5, 1e-3, 100.0, 1e6])
wishes = st.builds(
    Wish,
    temperature=temperatures,
    top_k=st.just(0) | st.integers(1, 60) | st.sampled_from([-1, 1, 1000, 10**9]),
    top_p=st.just(1.0) | st.floats(2**-10, 1, width=32) | st.sampled_from([0.0, 1e-9, 0.5, 0.999]),
    min_p=st.just(0.0) | st.floats(0, 1, width=32) | st.just(1.0),
    uniform=st.floats(0, 1, width=32, exclude_max=True),
)


@settings(max_examples=15)
@given(
    asked=st.lists(wishes, min_size=1, max_size=3),
    kind=st.sampled_from(["peaked", "flat", "few values", "masked", "beneath"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    sizes=st.sampled_from([(1, 16, 16), (10, 16, 4), (10, 16, 16), (300, 128, 16), (300, 64, 512), (5000, 2048, 256)]),
    seed=st.integers(0, 1000),
)
def test_every_row_is_drawn_by_the_definition(
    asked: list[Wish], kind: str, dtype: torch.dtype, sizes: tuple[int, int, int], seed: int
) -> None:
    vocabulary, chunk, capacity = sizes
    logits = logits_like(kind, len(asked), vocabulary, seed).to(dtype)
    found = chosen_by(logits, asked, chunk, capacity)
    for row, (wish, token) in enumerate(zip(asked, found, strict=True)):
        assert allowed(logits[row], wish, token), (wish, token)


@settings(max_examples=5)
@given(
    asked=st.lists(wishes, min_size=2, max_size=4),
    kind=st.sampled_from(["peaked", "few values", "flat"]),
    seed=st.integers(0, 1000),
    which=st.integers(0, 3),
)
def test_a_row_is_the_same_in_any_company_however_it_is_cut(
    asked: list[Wish], kind: str, seed: int, which: int
) -> None:
    logits = logits_like(kind, len(asked), 200, seed)
    together = chosen_by(logits, asked)
    row = which % len(asked)
    for chunk, capacity in ((128, 16), (256, 256)):
        assert chosen_by(logits[row : row + 1], [asked[row]], chunk, capacity) == [together[row]]


EVENLY = [(it + 0.5) / 16 for it in range(16)]


def frequencies(truth: list[int], *, chunk: int = 8, **wish: float) -> list[int]:
    """Of 16 numbers, evenly over [0, 1): how many give each token. `truth` has each token's share of 16."""
    logits = (torch.tensor(truth) / 16).log().expand(16, -1)
    asked = [Wish(uniform=it, **wish) for it in EVENLY]  # type: ignore[arg-type]
    return list(np.bincount(chosen_by(logits, asked, chunk, 8), minlength=len(truth)))


def test_tokens_come_exactly_as_often_as_they_are_likely() -> None:
    assert frequencies([1, 2, 5, 3, 0, 1, 4], chunk=2) == [1, 2, 5, 3, 0, 1, 4]


def test_what_filters_leave_is_shared_in_proportion() -> None:
    # 6 and 2 are left, of 8.
    for filters in ({"top_k": 2}, {"top_p": 0.45}, {"min_p": 0.3}):
        assert frequencies([1, 2, 1, 1, 6, 1, 1, 1, 1, 1], chunk=16, **filters) == [0, 4, 0, 0, 12, 0, 0, 0, 0, 0]


def test_top_p_counts_what_top_k_has_left() -> None:
    # Of two, the first has 6/8 of what is left, and 6/16 of what was.
    assert frequencies([1, 2, 1, 1, 6, 1, 1, 1, 1, 1], chunk=16, top_k=2, top_p=0.7) == [0] * 4 + [16] + [0] * 5
    assert frequencies([1, 2, 1, 1, 6, 1, 1, 1, 1, 1], chunk=16, top_k=2, top_p=0.8)[:5] == [0, 4, 0, 0, 12]


def test_equals_at_the_cut_are_kept_together() -> None:
    assert frequencies([8, 0, 2, 2, 2, 2], top_k=2) == [8, 0, 2, 2, 2, 2]
    assert frequencies([8, 0, 2, 2, 2, 2], top_p=0.51) == [8, 0, 2, 2, 2, 2]
    assert frequencies([4, 4, 4, 4], min_p=1.0) == [4, 4, 4, 4]


@pytest.mark.parametrize("kind", ["peaked", "flat"])
@pytest.mark.parametrize("capacity", [32, 512])
def test_as_many_are_kept_as_on_the_cpu(kind: str, capacity: int) -> None:
    logits = logits_like(kind, 4, 400, 8)
    asked = [Wish(0.7, 5), Wish(1.3, 0, 0.8), Wish(0.9, 60, 0.5), Wish(2.0, 350, 0.97)]
    scratch = poisoned(4, 400, 128, capacity)
    sample(logits, wishes_of(asked), torch.zeros(4, dtype=torch.int32), scratch)
    temperature = torch.tensor([it.temperature for it in asked])[:, None]
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature).exp()
    falling = weights.sort(descending=True).values.double()
    same = [Sampling(temperature=it.temperature, top_k=it.top_k, top_p=it.top_p) for it in asked]
    expected = on_the_cpu._kept(falling, falling.sum(-1), same)
    assert (logits >= scratch.cuts[:4, None]).sum(-1).tolist() == expected.tolist()


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.zeros(3, 200)
    logits[0, [70, 150]] = 1.0
    logits[1, :] = -torch.inf
    logits[2, 199] = 1e-3
    assert chosen_by(logits, [Wish(temperature=it) for it in (0.0, 9e-6, -1.0)]) == [70, 0, 199]
    assert chosen_by(logits.bfloat16(), [Wish(temperature=0.0, top_k=3, top_p=0.1)] * 3) == [70, 0, 199]


def test_the_ends_of_the_draw_are_the_first_and_the_last_that_are_kept() -> None:
    logits = torch.tensor([-torch.inf, 0.0, 3.0, 3.0, 0.0, -torch.inf]).expand(4, -1)
    asked = [Wish(uniform=0.0), Wish(uniform=1.0), Wish(uniform=0.0, top_k=2), Wish(uniform=1.0, top_k=2)]
    assert chosen_by(logits, asked, 4, 4) == [1, 4, 2, 3]


def test_a_masked_token_is_never_drawn_however_hot() -> None:
    logits = torch.tensor([-torch.inf, -1e5, 3.0, -torch.inf]).expand(8, -1)
    asked = [Wish(temperature=3e38, uniform=it / 8) for it in range(8)]
    assert chosen_by(logits, asked, 4, 4) == [1] * 4 + [2] * 4


def test_a_temperature_just_above_greedy_still_finds_the_likeliest() -> None:
    logits = torch.tensor([2.0, -1e38, torch.inf, 3e38, 5.0]).expand(3, -1)
    assert chosen_by(logits[:, [0, 1, 4]], [Wish(1.1e-5), Wish(1.1e-5, 2), Wish(1.1e-5, 0, 0.5)], 4, 4) == [2] * 3
    # What lies beyond 2**126 counts as that.
    assert chosen_by(logits, [Wish(uniform=0.2), Wish(0.0), Wish(uniform=0.7)], 4, 4) == [2, 2, 3]


@pytest.mark.parametrize("filler", [float("nan"), -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_where_there_is_nothing_all_tokens_are_equally_likely(filler: float, dtype: torch.dtype) -> None:
    logits = torch.full((5, 100), filler, dtype=dtype)
    asked = [Wish(0.0), Wish(uniform=0.5), Wish(top_k=3, uniform=0.5), Wish(top_p=0.3, uniform=0.5), Wish(min_p=0.5)]
    assert chosen_by(logits, asked) == [0, 50, 50, 50, 50]


def test_wishes_that_are_no_numbers_give_some_token() -> None:
    nan = float("nan")
    asked = [Wish(nan), Wish(top_p=nan), Wish(min_p=nan), Wish(uniform=nan), Wish(top_k=2, top_p=nan, min_p=nan)]
    assert all(0 <= it < 100 for it in chosen_by(torch.zeros(5, 100), asked))


def test_no_rows_are_no_work() -> None:
    empty = torch.zeros(0, dtype=torch.int32)
    sample(torch.zeros(0, 50), wishes_of([]), empty, Scratch.make(4, 50, CPU))
    log_probabilities(torch.zeros(3, 50), empty, torch.zeros(3, dtype=torch.int32), empty.view(0, 1))


def test_scratch_for_other_logits_is_refused() -> None:
    chosen = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"logits are 3 rows of 50, .* scratch is for up to 2 rows of 50"):
        sample(torch.zeros(3, 50), wishes_of([Wish()] * 3), chosen, Scratch.make(2, 50, CPU))
    with pytest.raises(ValueError, match=r"logits are 3 rows of 50, .* scratch is for up to 3 rows of 60"):
        sample(torch.zeros(3, 50), wishes_of([Wish()] * 3), chosen, Scratch.make(3, 60, CPU))
    with pytest.raises(ValueError, match="vocabulary of 262145 tokens"):
        Scratch.make(1, 2**18 + 1, CPU)


def told_of(logits: Tensor, rows: list[int], chosen: list[int], chunk: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and tokens, `[rows, 1 + MOST_TOLD]` each."""
    told = torch.full((len(rows) + 1, 2 * (1 + MOST_TOLD)), UNTOUCHED, dtype=torch.int32)
    which, tokens = (torch.tensor(it, dtype=torch.int32) for it in (rows, chosen))
    log_probabilities(logits, which, tokens, told[: len(rows)], chunk)
    assert (told[len(rows)] == UNTOUCHED).all()
    values, tokens = told[: len(rows)].view(len(rows), 2, 1 + MOST_TOLD).unbind(1)
    return values.contiguous().view(torch.float32), tokens


@settings(max_examples=6)
@given(
    vocabulary=st.sampled_from([1, 5, 20, 21, 300, 3000]),
    kind=st.sampled_from(["peaked", "few values", "masked"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_log_probabilities_are_those_of_the_raw_logits(
    vocabulary: int, kind: str, dtype: torch.dtype, seed: int
) -> None:
    logits = logits_like(kind, 3, vocabulary, seed).to(dtype)
    logits[:, vocabulary // 2] = 1.0  # something is never masked
    chosen = [seed % vocabulary, 0, vocabulary - 1]
    values, tokens = told_of(logits, [2, 0], chosen, 1024 if vocabulary > 300 else 64)
    for place, row in enumerate((2, 0)):
        truth = logits[row].double().log_softmax(-1)
        # Falling, and the lowest first among equals: what a stable sort gives.
        order = truth.sort(descending=True, stable=True).indices[:MOST_TOLD]
        count = len(order)
        assert tokens[place].tolist() == [chosen[row], *order.tolist(), *[-1] * (MOST_TOLD - count)]
        expected = truth[[chosen[row], *order.tolist()]].float()
        torch.testing.assert_close(values[place, : 1 + count], expected, rtol=1e-6, atol=1e-5)
        assert (values[place, 1 + count :] == -torch.inf).all()


def test_log_probabilities_are_the_same_in_any_company() -> None:
    logits = logits_like("peaked", 3, 200, 1)
    values, tokens = told_of(logits, [0, 1, 2], [5, 6, 7], 64)
    alone, its = told_of(logits[1:2], [0], [6], 64)
    assert torch.equal(alone[0], values[1])
    assert torch.equal(its[0], tokens[1])
