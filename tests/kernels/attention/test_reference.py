import random

import numpy as np
import pytest
import torch

from kernels import ModelError
from kernels.attention import reference
from kernels.attention.interface import LayerProbe, rota_attention
from kernels.attention.reference import PagedBatch, Span
from kernels.kv_cache import KVCache, LayerShape

CPU = torch.device("cpu")
BLOCK = 16


def dense(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, scaling: float, window: int | None
) -> torch.Tensor:
    """One request, position by position, in float64. `query` `[count, heads, dim]`, `keys` `[context, kv, dim]`."""
    share = query.shape[1] // keys.shape[1]
    out = torch.empty(query.shape[0], query.shape[1], values.shape[2], dtype=torch.float64)
    for index in range(query.shape[0]):
        position = start + index
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(query.shape[1]):
            seen = keys[first : position + 1, head // share].double()
            weights = (seen @ query[index, head].double() * scaling).softmax(0)
            out[index, head] = weights @ values[first : position + 1, head // share].double()
    return out


class Scene:
    """Requests with a past in the cache and `counts` new tokens each, and what attention over them should be."""

    def __init__(
        self, starts: list[int], counts: list[int], *, heads: int, kv_heads: int, dim: int, seed: int = 0
    ) -> None:
        noise = torch.Generator().manual_seed(seed)
        self.starts, self.counts, self.scaling = starts, counts, dim**-0.5
        needed = [-(-(start + count) // BLOCK) for start, count in zip(starts, counts, strict=True)]
        spare = random.Random(seed).sample(range(sum(needed) + 5), sum(needed) + 5)
        self.cache = KVCache([LayerShape(kv_heads, dim, dim)] * 2, len(spare), BLOCK, torch.float32, CPU)
        for layer in (*self.cache.keys, *self.cache.values):
            layer.fill_(99.0)  # what a block held before must not matter
        self.tables = [np.array([spare.pop() for _ in range(it)], np.int32) for it in needed]
        sizes = [start + count for start, count in zip(starts, counts, strict=True)]
        self.keys = [torch.randn(it, kv_heads, dim, generator=noise) for it in sizes]
        self.values = [torch.randn(it, kv_heads, dim, generator=noise) for it in sizes]
        self.queries = [torch.randn(it, heads, dim, generator=noise) for it in counts]
        for table, keys, values, start in zip(self.tables, self.keys, self.values, starts, strict=True):
            for position in range(start):
                block, offset = table[position // BLOCK], position % BLOCK
                self.cache.keys[1][block, offset] = keys[position]
                self.cache.values[1][block, offset] = values[position]

    def attended(self, window: int | None = None) -> torch.Tensor:
        spans = [Span(*it) for it in zip(self.starts, self.counts, self.tables, strict=True)]
        batch = PagedBatch(self.cache, spans, CPU)
        return batch.attend(
            1,
            torch.cat(self.queries),
            torch.cat([keys[start:] for keys, start in zip(self.keys, self.starts, strict=True)]),
            torch.cat([values[start:] for values, start in zip(self.values, self.starts, strict=True)]),
            self.scaling,
            window,
        )

    def truth(self, window: int | None = None) -> torch.Tensor:
        parts = zip(self.queries, self.keys, self.values, self.starts, strict=True)
        return torch.cat([dense(q, k, v, start, self.scaling, window) for q, k, v, start in parts])


SHAPES = [(4, 4, 64), (9, 3, 64), (8, 2, 128), (4, 1, 16)]
SCENES = {
    "one row": ([40], [1]),
    "first token": ([0], [1]),
    "a prompt from its beginning": ([0], [37]),
    "a chunk onto a partly full block": ([21], [30]),
    "a chunk that ends its block": ([16], [16]),
    "decodes of similar length": ([40, 41, 47, 48], [1, 1, 1, 1]),
    "decodes far apart": ([0, 300, 15, 16, 299], [1, 1, 1, 1, 1]),
    "everything at once": ([0, 100, 33, 0, 7, 64, 31], [20, 1, 40, 1, 1, 2, 1]),
}


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("window", [None, 1, 5, 1000])
def test_paged_attention_is_dense_attention(
    scene: str, heads: int, kv_heads: int, dim: int, window: int | None
) -> None:
    one = Scene(*SCENES[scene], heads=heads, kv_heads=kv_heads, dim=dim)
    torch.testing.assert_close(one.attended(window).double(), one.truth(window), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_ragged_batches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(reference, "GATHER_BYTES", draw.choice([1, 40_000, 2**24]))
    rows = draw.randrange(1, 12)
    starts = [draw.choice([0, draw.randrange(200)]) for _ in range(rows)]
    counts = [draw.choice([1, 1, draw.randrange(1, 50)]) for _ in range(rows)]
    one = Scene(starts, counts, heads=6, kv_heads=2, dim=64, seed=seed)
    window = draw.choice([None, draw.randrange(1, 100)])
    torch.testing.assert_close(one.attended(window).double(), one.truth(window), atol=2e-6, rtol=1e-5)


def test_padding_of_decode_groups_is_bounded() -> None:
    starts = [0, 10, 100, 1000, 1010, 990, 700, 20]
    one = Scene(starts, [1] * len(starts), heads=2, kv_heads=1, dim=16)
    spans = [Span(*it) for it in zip(one.starts, one.counts, one.tables, strict=True)]
    groups = PagedBatch(one.cache, spans, CPU)._decodes
    assert sum(len(it.positions) for it in groups) == len(starts)
    for group in groups:
        blocks = group.positions // BLOCK + 1
        assert (blocks >= group.tables.shape[1] * 0.75 - reference.GROUP_SLACK_BLOCKS).all()


def test_a_longer_table_than_needed_is_no_matter() -> None:
    one = Scene([20, 0], [1, 9], heads=2, kv_heads=1, dim=16)
    truth = one.truth()
    one.tables = [np.append(it, np.int32(0)) for it in one.tables]
    torch.testing.assert_close(one.attended().double(), truth, atol=2e-6, rtol=1e-5)


class Module(torch.nn.Module):
    layer_idx = 0


@pytest.mark.parametrize("wish", ["softcap", "s_aux", "position_bias"])
def test_what_is_not_implemented_is_refused_not_swallowed(wish: str) -> None:
    head = torch.zeros(1, 2, 3, 4)
    value = 30.0 if wish == "softcap" else torch.zeros(2)
    with pytest.raises(ModelError, match="does not have yet"):
        rota_attention(Module(), head, head, head, None, step=LayerProbe(), **{wish: value})  # type: ignore[arg-type]


def test_attention_without_a_step_or_looking_ahead_is_refused() -> None:
    head = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ModelError, match="does not pass our arguments on"):
        rota_attention(Module(), head, head, head, None)
    module = Module()
    module.is_causal = False  # type: ignore[assignment]
    with pytest.raises(ModelError, match="not a decoder"):
        rota_attention(module, head, head, head, None, step=LayerProbe())


def test_the_probe_learns_shapes_and_refuses_gaps() -> None:
    probe = LayerProbe()
    query, key, value = torch.zeros(1, 4, 8), torch.zeros(1, 2, 8), torch.zeros(1, 2, 6)
    assert probe.attend(0, query, key, value, 1.0, None).shape == (1, 4, 6)
    assert probe.layers() == [LayerShape(2, 8, 6)]
    with pytest.raises(ModelError, match="twice"):
        probe.attend(0, query, key, value, 1.0, None)
    probe.attend(2, query, key, value, 1.0, None)
    with pytest.raises(ModelError, match="without attention"):
        probe.layers()
