"""Steps on our Triton kernels, from the batch to the tokens, in Triton's interpreter: transformers' tokens."""

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.decoder import Decoder
from kernels.runner import Runner, TorchForward
from kernels.serving import _first_step
from kernels.structure import Unknown
from kernels.triton import inputs
from kernels.triton.choice import triton_forward
from kernels.triton.forward import MOST_CHANGES, TritonForward, graph_sizes
from kernels.triton.hosted import HostedModel
from kernels.triton.layers import OwnLayers
from kernels.triton.linear import form
from protocol.messages import Chunk, LoadModel, Sampling
from tests.kernels.driving import Driver
from tests.kernels.native.decoders import heads, make_decoder

BLOCK = 16
BLOCKS = 24


def shown(sizes: list[int]) -> Iterable[int]:
    return sizes


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_decoder(tmp_path_factory.mktemp("models"), torch.float32, "llama", **heads(6, 2, 16), vocab_size=97)


def runner(decoder: Decoder, *, record: bool = True, body: Any = None, rows: int = 4) -> Runner:
    forward, _ = triton_forward(decoder, BLOCK, 32, rows)
    if body is not None:
        forward = TritonForward(decoder, body, group=3, block_size=BLOCK, max_step_tokens=32, max_step_rows=rows)
    cache = forward.new_cache(decoder.layers, BLOCKS, BLOCK, decoder.dtype, decoder.device)
    # What nobody has written may be anything.
    for pages in (*cache.keys, *cache.values):
        pages.fill_(float("nan"))
    if record:
        with torch.inference_mode():
            forward.record(cache, shown)
    return Runner(decoder, cache, forward)


def plain(decoder: Decoder) -> Runner:
    forward = TorchForward(decoder)
    return Runner(decoder, forward.new_cache(decoder.layers, BLOCKS, BLOCK, decoder.dtype, decoder.device), forward)


def prompts(seed: int, lengths: Iterable[int]) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(97) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "as they come"])
def test_greedy_answers_are_those_of_torch_whatever_the_chunks_and_the_company(decoder: Decoder, record: bool) -> None:
    asked = prompts(1, (1, 21, 40))
    expected = [it.answer for it in Driver(plain(decoder)).generate(asked, 5)]
    crowd = Driver(runner(decoder, record=record)).generate(asked, 5, chunk=10, preempt=0.1)
    assert [it.answer for it in crowd] == expected
    alone = Driver(runner(decoder, record=record)).generate(asked[1:2], 5, chunk=32)
    assert [it.answer for it in alone] == expected[1:2]


def test_a_model_that_transformers_runs_with_our_attention_gives_the_same(decoder: Decoder) -> None:
    asked = prompts(2, (3, 20))
    expected = [it.answer for it in Driver(plain(decoder)).generate(asked, 4)]
    hosted = runner(decoder, body=HostedModel(decoder, 4))
    assert [it.answer for it in Driver(hosted).generate(asked, 4, chunk=8)] == expected


def test_rows_follow_tokens_that_have_never_left_the_device(decoder: Decoder) -> None:
    on = runner(decoder)
    asked = prompts(3, (4, 9))
    expected = [it.answer for it in Driver(plain(decoder)).generate(asked, 4)]
    tables = [np.array([5, 1], "<i4").tobytes(), np.array([2, 9], "<i4").tobytes()]
    first = tuple(
        Chunk(str(number), 0, np.array(ids, "<i4").tobytes(), tables[number], Sampling())
        for number, ids in enumerate(asked)
    )
    launched = [on.launch(first)]
    found = []
    for later in range(3):
        # The other way round each time, so that a place is no row.
        order = (1, 0) if later % 2 == 0 else (0, 1)
        places = {0: 0, 1: 1} if later % 2 == 0 else {1: 0, 0: 1}
        rows = tuple(
            Chunk(str(it), len(asked[it]) + later, bytes(4), tables[it], Sampling(), follows=places[it]) for it in order
        )
        launched.append(on.launch(rows))
        found.append(launched[-2].wait().tokens)
    found.append(launched[-1].wait().tokens)
    orders = [(0, 1), (1, 0), (0, 1), (1, 0)]
    answers: dict[int, list[int]] = {0: [], 1: []}
    for tokens, order in zip(found, orders, strict=True):
        for token, it in zip(tokens, order, strict=True):
            answers[it].append(token.token)
    assert [answers[0], answers[1]] == expected


