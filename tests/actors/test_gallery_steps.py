"""Which steps a frame shows, and whose time each was."""

from collections.abc import Sequence

import pytest

from actors.gallery_steps import MOST_PARTS, MOST_PARTS_OF_ONE, MOST_STEPS, NOBODY, Steps, parts
from actors.gallery_taps import HeardDone, HeardFailed, HeardStep
from actors.scheduling.costs import Costs
from protocol.turns import Part

COEFFICIENTS = (0.002, 1e-4, 1e-6, 1e-7, 5e-4, 1e-6)
COSTS = Costs(coefficients=COEFFICIENTS)


def step(number: int, *chunks: tuple[str, int, int], behind: int = 0) -> HeardStep:
    """Chunks: whose, from where, how many tokens."""
    return HeardStep(
        number,
        tuple(chunk[0] for chunk in chunks),
        tuple(chunk[1] for chunk in chunks),
        tuple(chunk[2] for chunk in chunks),
        behind,
    )


def drawn(request: str) -> tuple[int, int] | None:
    """`r7` is number 7, with a prompt of 100 tokens; nobody else is known."""
    return (int(request[1:]), 100) if request.startswith("r") else None


def run(steps: Steps, *took_s: float, rows: int = 1) -> None:
    for number, took in enumerate(took_s, start=1):
        steps.begin(step(number, *((f"r{row + 1}", 200, 1) for row in range(rows))), number * 10.0)
        steps.end(HeardDone(number, took), number * 10.0 + took)


def test_a_step_is_shared_by_what_its_parts_cost() -> None:
    made = parts(step(1, ("r1", 0, 50), ("r2", 120, 1), ("r3", 5000, 1)), 20.0, COSTS, drawn)
    costs = [COSTS.chunk_s(0, 50), COSTS.row_s(120), COSTS.row_s(5000)]
    assert [part.share_ms for part in made] == pytest.approx([20.0 * cost / sum(costs) for cost in costs], abs=0.002)
    assert [(part.request, part.kind, part.start, part.tokens) for part in made] == [
        (1, "prefill", 0, 50),
        (2, "decode", 120, 1),
        (3, "decode", 5000, 1),
    ]


@pytest.mark.parametrize("took_ms", [0.0, 0.001, 7.777, 20.003, 3333.333])
@pytest.mark.parametrize("coefficients", [COEFFICIENTS, ()])
def test_parts_add_up_to_their_step(took_ms: float, coefficients: Sequence[float]) -> None:
    chunks = [(f"r{number}", 97 * number, number % 3 * 7 + 1) for number in range(1, 60)]
    costs = Costs(coefficients=coefficients) if coefficients else Costs()
    made = parts(step(1, *chunks), took_ms, costs, drawn)
    assert sum(part.share_ms for part in made) == pytest.approx(took_ms, abs=1e-9)
    assert min(part.share_ms for part in made) >= 0


def test_before_costs_are_known_it_is_shared_by_tokens() -> None:
    made = parts(step(1, ("r1", 0, 30), ("r2", 200, 1), ("r3", 0, 9)), 40.0, Costs(), drawn)
    assert [part.share_ms for part in made] == [30.0, 1.0, 9.0]


def test_the_last_token_of_a_prompt_is_prefill_though_it_is_one() -> None:
    made = parts(step(1, ("r1", 99, 1), ("r2", 100, 1)), 1.0, COSTS, drawn)
    assert [part.kind for part in made] == ["prefill", "decode"]


def test_whoever_is_not_known_is_nobody() -> None:
    assert [part.request for part in parts(step(1, ("x", 5, 3), ("y", 9, 1)), 1.0, COSTS, drawn)] == [NOBODY, NOBODY]


def test_of_too_many_parts_the_smallest_of_each_kind_are_one() -> None:
    rows = [(f"r{number}", 1000 + number, 1) for number in range(1, 101)]
    prefills = [(f"r{number}", 0, 2) for number in range(101, 111)]
    made = parts(step(1, *rows, *prefills), 100.0, COSTS, drawn)
    assert len(made) == MOST_PARTS_OF_ONE
    together = [part for part in made if part.request == NOBODY]
    assert [(part.kind, part.tokens) for part in together] == [("prefill", 20), ("decode", 38)]
    assert [part.request for part in made if part.request] == [*range(39, 101)], "in their order"
    assert sum(part.share_ms for part in made) == pytest.approx(100.0)


