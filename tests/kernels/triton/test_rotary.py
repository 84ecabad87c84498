"""Queries and keys are turned by their positions; keys and values go to their slots, and no other slot is touched."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.triton.rotary import rotate_and_write

BLOCKS, BLOCK_SIZE, MOST_POSITIONS = 4, 16, 300
# A turned element is a sum of two, and small where they nearly cancel: the norm's rounding shows more there.
NEAR = {torch.bfloat16: 2**-6, torch.float16: 2**-9, torch.float32: 1e-5}


@dataclass
class Case:
    """One launch's inputs, and outputs full of NaN. The last block of the cache is for padding."""

    dtype: torch.dtype
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    normed: bool
    seed: int

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = torch.randn((self.tokens, width), generator=source).to(self.dtype)
        self.positions = torch.randint(0, MOST_POSITIONS, (self.tokens,), generator=source, dtype=torch.int32)
        self.slots = torch.randperm(BLOCKS * BLOCK_SIZE, generator=source)[: self.tokens].int()
        frequencies = 10_000.0 ** -(torch.arange(self.head_dim // 2) / (self.head_dim // 2))
        angles = torch.arange(MOST_POSITIONS)[:, None] * frequencies
        self.cosines, self.sines = angles.cos(), angles.sin()
        weights = torch.randn((2, self.head_dim), generator=source).to(self.dtype)
        self.query_norm = weights[0] if self.normed else None
        self.key_norm = weights[1] if self.normed else None
        nan = float("nan")
        self.query = torch.full((self.tokens + 1, self.heads, self.head_dim), nan, dtype=self.dtype)
        cache = (2, BLOCKS + 1, BLOCK_SIZE, self.kv_heads, self.head_dim)
        self.keys, self.values = torch.full(cache, nan, dtype=self.dtype)

    def launch(self, first: int = 0, last: int | None = None) -> None:
        rows = slice(first, self.tokens if last is None else last)
        rotate_and_write(
            self.qkv[rows],
            self.positions[rows],
            self.slots[rows],
            self.cosines,
            self.sines,
            self.query_norm,
            self.key_norm,
            1e-6,
            heads=self.heads,
            kv_heads=self.kv_heads,
            query=self.query[rows],
            keys=self.keys,
            values=self.values,
        )

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value `[tokens, heads, head_dim]` in float64, the last as it was."""
        every = self.qkv.view(self.tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        first_value = self.heads + self.kv_heads
        query, key, value = every[:, : self.heads], every[:, self.heads : first_value], every[:, first_value:]
        turned = [
            self._turned(self._normed(it, weight)) for it, weight in ((query, self.query_norm), (key, self.key_norm))
        ]
        return turned[0], turned[1], value

    def _normed(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        """As transformers' Qwen3RMSNorm."""
        if weight is None:
            return rows
        wide = rows.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(rows.dtype)

    def _turned(self, rows: Tensor) -> Tensor:
        """As transformers' apply_rotary_pos_emb, with angles that are not rounded."""
        angles = [it[self.positions.long()].repeat(1, 2)[:, None].double() for it in (self.cosines, self.sines)]
        left, right = rows.double().chunk(2, -1)
        return rows.double() * angles[0] + torch.cat([-right, left], -1) * angles[1]

    def of_slots(self, pages: Tensor) -> tuple[Tensor, Tensor]:
        """What stands in this launch's slots, in the order of its tokens, and what stands in all others."""
        flat = pages.view(-1, self.kv_heads, self.head_dim)
        others = torch.ones(flat.shape[0], dtype=torch.bool)
        others[self.slots.long()] = False
        return flat[self.slots.long()], flat[others]


cases = st.builds(
    Case,
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    tokens=st.integers(0, 6),
    heads=st.sampled_from([1, 3, 9, 14]),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([16, 32, 64, 96, 128, 256]),
    normed=st.booleans(),
    seed=st.integers(0, 1000),
)


@settings(max_examples=30, deadline=None)
@given(cases)
def test_heads_are_turned_and_kept_in_their_slots_and_no_other_slot_is_touched(case: Case) -> None:
    query, key, value = case.expected()
    case.launch()
    near = NEAR[case.dtype]
    keys, other_keys = case.of_slots(case.keys)
    values, other_values = case.of_slots(case.values)
    torch.testing.assert_close(case.query[: case.tokens].double(), query, rtol=near, atol=near)
    torch.testing.assert_close(keys.double(), key, rtol=near, atol=near)
    assert torch.equal(values, value)
    assert case.query[case.tokens].isnan().all()
    assert other_keys.isnan().all()
    assert other_values.isnan().all()


@settings(max_examples=12, deadline=None)
@given(cases.filter(lambda case: not case.normed))
def test_a_turned_head_is_rounded_once(case: Case) -> None:
    query, _, _ = case.expected()
    case.launch()
    half_an_ulp = {torch.bfloat16: 2**-9, torch.float16: 2**-12, torch.float32: 2**-22}[case.dtype]
    torch.testing.assert_close(case.query[: case.tokens].double(), query, rtol=2.02 * half_an_ulp, atol=1e-6)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_token_has_the_same_bits_alone_and_in_a_crowd(dtype: torch.dtype, normed: bool) -> None:
    crowd, alone = (Case(dtype, 5, 9, 3, 64, normed, seed=3) for _ in range(2))
    crowd.launch()
    for token in range(5):
        alone.launch(token, token + 1)
    assert torch.equal(alone.query[:5], crowd.query[:5])
    for own, other in ((alone.keys, crowd.keys), (alone.values, crowd.values)):
        assert torch.equal(alone.of_slots(own)[0], crowd.of_slots(other)[0])


def test_padding_rows_share_a_slot_of_the_last_block_and_nothing_else_is_written() -> None:
    case = Case(torch.bfloat16, 6, 4, 2, 64, normed=False, seed=5)
    case.slots[3:] = BLOCKS * BLOCK_SIZE
    case.positions[3:] = 0
    _, key, value = case.expected()
    case.launch()
    for pages, expected in ((case.keys, key), (case.values, value)):
        kept, others = case.of_slots(pages)
        torch.testing.assert_close(kept[:3].double(), expected[:3].double(), rtol=2**-8, atol=2**-8)
        assert others.isnan().all()


def test_position_0_leaves_a_head_as_it_is() -> None:
    case = Case(torch.float16, 2, 3, 1, 96, normed=False, seed=8)
    case.positions[:] = 0
    case.launch()
    assert torch.equal(case.query[:2].view(2, -1), case.qkv[:, : 3 * 96])
