"""Costs follow the steps that are run: what they learn, how soon, and what they do not believe.

Steps come from seeds, so the same ones come every time.
"""

import math
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.scheduling.costs import (
    MARGIN_AT_START,
    MARGIN_KNOWN,
    MARGIN_WINDOW,
    MOST_MARGIN,
    Costs,
    pairs,
)
from protocol.messages import Measured, Work

TRUTHS = {
    "two cores": (0.030, 4e-3, 2e-7, 5e-7, 6e-3, 8e-7),
    "a GPU": (0.012, 1.5e-5, 1e-9, 2e-9, 4e-5, 3e-9),
    "a GPU without fixed costs": (0.0, 1.5e-5, 0.0, 0.0, 4e-5, 3e-9),
}


def works(seed: int) -> Iterator[Work]:
    """Steps as they are in service: rows, mostly with a chunk beside them."""
    rng = Random(seed)
    while True:
        rows = rng.randint(0, 32)
        tokens = rng.choice([0, 0, 32, 100, 256, 512])
        start = rng.choice([0, 0, 512, 3000])
        if rows or tokens:
            yield Work(
                tokens,
                pairs(start, tokens) if tokens else 0,
                start if tokens else 0,
                rows,
                sum(rng.randint(10, 4000) for _ in range(rows)),
            )


def steps(truth: Costs, seed: int, noise: float = 0.0, factor: float = 1.0) -> Iterator[tuple[Work, float]]:
    """Work and the seconds it took: a little more or less than the truth."""
    rng = Random(seed)
    for work in works(seed):
        yield work, factor * truth.step_s(work) * math.exp(rng.gauss(0, noise))


def teach(costs: Costs, lessons: Iterator[tuple[Work, float]], count: int) -> None:
    for work, took_s in islice(lessons, count):
        costs.learn(work, took_s)


def worst_error(costs: Costs, truth: Costs, factor: float = 1.0) -> float:
    """Relative, over fifty steps it has not seen."""
    return max(abs(costs.step_s(work) / (factor * truth.step_s(work)) - 1) for work in islice(works(99), 50))


@pytest.fixture(params=TRUTHS)
def truth(request: pytest.FixtureRequest) -> Costs:
    return Costs(coefficients=TRUTHS[request.param])


def test_what_is_linear_is_learned(truth: Costs) -> None:
    costs = Costs()
    teach(costs, steps(truth, 1), 500)
    assert worst_error(costs, truth) < 0.03
    assert costs.error < 0.01


def test_a_calibration_alone_predicts_what_it_did_not_measure(truth: Costs) -> None:
    grid = [
        Work(tokens, pairs(start, tokens), start if tokens else 0, rows, rows * context)
        for tokens in (0, 16, 128, 512)
        for start in (0, 2048)
        for rows, context in ((0, 0), (1, 64), (8, 1024), (32, 2048))
        if tokens or rows
    ]
    costs = Costs([Measured(work, truth.step_s(work)) for work in grid])
    assert costs.known
    assert worst_error(costs, truth) < 0.1


def test_noise_is_averaged_out(truth: Costs) -> None:
    costs = Costs()
    teach(costs, steps(truth, 2, noise=0.05), 1000)
    assert worst_error(costs, truth) < 0.12


@given(
    lessons=st.lists(
        st.tuples(
            st.builds(Work, *(st.integers(0, most) for most in (4096, 10**7, 10**6, 256, 10**6))),
            st.floats(0, 100),
        ),
        max_size=40,
    )
)
@settings(max_examples=50)
def test_whatever_steps_take_no_coefficient_is_negative_or_without_bound(lessons: list[tuple[Work, float]]) -> None:
    costs = Costs()
    for work, took_s in lessons:
        costs.learn(work, took_s)
    assert all(0 <= each < math.inf for each in costs.coefficients)
    assert 1 <= costs.margin <= MOST_MARGIN
    assert math.isfinite(costs.error)
    Costs(coefficients=costs.coefficients)


@pytest.mark.parametrize("factor", [10.0, 100.0])
def test_steps_that_took_far_too_long_move_the_prediction_by_little(truth: Costs, factor: float) -> None:
    """One in twenty: the machine did something else meanwhile."""
    costs = Costs()
    teach(costs, steps(truth, 3, noise=0.02), 300)
    for number, (work, took_s) in enumerate(islice(steps(truth, 4, noise=0.02), 600)):
        costs.learn(work, took_s * factor if number % 20 == 0 else took_s)
    assert worst_error(costs, truth) < 0.15


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_machine_that_becomes_slower_or_faster_is_followed_within_three_hundred_steps(
    truth: Costs, factor: float
) -> None:
    costs = Costs()
    teach(costs, steps(truth, 5, noise=0.02), 500)
    teach(costs, steps(truth, 6, noise=0.02, factor=factor), 300)
    assert worst_error(costs, truth, factor) < 0.2
    teach(costs, steps(truth, 7, noise=0.02, factor=factor), 700)
    assert worst_error(costs, truth, factor) < 0.1


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_machine_unlike_its_calibration_is_followed_all_the_same(truth: Costs, factor: float) -> None:
    costs = Costs([Measured(work, truth.step_s(work)) for work in islice(works(8), 40)])
    teach(costs, steps(truth, 6, noise=0.02, factor=factor), 2000)
    assert worst_error(costs, truth, factor) < 0.1


