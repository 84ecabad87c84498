"""From the product of a layer's query, key and value weights to what attention reads, in one pass.

Sources: Su et al., RoFormer (2021), with the halves of a head turned together as in transformers' Llama; the norms of
single heads as in its Qwen3, rounded as in `norm.py`.

Knows how a head is normalised and turned, and where in the cache it goes. Does not know how angles are made, or which
request owns a slot.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.rounding import rounded
from kernels.triton.variants import Variant

TILE = 512
"""Pairs of elements that a program has, and so how many heads: four a thread."""
_OPTIONS: dict[str, Any] = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def rotate_and_write(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cosines: Tensor,
    sines: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
    *,
    heads: int,
    kv_heads: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    """Turn queries and keys by their positions; keep keys and values in the cache.

    `qkv` `[tokens, (heads + 2 * kv_heads) * head_dim]`, queries first, then keys, then values. `positions` and `slots`
    `[tokens]` int32: a slot is block * block_size + offset. `cosines` and `sines` `[positions, head_dim / 2]` float32.
    `query_norm` and `key_norm` `[head_dim]`, both or neither: weights of an RMS norm with `eps` over each head.
    `query` `[tokens, heads, head_dim]` is written, and of `keys` and `values`
    `[blocks, block_size, kv_heads, head_dim]` the slots; several tokens may share a slot only where it is never read.
    All contiguous and, but where another is named, of one format. Float32 inside; a turned head is rounded once.
    """
    tokens, head_dim = qkv.shape[0], query.shape[2]
    if tokens == 0:
        return
    assert qkv.shape[1] == (heads + 2 * kv_heads) * head_dim
    assert query.shape == (tokens, heads, head_dim)
    assert keys.shape == values.shape
    assert keys.shape[2:] == (kv_heads, head_dim)
    assert cosines.shape[1] == sines.shape[1] == head_dim // 2
    assert (query_norm is None) == (key_norm is None)
    assert all(it.is_contiguous() for it in (qkv, cosines, sines, query, keys, values))
    constants = _constants(heads, kv_heads, head_dim, query_norm is not None)
    _rotate_and_write[tokens, triton.cdiv(heads + 2 * kv_heads, constants["TOGETHER"])](
        qkv,
        positions,
        slots,
        cosines,
        sines,
        query_norm,
        key_norm,
        query,
        keys,
        values,
        eps,
        **constants,
        **_OPTIONS,
    )


def _constants(heads: int, kv_heads: int, head_dim: int, normed: bool) -> dict[str, Any]:
    half = triton.next_power_of_2(head_dim // 2)
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "HALF": head_dim // 2,
        "NORMED": normed,
        "HALF_BLOCK": half,
        "TOGETHER": TILE // half,
    }


# A buffer's sections begin where the one before ends: their alignment is not to make a kernel of its own.
@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rotate_and_write(
    qkv,
    positions,
    slots,
    cosines,
    sines,
    query_norm,
    key_norm,
    query,
    keys,
    values,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
    HALF_BLOCK: tl.constexpr,  # a power of two
    TOGETHER: tl.constexpr,  # heads of a program
):
    token = tl.program_id(0)
    head = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)
    at = tl.arange(0, HALF_BLOCK)
    wide = at < HALF
    dtype: tl.constexpr = query.dtype.element_ty

    is_query = head < HEADS
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    here = (is_query | is_key | is_value)[:, None] & wide[None, :]
    within = head[:, None] * (2 * HALF) + at[None, :]
    source = qkv + token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + within
    left_as_is = tl.load(source, here, 0.0)
    right_as_is = tl.load(source + HALF, here, 0.0)
    left = left_as_is.to(tl.float32)
    right = right_as_is.to(tl.float32)

    if NORMED:
        squares = tl.sum(left * left + right * right, 1) / (2 * HALF)
        scale = tl.rsqrt(squares + eps)[:, None]
        of_query = is_query[:, None]
        left_weight = _weights(query_norm, key_norm, at, wide, of_query)
        right_weight = _weights(query_norm, key_norm, at + HALF, wide, of_query)
        left = _normed(left * scale, left_weight, dtype)
        right = _normed(right * scale, right_weight, dtype)

    angle = tl.load(positions + token).to(tl.int64) * HALF + at
    cosine = tl.load(cosines + angle, wide, 0.0)[None, :]
    sine = tl.load(sines + angle, wide, 0.0)[None, :]
    turned_left = rounded(left * cosine - right * sine, dtype)
    turned_right = rounded(right * cosine + left * sine, dtype)

    to_query = query + token.to(tl.int64) * (HEADS * 2 * HALF) + within
    tl.store(to_query, turned_left, here & is_query[:, None])
    tl.store(to_query + HALF, turned_right, here & is_query[:, None])
    kept = tl.load(slots + token).to(tl.int64) * (KV_HEADS * 2 * HALF) + within
    to_key = keys + (kept - HEADS * 2 * HALF)
    tl.store(to_key, turned_left, here & is_key[:, None])
    tl.store(to_key + HALF, turned_right, here & is_key[:, None])
    to_value = values + (kept - (HEADS + KV_HEADS) * 2 * HALF)
    tl.store(to_value, left_as_is, here & is_value[:, None])
    tl.store(to_value + HALF, right_as_is, here & is_value[:, None])


@triton.jit
def _normed(normalised, weights, dtype: tl.constexpr):
    """Rounded where transformers does: before the weight and after it."""
    return rounded(rounded(normalised, dtype).to(tl.float32) * weights, dtype).to(tl.float32)


@triton.jit
def _weights(query_norm, key_norm, at, wide, of_query):
    """`[heads, half]`: a query's or a key's."""
    of_queries = tl.load(query_norm + at, wide, 0.0).to(tl.float32)[None, :]
    of_keys = tl.load(key_norm + at, wide, 0.0).to(tl.float32)[None, :]
    return tl.where(of_query, of_queries, of_keys)


def _variant(heads: int, kv_heads: int, head_dim: int, normed: bool, dtype: str) -> Variant:
    constants = _constants(heads, kv_heads, head_dim, normed)
    own = f"*{dtype}"
    signature = {
        "qkv": own,
        "positions": "*i32",
        "slots": "*i32",
        "cosines": "*fp32",
        "sines": "*fp32",
        "query_norm": own if normed else "constexpr",
        "key_norm": own if normed else "constexpr",
        "query": own,
        "keys": own,
        "values": own,
        "eps": "fp32",
        **dict.fromkeys(constants, "constexpr"),
    }
    if not normed:
        constants |= {"query_norm": None, "key_norm": None}
    name = f"{heads} + {kv_heads} heads of {head_dim}{', normed' if normed else ''}, {dtype}"
    return Variant(_rotate_and_write, name, signature, constants, _OPTIONS)


VARIANTS = tuple(
    _variant(heads, kv_heads, head_dim, normed, dtype)
    for dtype in ("bf16", "fp16")
    for heads, kv_heads, head_dim in ((9, 3, 64), (32, 8, 64), (32, 32, 96), (32, 8, 128), (8, 4, 256))
    for normed in (False, True)
)
