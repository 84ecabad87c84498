"""How much work a request is taken to be, by figures worked out by hand."""

import pytest

from actors.scheduling.demand import Demand, weighed
from actors.scheduling.usual import USUAL_OUTPUT_TOKENS
from protocol.messages import CostsLearned
from tests.actors.recorders import enqueue

COSTS = CostsLearned((0.01, 0.001, 1e-6, 1e-5, 0.002, 1e-7), output_tokens=50.0)


@pytest.fixture
def demand() -> Demand:
    demand = Demand(chunk_tokens=100, max_running=4)
    demand.learn(COSTS)
    return demand


def test_while_nothing_is_known_no_work_takes_any_time() -> None:
    demand = Demand(chunk_tokens=100, max_running=4)
    assert not demand.known
    assert demand.prefill_s(1000, 0) == demand.work_s(enqueue("r", 1000), 0) == 0


def test_a_prompt_alone_takes_its_chunks_and_the_fixed_part_of_each_step(demand: Demand) -> None:
    """250 tokens in three chunks, which read 0, 100 and 200 tokens before them; 250 * 251 / 2 pairs."""
    assert demand.known
    assert demand.prefill_s(250, 0) == pytest.approx(0.25 + 31_375e-6 + 300e-5 + 3 * 0.01)


def test_what_is_cached_of_a_prompt_takes_nothing_but_to_be_read(demand: Demand) -> None:
    """50 tokens in one chunk, behind 200."""
    assert demand.prefill_s(250, 200) == pytest.approx(0.05 + (50 * 200 + 1275) * 1e-6 + 200e-5 + 0.01)


def test_an_answer_is_taken_to_be_of_usual_length_but_for_its_limit(demand: Demand) -> None:
    assert demand.output_tokens(enqueue("r", 4, max_output_tokens=2000)) == 50
    assert demand.output_tokens(enqueue("r", 4, max_output_tokens=7)) == 7
    assert demand.output_tokens(enqueue("r", 4, max_output_tokens=0)) == 0
    assert Demand(100, 4).output_tokens(enqueue("r", 4, max_output_tokens=2000)) == USUAL_OUTPUT_TOKENS


def test_all_of_a_request_is_its_prompt_and_its_rows_with_their_share_of_each_step(demand: Demand) -> None:
    """Fifty rows, each of them 2 ms, a quarter of 10 ms, and 125 tokens read in the middle of the answer."""
    prompt_s = 0.1 + 5050e-6
    row_s = 0.002 + 0.01 / 4 + 125e-7
    assert demand.work_s(enqueue("r", 100, max_output_tokens=2000), 0) == pytest.approx(prompt_s + 50 * row_s)


def test_a_request_is_charged_its_tokens_those_of_the_answer_twice(demand: Demand) -> None:
    request = enqueue("r", 100, max_output_tokens=2000)
    assert demand.charge(request, 0) == weighed(100, 50) == 100 + 2 * 50
    assert demand.charge(request, 64) == 36 + 2 * 50
    demand.learn(CostsLearned((9.0,) * 6, output_tokens=50.0))
    assert demand.charge(request, 0) == 200, "whatever a token takes"


def test_of_a_prompt_that_went_in_before_its_beginning_is_taken_to_be_cached(demand: Demand) -> None:
    request = enqueue("r", 1000)
    assert demand.cached_tokens(request) == 0
    demand.begins(request)
    assert 500 <= demand.cached_tokens(request) < 1000
    assert demand.cached_tokens(enqueue("r", 1000, tenant="another")) == 0
