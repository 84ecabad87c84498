"""How likely the chosen tokens were, and which would have been likelier: log-probabilities.

Knows the raw logits, before temperature and filters. Does not know how a token was chosen.

Natural logarithms: `logit - peak - log(sum(exp(logit - peak)))`. The sum is taken a chunk at a time and then over
chunks in one program, always in the same order, so a row's numbers are the same in any company.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.rows import FLOOR, NOTHING, logits_of
from kernels.triton.variants import Variant

MOST_TOLD = 20
"""Alternatives beside the chosen token."""
CHUNK = 4096

_MOST_TOLD = tl.constexpr(MOST_TOLD)
_FLOOR = tl.constexpr(FLOOR)
_NOTHING = tl.constexpr(NOTHING)
_NOWHERE = tl.constexpr(2**30)
_ROOM = tl.constexpr(32)
"""Numbers that a chunk leaves: its likeliest; then, from `MOST_TOLD` on, its peak and its sum."""


def log_probabilities(logits: Tensor, rows: Tensor, chosen: Tensor, told: Tensor, chunk: int = CHUNK) -> None:
    """Of the rows of `logits` `[.., vocabulary]` (any float type) that `rows` int32 `[n]` names.

    `chosen` int32 has a token for each row of `logits`. `told` int32 `[n, 2 * (1 + MOST_TOLD)]` is filled: the
    log-probabilities, float32 as their bits, of the chosen token and of the likeliest, falling, the lowest token first
    among equals; then the tokens. Where the vocabulary ends before: -inf and -1.

    Memory is allocated on the way, so this is for outside of CUDA graphs; nothing is waited for.
    """
    count, vocabulary = len(rows), logits.shape[1]
    if not count:
        return
    chunks = triton.cdiv(vocabulary, chunk)
    values = torch.empty((count, chunks, 32), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((count, chunks, 32), dtype=torch.int32, device=logits.device)
    _likeliest[(chunks, count)](logits, logits.stride(0), vocabulary, rows, values, tokens, chunk, **options())
    padded = triton.next_power_of_2(chunks)
    _tell[(count,)](
        *(logits, logits.stride(0), vocabulary, rows, chosen, values, tokens, chunks, told), padded, **options()
    )


def options() -> dict[str, Any]:
    return {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


@triton.jit
def _likeliest(logits, stride, vocabulary, rows, values, tokens, CHUNK: tl.constexpr):
    """A chunk's likeliest, falling, its peak, and the sum of `exp(logit - peak)`."""
    part, told = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + told)
    index = part * CHUNK + tl.arange(0, CHUNK)
    x = logits_of(logits, row, stride, index, vocabulary)
    at = (told * tl.num_programs(0) + part) * _ROOM
    peak = tl.max(x, 0)
    tl.store(values + at + _MOST_TOLD, peak)
    tl.store(values + at + _MOST_TOLD + 1, tl.sum(_exp(x, peak), 0))
    for it in range(_MOST_TOLD):
        value, token = _first(x, index)
        tl.store(values + at + it, value)
        tl.store(tokens + at + it, token)
        x = tl.where(index == token, _NOTHING, x)


@triton.jit
def _tell(
    logits, stride, vocabulary, rows, chosen, values, tokens, chunks, told, CHUNKS: tl.constexpr
):  # fmt: skip
    """Of a row: what `told` says."""
    place = tl.program_id(0)
    row = tl.load(rows + place)
    part = tl.arange(0, CHUNKS)
    ends = values + (place * chunks + part) * _ROOM + _MOST_TOLD
    peaks = tl.load(ends, mask=part < chunks, other=_NOTHING)
    sums = tl.load(ends + 1, mask=part < chunks, other=0.0)
    peak = tl.max(peaks, 0)
    total = tl.sum(sums * _exp(peaks, peak), 0)
    least = peak + tl.log(total)
    own = tl.load(chosen + row)
    out = told + place * 2 * (1 + _MOST_TOLD)
    _put(out, own, tl.max(logits_of(logits, row, stride, own + tl.arange(0, 1), vocabulary), 0), least)

    # Chunks side by side, each with room for more than it has.
    every = tl.arange(0, CHUNKS * _ROOM)
    theirs = (every // _ROOM < chunks) & (every % _ROOM < _MOST_TOLD)
    x = tl.load(values + place * chunks * _ROOM + every, mask=theirs, other=_NOTHING)
    index = tl.load(tokens + place * chunks * _ROOM + every, mask=theirs, other=_NOWHERE)
    for it in range(_MOST_TOLD):
        value, token = _first(x, index)
        _put(out + 1 + it, token, value, least)
        x = tl.where(index == token, _NOTHING, x)


@triton.jit
def _first(x, index):
    """The largest and its index, the lowest of equals; -1 when nothing is left."""
    value = tl.max(x, 0)
    index = tl.min(tl.where((x == value) & (x > _NOTHING), index, _NOWHERE), 0)
    return value, tl.where(index < _NOWHERE, index, -1)


@triton.jit
def _put(out, token, logit, least):
    told = tl.where(logit > _FLOOR, logit - least, _NOTHING)
    tl.store(out, told.to(tl.int32, bitcast=True))
    tl.store(out + 1 + _MOST_TOLD, token)


@triton.jit
def _exp(x, peak):
    return tl.exp(tl.maximum(x - peak, -200.0))


_TYPES = {
    **dict.fromkeys(("stride", "vocabulary", "chunks"), "i32"),
    **dict.fromkeys(("rows", "chosen", "tokens", "told"), "*i32"),
    **dict.fromkeys(("values",), "*fp32"),
}


def _variants() -> tuple[Variant, ...]:
    variants = []
    for dtype in ("bf16", "fp16", "fp32"):
        for kernel, frozen in ((_likeliest, {"CHUNK": CHUNK}), (_tell, {"CHUNKS": 32}), (_tell, {"CHUNKS": 64})):
            signature = {name: _TYPES.get(name, "constexpr") for name in kernel.arg_names} | {"logits": f"*{dtype}"}
            name = f"{dtype}, up to {frozen['CHUNKS'] * CHUNK:,} tokens" if "CHUNKS" in frozen else dtype
            variants.append(Variant(kernel, name, signature, frozen, options()))
    return tuple(variants)


VARIANTS = _variants()