def test_before_a_slower_machine_is_learned_the_margin_covers_it(truth: Costs) -> None:
    costs = Costs()
    teach(costs, steps(truth, 5, noise=0.02), 500)
    teach(costs, steps(truth, 6, noise=0.02, factor=2.0), 60)
    late = sum(took_s > costs.margin * costs.step_s(work) for work, took_s in islice(steps(truth, 7, 0.02, 2.0), 100))
    assert late <= 10


def test_what_no_step_shows_is_still_known_from_the_calibration(truth: Costs) -> None:
    """An hour of decode rows, and prefill costs what it did."""
    costs = Costs([Measured(work, truth.step_s(work)) for work in islice(works(8), 40)])
    chunk_s = costs.chunk_s(512, 256)
    for work, took_s in islice(steps(truth, 9, noise=0.03), 4000):
        if not work.prefill_tokens:
            costs.learn(work, took_s)
    assert costs.chunk_s(512, 256) == pytest.approx(chunk_s, rel=0.15)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_nearly_every_step_ends_within_the_margin(truth: Costs, noise: float) -> None:
    costs = Costs()
    teach(costs, steps(truth, 10, noise), 1000)
    late = margins = 0.0
    for work, took_s in islice(steps(truth, 11, noise), 2000):
        late += took_s > costs.margin * costs.step_s(work)
        margins += costs.margin
        costs.learn(work, took_s)
    assert late <= 10, "of 2,000"
    assert margins / 2000 < 1.1 * math.exp(3.7 * noise), "and not by far too much"


def test_one_accident_hardly_moves_the_margin_and_is_forgotten() -> None:
    """While few steps are known, it is no less than at the start."""
    costs = Costs(coefficients=(0.0, 0.001, 0.0, 0.0, 0.0, 0.0))
    work = Work(prefill_tokens=100)
    margins = []
    for number in range(2 * MARGIN_WINDOW):
        costs.learn(work, 0.1, wall_s=costs.step_s(work) * (20.0 if number == 60 else 1.0))
        margins.append(costs.margin)
    assert margins[: MARGIN_KNOWN - 1] == [MARGIN_AT_START] * (MARGIN_KNOWN - 1)
    assert margins[59] == pytest.approx(1.0, abs=1e-3)
    assert max(margins[60:]) < 1.3
    assert margins[-1] == pytest.approx(1.0, abs=1e-3)


def test_what_passes_beside_the_time_on_the_device_is_added_and_not_multiplied() -> None:
    """A millisecond is a sixth of a short step, and nothing of a long one."""
    costs = Costs(coefficients=(0.005, 0.0001, 0.0, 0.0, 0.0, 0.0))
    for _ in range(400):
        costs.learn(Work(), 0.005, wall_s=0.006)
    assert costs.overhead_s == pytest.approx(0.001, rel=0.05)
    assert costs.base_s == pytest.approx(0.006, rel=0.02)
    assert costs.margin == pytest.approx(1.0, abs=0.02)


def test_the_margin_counts_the_time_from_plan_to_result() -> None:
    """A step that takes what was predicted, and is told of late, is late."""
    truth = Costs(coefficients=TRUTHS["two cores"])
    costs = Costs(coefficients=truth.coefficients)
    late = 0
    for number, (work, took_s) in enumerate(islice(steps(truth, 12), 1000)):
        wall_s = 1.5 * took_s
        late += number >= 500 and wall_s > costs.margin * (costs.step_s(work) + costs.overhead_s)
        costs.learn(work, took_s, wall_s=wall_s)
    assert late <= 5, "of 500"
    assert worst_error(costs, truth) < 0.01, "what a step costs is the time on the device"


def test_a_step_that_took_no_time_teaches_nothing() -> None:
    costs = Costs(coefficients=TRUTHS["a GPU"])
    before = (list(costs.coefficients), costs.margin, costs.error)
    costs.learn(Work(prefill_tokens=100), 0.0)
    assert (costs.coefficients, costs.margin, costs.error) == before


def test_the_first_step_ever_is_enough_to_predict_its_like() -> None:
    costs = Costs()
    costs.learn(Work(decode_rows=4, decode_context=100), 0.02)
    assert costs.known
    assert costs.step_s(Work(decode_rows=4, decode_context=100)) == pytest.approx(0.02, rel=0.01)
