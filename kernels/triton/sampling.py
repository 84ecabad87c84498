"""From logits to tokens on a GPU, all rows of a step at once, without sorting a vocabulary.

Knows greedy choice, temperature, top-k, top-p and min-p. Does not know where the logits come from, or which request a
row belongs to. How likely the chosen tokens were is told by `log_probabilities`, of `likeliest.py`.

The same filters as `kernels/sampling.py`, in the same order: temperature, top-k, top-p (Holtzman et al., "The curious
case of neural text degeneration", ICLR 2020), min-p (Nguyen et al., "Turning up the heat", ICLR 2025). Each keeps the
likeliest of what the one before has left, so each is a threshold, a *cut*: top-k's is the largest t for which k logits
or more are at least t, top-p's the largest for which the mass of those at least t reaches p times what top-k has left.
**Equal logits at the cut are kept together**, so a few more than k tokens may stay. The token is drawn in the order of
the vocabulary, by inverting the running sum of what is kept.

**A row's token depends on nothing but its row.** A token weighs `2 ** ((logit - peak) * log2(e) / temperature)`, in
float32, 1 at most. Its mass is that as a whole number of 2**-35, in 64 bits. Whole numbers add up to the same in any
order, so it does not matter how a row is cut up, nor which program adds first. A token with less than 2**-35 of the
likeliest one's probability has none; all such together have less than 2**-17 of it.

A row is cut into chunks, a program each. Every program reads on the device what its row asks for and ends at once where
there is nothing to do, so that a CUDA graph holds the same launches for all rows (the first three in `cuts.py`):

1. `_begin`: the peak of each chunk, and where it is: all that greedy rows need.
2. `narrow`, `ROUNDS` times, for top-k and top-p: how many logits are at least t, and their mass, for `CANDIDATES`
   values of t, evenly over the band where the cut can be. An eighth of the band is left. A row whose band holds
   `capacity` logits or fewer is done, most after the first time.
3. `gather`: these logits, in any order.
4. `cut`: bisects between them, one program a row, in registers. Where they are still too many (more than `capacity`
   nearly equal logits where the cut is; top-k of thousands together with top-p) it bisects over the row itself: 32
   passes at most for each of the two filters, by that one program.
5. `_weigh`: the mass that is kept of each chunk.
6. `_draw`: the chunk, and the token in it.

Not-a-number counts as -inf, and where all logits are -inf, all tokens are equally likely. What lies beyond
+-2**126 counts as that.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.cuts import CANDIDATES, ROUNDS, cut, gather, narrow
from kernels.triton.likeliest import MOST_TOLD, log_probabilities
from kernels.triton.rows import FLOOR, NOTHING, filters, is_drawn, logits_of, mass_of, peak_of, scale_of, weights_of
from kernels.triton.variants import Variant

__all__ = ["MOST_TOLD", "Scratch", "Wishes", "log_probabilities", "sample"]

CHUNK = 4096
"""Logits of a program: 32 a thread, all asked for at once."""
CAPACITY = 4096
"""Logits among which one program looks for the cut, all in registers."""
LARGEST_VOCABULARY = 2**18
"""The masses of so many tokens add up to 2**53 at most, which float64 still holds exactly."""

_ROUNDS = tl.constexpr(ROUNDS)
_CANDIDATES = tl.constexpr(CANDIDATES)
_FLOOR = tl.constexpr(FLOOR)
_NOTHING = tl.constexpr(NOTHING)


@dataclass(frozen=True)
class Wishes:
    """How each row's token is chosen; all `[rows]`, contiguous, on the device.

    `temperature` float32: below `GREEDY_BELOW` the likeliest token is taken, the lowest of equals. `top_k` int32: 0 or
    less is off. `top_p` float32: 1 or more is off. `min_p` float32: 0 is off. `uniform` float32: the number in [0, 1]
    that the draw comes from, `kernels.sampling.uniform` rounded to float32 (1 counts as just below).
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor


@dataclass(frozen=True)
class Scratch:
    """What the launches leave for one another, for up to so many rows; nothing in it outlasts a call of `sample`."""

    chunk: int
    capacity: int
    vocabulary: int
    maxima: Tensor
    """`[rows, chunks]` float32, as the next two."""
    places: Tensor
    minima: Tensor
    thresholds: Tensor
    """`[rows, ROUNDS, CANDIDATES]` float32, and so are the next two, int32 and int64."""
    counts: Tensor
    masses: Tensor
    filled: Tensor
    """`[rows]` int32: how many logits stand in `band` `[rows, capacity]` float32."""
    band: Tensor
    cuts: Tensor
    """`[rows]` float32."""
    sums: Tensor
    """`[rows, chunks]` int64."""

    @classmethod
    def make(
        cls, rows: int, vocabulary: int, device: torch.device, chunk: int = CHUNK, capacity: int = CAPACITY
    ) -> "Scratch":
        """Some 18 KB a row at 128,256 tokens.

        `chunk`, up to 4096, and `capacity` are powers of two; no token depends on them. Raises ValueError when the
        vocabulary is larger than `LARGEST_VOCABULARY`.
        """
        if not 0 < vocabulary <= LARGEST_VOCABULARY:
            raise ValueError(
                f"a vocabulary of {vocabulary} tokens; sampling can add up 1 to {LARGEST_VOCABULARY} weights"
            )
        chunks = -(-vocabulary // chunk)

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((rows, *shape), dtype=dtype, device=device)

        return cls(
            chunk=chunk,
            capacity=capacity,
            vocabulary=vocabulary,
            maxima=room(chunks),
            places=room(chunks, dtype=torch.int32),
            minima=room(chunks),
            thresholds=room(ROUNDS, CANDIDATES),
            counts=room(ROUNDS, CANDIDATES, dtype=torch.int32),
            masses=room(ROUNDS, CANDIDATES, dtype=torch.int64),
            filled=room(dtype=torch.int32),
            band=room(capacity),
            cuts=room(),
            sums=room(chunks, dtype=torch.int64),
        )


def sample(logits: Tensor, wishes: Wishes, chosen: Tensor, scratch: Scratch) -> None:
    """Choose a token a row: `logits` `[rows, vocabulary]` of any float type, its rows anywhere, into `chosen` `[rows]`
    int32. Nothing is waited for and nothing allocated. Rows that only fill a graph up should be greedy.

    Raises ValueError when `scratch` is for another vocabulary or for fewer rows.
    """
    rows, vocabulary = logits.shape
    if vocabulary != scratch.vocabulary or rows > len(scratch.cuts) or logits.stride(1) != 1:
        raise ValueError(
            f"logits are {rows} rows of {vocabulary}, {logits.stride(1)} apart; scratch is for up to "
            f"{len(scratch.cuts)} rows of {scratch.vocabulary} that lie side by side"
        )
    if not rows:
        return
    at = scratch
    chunks = at.maxima.shape[1]
    grid, stride = (chunks, rows), logits.stride(0)
    asked = (wishes.temperature, wishes.top_k, wishes.top_p)
    peaks = (at.maxima, at.minima)
    found = (at.thresholds, at.counts, at.masses)
    frozen = {"CHUNK": at.chunk, "CHUNKS": triton.next_power_of_2(chunks)}
    sized = frozen | {"CAPACITY": at.capacity}
    row = (logits, stride, vocabulary)
    _begin[grid](*row, *peaks, at.places, at.counts, at.masses, at.filled, CHUNK=at.chunk, **options(4))
    for which in range(ROUNDS):
        narrow[grid](*row, *asked, *peaks, *found, ROUND=which, **sized, **options(4))
    gather[grid](*row, *asked, *peaks, *found, at.filled, at.band, **sized, **options(4))
    bits = {"UNUSED_BITS": unused_bits(logits.dtype)}
    cut[(rows,)](*row, *asked, *peaks, *found, at.filled, at.band, at.cuts, chunks, **sized, **bits, **options(8))
    kept = (*asked, wishes.min_p, at.maxima, at.cuts, at.sums)
    _weigh[grid](*row, *kept, **frozen, **options(4))
    _draw[(rows,)](*row, *kept, at.places, wishes.uniform, chosen, chunks, **frozen, **options(8))


def options(warps: int) -> dict[str, Any]:
    """What the kernels are launched with: without fused multiply-adds, a weight is the same in all of them."""
    return {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}


def unused_bits(dtype: torch.dtype) -> int:
    """Low bits of a float32 that are 0 in numbers of this format: the cut need not be looked for there."""
    return {torch.bfloat16: 16, torch.float16: 13}.get(dtype, 0)


@triton.jit
def _begin(
    logits, stride, vocabulary, maxima, minima, places, counts, masses, filled, CHUNK: tl.constexpr
):  # fmt: skip
    """The largest logit of a chunk, its lowest place, and the least that is not -inf. Sets what is added to to 0."""
    part, row = tl.program_id(0), tl.program_id(1)
    at = row * tl.num_programs(0) + part
    index = part * CHUNK + tl.arange(0, CHUNK)
    x = logits_of(logits, row, stride, index, vocabulary)
    peak = tl.max(x, 0)
    tl.store(maxima + at, peak)
    tl.store(places + at, tl.min(tl.where(x == peak, index, vocabulary), 0))
    tl.store(minima + at, tl.min(tl.where(x > _FLOOR, x, -_FLOOR), 0))
    if part == 0:
        all_of_them = row * _ROUNDS * _CANDIDATES + tl.arange(0, 32)
        inside = tl.arange(0, 32) < _ROUNDS * _CANDIDATES
        tl.store(counts + all_of_them, tl.zeros([32], tl.int32), mask=inside)
        tl.store(masses + all_of_them, tl.zeros([32], tl.int64), mask=inside)
        tl.store(filled + row, 0)


@triton.jit
def _weigh(
    logits, stride, vocabulary, temperature, top_k, top_p, min_p, maxima, cuts, sums,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The weight of what is kept of a chunk."""
    part, row = tl.program_id(0), tl.program_id(1)
    chunks = tl.num_programs(0)
    if is_drawn(row, temperature):
        x = logits_of(logits, row, stride, part * CHUNK + tl.arange(0, CHUNK), vocabulary)
        mass = _kept(x, row, vocabulary, temperature, top_k, top_p, min_p, maxima, cuts, chunks, CHUNKS)
        tl.store(sums + row * chunks + part, tl.sum(mass, 0))


@triton.jit
def _draw(
    logits, stride, vocabulary, temperature, top_k, top_p, min_p, maxima, cuts, sums, places, uniform, chosen, chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The first token whose running sum passes `uniform` times the whole: inverse transform sampling."""
    row = tl.program_id(0)
    part = tl.arange(0, CHUNKS)
    if is_drawn(row, temperature):
        running = tl.cumsum(tl.load(sums + row * chunks + part, mask=part < chunks, other=0), 0)
        total = tl.max(running, 0)
        u = tl.load(uniform + row)
        goal = tl.minimum((tl.where(u >= 0.0, u, 0.0).to(tl.float64) * total).to(tl.int64), total - 1)
        first = tl.sum((running <= goal).to(tl.int32), 0)
        before = tl.max(tl.where(running <= goal, running, 0), 0)
        x = logits_of(logits, row, stride, first * CHUNK + tl.arange(0, CHUNK), vocabulary)
        mass = _kept(x, row, vocabulary, temperature, top_k, top_p, min_p, maxima, cuts, chunks, CHUNKS)
        passed = before + tl.cumsum(mass, 0) <= goal
        tl.store(chosen + row, first * CHUNK + tl.sum(passed.to(tl.int32), 0))
    else:
        peaks = tl.load(maxima + row * chunks + part, mask=part < chunks, other=_NOTHING)
        place = tl.load(places + row * chunks + part, mask=part < chunks, other=vocabulary)
        tl.store(chosen + row, tl.min(tl.where(peaks == tl.max(peaks, 0), place, vocabulary), 0))


@triton.jit
def _kept(x, row, vocabulary, temperature, top_k, top_p, min_p, maxima, cuts, chunks, CHUNKS: tl.constexpr):
    """The mass of each logit that all filters leave."""
    limited, nucleus = filters(row, vocabulary, temperature, top_k, top_p)
    weights = weights_of(x, peak_of(row, chunks, maxima, CHUNKS), scale_of(row, temperature))
    stays = weights >= tl.minimum(tl.load(min_p + row), 1.0)
    if limited | nucleus:
        stays = stays & (x >= tl.load(cuts + row))
    return tl.where(stays, mass_of(weights), 0)


_INTEGERS = {"places": "*i32", "top_k": "*i32", "counts": "*i32", "filled": "*i32", "chosen": "*i32"}
_TYPES = {"chunks": "i32", "masses": "*i64", "sums": "*i64"} | _INTEGERS


def _variants() -> tuple[Variant, ...]:
    variants = []
    for dtype, bits in (("bf16", 16), ("fp16", 13), ("fp32", 0)):
        # Llama 3's vocabulary, of rows that begin at multiples of 16 bytes, and any up to the largest.
        for name, chunks, whole in (("128,256 tokens", 32, "i32:16"), ("any number of tokens", 64, "i32")):
            frozen = {"CHUNK": CHUNK, "CHUNKS": chunks, "CAPACITY": CAPACITY, "UNUSED_BITS": bits, "ROUND": ROUNDS - 1}
            types = _TYPES | {"logits": f"*{dtype}", "stride": whole, "vocabulary": whole}
            for kernel, warps in ((_begin, 4), (narrow, 4), (gather, 4), (cut, 8), (_weigh, 4), (_draw, 8)):
                names = kernel.arg_names
                signature = {it: "constexpr" if it.isupper() else types.get(it, "*fp32") for it in names}
                mine = {it: value for it, value in frozen.items() if it in names}
                variants.append(Variant(kernel, f"{dtype}, {name}", signature, mine, options(warps), dtype != "fp16"))
    return tuple(variants)


VARIANTS = _variants()