def test_log_probabilities_are_those_of_the_logits(decoder: Decoder) -> None:
    asked = prompts(4, (6, 7))
    wishes = [Sampling(logprobs=3), Sampling()]
    ours = Driver(runner(decoder)).generate(asked, 3, sampling=wishes)
    theirs = Driver(plain(decoder)).generate(asked, 3, sampling=wishes)
    for one, other in zip(ours[0].sampled, theirs[0].sampled, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [it[0] for it in one.top] == [it[0] for it in other.top]
        assert [it[1] for it in one.top] == pytest.approx([it[1] for it in other.top], abs=1e-4)
    assert all(it.logprob is None and it.top == () for it in ours[1].sampled)


def test_a_drawn_token_depends_on_seed_and_position_alone(decoder: Decoder) -> None:
    (asked,) = prompts(5, (8,))
    wish = Sampling(temperature=1.0, top_p=0.9, top_k=40, min_p=0.01, seed=11)
    (alone,) = Driver(runner(decoder)).generate([asked], 3, sampling=[wish])
    crowd = Driver(runner(decoder), seed=3).generate(
        [*prompts(6, (5,)), asked], 3, chunk=5, sampling=[Sampling(temperature=0.7, seed=2), wish]
    )
    assert crowd[1].answer == alone.answer
    (other,) = Driver(runner(decoder)).generate([asked], 3, sampling=[Sampling(temperature=1.0, seed=12)])
    assert other.answer != alone.answer


def test_more_changes_of_tables_than_go_with_a_step_are_made_all_the_same(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.triton.forward.MOST_CHANGES", 2)
    assert MOST_CHANGES > 2
    asked = prompts(7, (70, 33))
    expected = [it.answer for it in Driver(plain(decoder)).generate(asked, 2)]
    assert [it.answer for it in Driver(runner(decoder)).generate(asked, 2, chunk=15)] == expected


def test_tables_are_right_again_after_a_step_that_found_no_memory_for_its_changes(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.triton.forward.MOST_CHANGES", 2)
    on = runner(decoder)
    (asked,) = prompts(8, (50,))
    expected = [it.answer for it in Driver(plain(decoder)).generate([asked], 2)]
    apply_changes = inputs.apply_changes
    failed: list[bool] = []

    def once(*arguments: Any) -> None:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("none left")
        apply_changes(*arguments)

    monkeypatch.setattr(inputs, "apply_changes", once)
    table = np.arange(4, 8, dtype="<i4").tobytes()
    first = Chunk("a", 0, np.array(asked[:30], "<i4").tobytes(), table)
    with pytest.raises(torch.OutOfMemoryError):
        on.launch((first,))
    on.run((first,))
    rest = Chunk("a", 30, np.array(asked[30:], "<i4").tobytes(), table, Sampling())
    (chosen,) = on.run((rest,))
    (after,) = on.run((Chunk("a", 50, np.array([chosen.token], "<i4").tobytes(), table, Sampling()),))
    assert [[chosen.token, after.token]] == expected


def test_every_form_of_a_product_has_run_before_anybody_asks(decoder: Decoder) -> None:
    body = OwnLayers(decoder, 700, 70)
    shapes = [(160, 96), (96, 96), (192, 96), (96, 96), (97, 96)]

    def forms(sizes: Iterable[int]) -> set[tuple[object, ...]]:
        kept = {97: 70}  # no more rows than that have logits
        return {
            (*shape, form(min(size, kept.get(shape[0], size)), *shape, torch.float32))
            for size in sizes
            for shape in shapes
        }

    assert forms(body.sizes) == forms(range(1, 701))
    assert len(body.sizes) < 10


def test_a_server_for_one_request_of_one_token_at_a_time_starts(decoder: Decoder) -> None:
    for tokens, rows in ((1, 1), (2, 1), (1, 4), (40, 1)):
        first = _first_step(runner(decoder, record=False), LoadModel("m", max_step_tokens=tokens, max_step_rows=rows))
        assert sum(len(it.tokens) // 4 for it in first) <= tokens
        assert len(first) <= rows


def test_nothing_but_the_block_that_nobody_has_is_written_by_rows_that_fill_a_graph_up(decoder: Decoder) -> None:
    on = runner(decoder)
    before = [it.clone() for it in (*on.cache.keys, *on.cache.values)]
    on.run(
        tuple(
            Chunk(name, 0, bytes(4), np.array([at], "<i4").tobytes(), Sampling())
            for name, at in (("a", 3), ("b", 7), ("c", 8))
        )
    )
    for was, pages in zip(before, (*on.cache.keys, *on.cache.values), strict=True):
        changed = (~torch.eq(was.nan_to_num(-9.0), pages.nan_to_num(-9.0))).flatten(1).any(1).nonzero()[:, 0].tolist()
        assert set(changed) <= {3, 7, 8, BLOCKS}


def test_what_steps_work_in_is_counted(decoder: Decoder) -> None:
    small, large = (triton_forward(decoder, BLOCK, tokens, 4)[0].fixed_bytes for tokens in (32, 64))
    # Residual, normed, added; query, keys and values; queries and what they attended; gate and up, and their product;
    # ids, what they follow, positions and slots. The rest is partial sums of products and attention's list of work.
    per_token = 4 * (3 * 96 + (6 + 2 * 2) * 16 + 2 * 6 * 16 + 3 * 96 + 4)
    assert large - small >= 32 * per_token
    assert large - small < 32 * per_token * 2


def test_weights_are_held_once_and_the_models_own_modules_go_on_working(decoder: Decoder) -> None:
    storages = {it.untyped_storage().data_ptr() for it in decoder.model.parameters()}
    body = OwnLayers(decoder, 8, 4)
    packed = {it.untyped_storage().data_ptr() for layer in body._layers for it in (layer.qkv, layer.gate_up, layer.out)}
    assert packed <= {it.untyped_storage().data_ptr() for it in decoder.model.parameters()}
    assert storages  # the plain forward of the other tests runs on them


def test_graphs_are_close_together_where_a_row_more_costs_most() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    sizes = graph_sizes(256)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 256
    assert all(later - one <= max(2, one // 2, 8) for one, later in pairwise(sizes))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({**heads(3, 3, 96), "head_dim": 48}, "heads of 48"),
        (
            {"hidden_size": 272, "num_attention_heads": 17, "num_key_value_heads": 1, "head_dim": 16},
            "17 of its query heads",
        ),
    ],
)
def test_a_model_that_they_cannot_run_is_refused_with_the_reason(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    odd = make_decoder(tmp_path, torch.float32, "llama", **settings)
    with pytest.raises(Unknown, match=why):
        triton_forward(odd, BLOCK, 32, 4)


def test_a_vocabulary_that_sampling_cannot_add_up_is_refused(decoder: Decoder) -> None:
    with pytest.raises(Unknown, match="262,145 tokens"):
        triton_forward(replace(decoder, vocabulary=2**18 + 1), BLOCK, 32, 4)