def test_the_longest_are_shown_in_their_order_and_the_rest_are_counted() -> None:
    steps = Steps()
    took = [0.01 + 0.001 * (number % 7 == 0) for number in range(MOST_STEPS + 60)]
    run(steps, *took)
    shown, left_out = steps.take(COEFFICIENTS, drawn, 1000.0)
    assert len(shown) == MOST_STEPS
    assert [one.step for one in shown] == sorted(one.step for one in shown)
    assert sum(one.took_ms > 10.5 for one in shown) == sum(one > 0.0105 for one in took)
    assert left_out[0] == 60
    assert left_out[1] + sum(one.took_ms for one in shown) == pytest.approx(sum(took) * 1e3)
    assert shown[0].at == 1010.0
    assert steps.take(COEFFICIENTS, drawn, 0.0) == ((), (0, 0.0))


def test_many_more_than_are_shown_are_not_kept() -> None:
    steps = Steps()
    run(steps, *[0.01] * 5000)
    assert len(steps._run) < 5 * MOST_STEPS
    shown, left_out = steps.take(COEFFICIENTS, drawn, 0.0)
    assert len(shown) + left_out[0] == 5000


def test_a_frame_holds_so_many_parts() -> None:
    steps = Steps()
    run(steps, *[0.01] * 30, rows=50)
    shown, left_out = steps.take(COEFFICIENTS, drawn, 0.0)
    assert sum(len(one.parts) for one in shown) <= MOST_PARTS
    assert (len(shown), left_out[0]) == (MOST_PARTS // 50, 30 - MOST_PARTS // 50)


def test_what_a_lost_worker_had_begun_is_not_shown() -> None:
    steps = Steps()
    steps.begin(step(1, ("r1", 0, 5)), 1.0)
    steps.lose()
    steps.end(HeardDone(1, 0.01), 2.0)
    steps.end(HeardDone(2, 0.01), 3.0)
    assert steps.take(COEFFICIENTS, drawn, 0.0) == ((), (0, 0.0))


def test_a_step_whose_end_was_not_heard_is_forgotten_with_the_next() -> None:
    steps = Steps()
    for number in (1, 2):
        steps.begin(step(number, ("r1", number, 1)), float(number))
    steps.end(HeardDone(2, 0.004), 3.0)
    shown, _ = steps.take((), drawn, 0.0)
    assert [(one.step, one.parts) for one in shown] == [(2, (Part(1, "prefill", 2, 1, 4.0),))]
    assert not steps._running


def test_a_step_that_waited_behind_another_begins_when_that_one_has_ended() -> None:
    """Results are heard some milliseconds after their ends, sometimes more and sometimes less."""
    steps = Steps()
    row = ("r1", 200, 1)
    steps.begin(step(1, row), 10.0)
    steps.begin(step(2, row, behind=1), 10.001)
    steps.end(HeardDone(1, 0.1), 10.107)
    steps.begin(step(3, row, behind=2), 10.108)
    steps.end(HeardDone(2, 0.1), 10.203)
    steps.end(HeardDone(3, 0.05), 10.300)
    shown, _ = steps.take(COEFFICIENTS, drawn, 0.0)
    assert [(one.at, one.took_ms) for one in shown] == [(10.0, 100.0), (10.103, 100.0), (10.25, 50.0)]


def test_a_step_that_was_not_run_is_not_shown() -> None:
    steps = Steps()
    steps.begin(step(1, ("r1", 0, 5)), 1.0)
    steps.fail(HeardFailed(1))
    steps.fail(HeardFailed(2))
    steps.begin(step(3, ("r1", 0, 2)), 2.0)
    steps.end(HeardDone(3, 0.5), 2.5)
    shown, left_out = steps.take(COEFFICIENTS, drawn, 0.0)
    assert [one.step for one in shown] == [3]
    assert left_out == (0, 0.0)
