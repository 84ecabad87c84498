"""Where top-k and top-p cut a row: the least logit that they leave.

Knows how the cut is looked for, in all chunks of a row at once and then among a few logits. Does not know how a token
is drawn. The method stands in `sampling.py`.
"""

import triton
import triton.language as tl

from kernels.triton.rows import FLOOR, NOTHING, filters, logits_of, mass_of, peak_of, scale_of, weights_of

ROUNDS = 3
CANDIDATES = 8

_ROUNDS = tl.constexpr(ROUNDS)
_CANDIDATES = tl.constexpr(CANDIDATES)
_FLOOR = tl.constexpr(FLOOR)
_NOTHING = tl.constexpr(NOTHING)
_NATS = tl.constexpr(25.0)
"""A logit so far below the peak, at a temperature of 1, has no mass: 2**-36 of the peak's is rounded to 0."""
_MASS_BITS = tl.constexpr(48)
"""More than a chunk's mass has. Above these, a chunk's logits are counted in the same sum."""
_ONE_MORE = tl.constexpr(2**48)


@triton.jit
def narrow(
    logits, stride, vocabulary, temperature, top_k, top_p, maxima, minima, thresholds, counts, masses,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CAPACITY: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """How many logits are at least t, and their mass, for values of t in the band where the cut is.

    The first t is the band's lower end. That what is above it reaches the goal is known, so the mass of all is told
    in its stead.
    """
    part, row = tl.program_id(0), tl.program_id(1)
    limited, nucleus = filters(row, vocabulary, temperature, top_k, top_p)
    if limited | nucleus:
        peak, low = _range(
            row, tl.num_programs(0), vocabulary, temperature, top_p, limited, maxima, minima, CHUNKS, CAPACITY
        )
        low, high, _, _, held, _ = _band(
            row, vocabulary, low, top_k, top_p, limited, thresholds, counts, masses, CAPACITY, ROUND
        )
        if held > CAPACITY:
            x = logits_of(logits, row, stride, part * CHUNK + tl.arange(0, CHUNK), vocabulary)
            step = (tl.minimum(high, peak) - low) / _CANDIDATES
            at = (row * _ROUNDS + ROUND) * _CANDIDATES
            if part == 0:
                for it in tl.static_range(_CANDIDATES):
                    tl.store(thresholds + at + it, low + step * it)
            if limited:
                for it in tl.static_range(_CANDIDATES):
                    # In float32: the compiler would make integers of single bits, one by one.
                    count = tl.sum(tl.where(x >= low + step * it, 1.0, 0.0), 0).to(tl.int32)
                    tl.atomic_add(counts + at + it, count, sem="relaxed")
            else:
                mass = mass_of(weights_of(x, peak, scale_of(row, temperature)))
                tl.atomic_add(masses + at, tl.sum(mass, 0), sem="relaxed")
                counted = mass + _ONE_MORE
                for it in tl.static_range(_CANDIDATES):
                    both = tl.sum(tl.where(x >= low + step * it, counted, 0), 0)
                    tl.atomic_add(counts + at + it, (both >> _MASS_BITS).to(tl.int32), sem="relaxed")
                    if it > 0:
                        tl.atomic_add(masses + at + it, both & (_ONE_MORE - 1), sem="relaxed")


@triton.jit
def gather(
    logits, stride, vocabulary, temperature, top_k, top_p, maxima, minima, thresholds, counts, masses, filled, band,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Write out the logits of the band; with top-p after top-k, those above it too, for their weights are asked for."""
    part, row = tl.program_id(0), tl.program_id(1)
    limited, nucleus = filters(row, vocabulary, temperature, top_k, top_p)
    if limited | nucleus:
        _, low = _range(
            row, tl.num_programs(0), vocabulary, temperature, top_p, limited, maxima, minima, CHUNKS, CAPACITY
        )
        low, high, _, _, held, _ = _band(
            row, vocabulary, low, top_k, top_p, limited, thresholds, counts, masses, CAPACITY, _ROUNDS
        )
        if held <= CAPACITY:
            x = logits_of(logits, row, stride, part * CHUNK + tl.arange(0, CHUNK), vocabulary)
            inside = ((x >= low) & (x < tl.where(limited & nucleus, -_NOTHING, high))).to(tl.int32)
            count = tl.sum(inside, 0)
            if count > 0:
                first = tl.atomic_add(filled + row, count, sem="relaxed")
                tl.store(band + row * CAPACITY + first + tl.cumsum(inside, 0) - 1, x, mask=inside != 0)


@triton.jit
def cut(
    logits, stride, vocabulary, temperature, top_k, top_p, maxima, minima, thresholds, counts, masses, filled, band,
    cuts, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CAPACITY: tl.constexpr, UNUSED_BITS: tl.constexpr,
):  # fmt: skip
    """The least logit that top-k and top-p leave."""
    row = tl.program_id(0)
    limited, nucleus = filters(row, vocabulary, temperature, top_k, top_p)
    if limited | nucleus:
        peak, low = _range(row, chunks, vocabulary, temperature, top_p, limited, maxima, minima, CHUNKS, CAPACITY)
        low, high, beyond, above, held, total = _band(
            row, vocabulary, low, top_k, top_p, limited, thresholds, counts, masses, CAPACITY, _ROUNDS
        )
        scale = scale_of(row, temperature)
        k = tl.load(top_k + row).to(tl.int64)
        least = _image(low, UNUSED_BITS)
        most = _image(tl.minimum(high, peak), UNUSED_BITS)
        if held <= CAPACITY:
            place = tl.arange(0, CAPACITY)
            x = tl.load(band + row * CAPACITY + place, mask=place < tl.load(filled + row), other=_NOTHING)
            mass = mass_of(weights_of(x, peak, scale))
            if limited:
                one = tl.full([CAPACITY], 1, tl.int64)
                base = tl.where(nucleus, 0, beyond).to(tl.int64)
                least = _bisect(x, one, base, k, least, most, UNUSED_BITS)
                most = _image(peak, UNUSED_BITS)
            if nucleus:
                if limited | (total < 0):
                    total = tl.sum(tl.where(x >= _number(least, UNUSED_BITS), mass, 0), 0)
                base = tl.where(limited, 0, above)
                least = _bisect(x, mass, base, _goal(row, top_p, total), least, most, UNUSED_BITS)
        else:
            if limited:
                least = _bisect_row(
                    logits, row, stride, vocabulary, peak, scale, k, least, most, False, CHUNK, UNUSED_BITS
                )
                most = _image(peak, UNUSED_BITS)
            if nucleus:
                if limited:
                    total = _of_row(
                        logits, row, stride, vocabulary, peak, scale, _number(least, UNUSED_BITS), True, CHUNK
                    )
                goal = _goal(row, top_p, total)
                least = _bisect_row(
                    logits, row, stride, vocabulary, peak, scale, goal, least, most, True, CHUNK, UNUSED_BITS
                )
        tl.store(cuts + row, _number(least, UNUSED_BITS))


@triton.jit
def _range(
    row, chunks, vocabulary, temperature, top_p, limited, maxima, minima, CHUNKS: tl.constexpr, CAPACITY: tl.constexpr
):  # fmt: skip
    """The peak, and a logit below which no cut is.

    What is below has no mass. Or, for top-p alone, less than (1 - p) / vocabulary of the peak's: all such logits
    together have less than 1 - p of it, so p is reached without them. A row that is short enough to be looked at whole
    has its mass summed there, so none of it is left out.
    """
    part = tl.arange(0, CHUNKS)
    peak = peak_of(row, chunks, maxima, CHUNKS)
    least = tl.min(tl.load(minima + row * chunks + part, mask=part < chunks, other=-_FLOOR), 0)
    over = tl.maximum(1.0 - tl.load(top_p + row), 1e-30) / vocabulary
    nats = tl.where(limited | (vocabulary <= CAPACITY), _NATS, tl.minimum(1.0 - tl.log(over), _NATS))
    weightless = peak - nats * tl.minimum(tl.load(temperature + row), 1e30)
    return peak, tl.minimum(tl.maximum(least, weightless), peak)


@triton.jit
def _band(
    row, vocabulary, low, top_k, top_p, limited, thresholds, counts, masses,
    CAPACITY: tl.constexpr, DONE: tl.constexpr,
):  # fmt: skip
    """Where the cut is after `DONE` rounds: from `low` to just below `high`.

    Also how many logits are at `high` or above, and their mass; how many are to be looked at (those of the band; with
    top-p after top-k, those above it too); and the mass of all, -1 when no round was needed.
    """
    k = tl.load(top_k + row)
    high = low * 0.0 + float("inf")
    beyond = k * 0
    above = beyond.to(tl.int64)
    total = above - 1
    held = beyond + vocabulary
    for done in tl.static_range(DONE):
        it = tl.arange(0, _CANDIDATES)
        at = (row * _ROUNDS + done) * _CANDIDATES + it
        threshold, count, mass = tl.load(thresholds + at), tl.load(counts + at), tl.load(masses + at)
        narrows = held > CAPACITY
        if done == 0:
            total = tl.where(narrows, tl.sum(tl.where(it == 0, mass, 0), 0), total)
        reached = tl.where(limited, count >= k, mass >= _goal(row, top_p, total)).to(tl.int32)
        last = tl.maximum(tl.sum(reached, 0) - 1, 0)
        mine, after = it == last, it == last + 1
        inner = last + 1 < _CANDIDATES
        low = tl.where(narrows, tl.sum(tl.where(mine, threshold, 0.0), 0), low)
        high = tl.where(narrows & inner, tl.sum(tl.where(after, threshold, 0.0), 0), high)
        beyond = tl.where(narrows & inner, tl.sum(tl.where(after, count, 0), 0), beyond)
        above = tl.where(narrows & inner, tl.sum(tl.where(after, mass, 0), 0), above)
        whole = tl.sum(tl.where(mine, count, 0), 0)
        held = tl.where(narrows, whole - tl.where(limited & (tl.load(top_p + row) < 1.0), 0, beyond), held)
    return low, high, beyond, above, held, total


@triton.jit
def _goal(row, top_p, total):
    """The mass that top-p wants of `total`."""
    p = tl.load(top_p + row)
    return tl.ceil(tl.where(p < 1.0, p, 1.0).to(tl.float64) * total).to(tl.int64)


@triton.jit
def _image(x, UNUSED_BITS: tl.constexpr):
    """A whole number for each float32, in the same order; without the bits that are unused, rounded down."""
    bits = x.to(tl.int32, bitcast=True)
    return (tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> UNUSED_BITS).to(tl.int64)


@triton.jit
def _number(image, UNUSED_BITS: tl.constexpr):
    """The float32 of an image."""
    bits = (image << UNUSED_BITS).to(tl.int32)
    return tl.where(bits < 0, (bits | ((1 << UNUSED_BITS) - 1)) ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def _bisect(x, value, base, goal, least, most, UNUSED_BITS: tl.constexpr):
    """The largest image, `least` to `most`, for which what is at least that large reaches the goal, or `least`."""
    while least < most:
        middle = least + ((most - least + 1) >> 1)
        reached = base + tl.sum(tl.where(x >= _number(middle, UNUSED_BITS), value, 0), 0) >= goal
        least = tl.where(reached, middle, least)
        most = tl.where(reached, most, middle - 1)
    return least


@triton.jit
def _bisect_row(
    logits, row, stride, vocabulary, peak, scale, goal, least, most,
    BY_MASS: tl.constexpr, TILE: tl.constexpr, UNUSED_BITS: tl.constexpr,
):  # fmt: skip
    """The same, over all logits of a row."""
    while least < most:
        middle = least + ((most - least + 1) >> 1)
        threshold = _number(middle, UNUSED_BITS)
        reached = _of_row(logits, row, stride, vocabulary, peak, scale, threshold, BY_MASS, TILE) >= goal
        least = tl.where(reached, middle, least)
        most = tl.where(reached, most, middle - 1)
    return least


@triton.jit
def _of_row(
    logits, row, stride, vocabulary, peak, scale, threshold, BY_MASS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The mass, or the number, of a row's logits that are at least `threshold`."""
    found = tl.zeros([TILE], tl.int64)
    for first in range(0, vocabulary, TILE):
        x = logits_of(logits, row, stride, first + tl.arange(0, TILE), vocabulary)
        value = tl.full([TILE], 1, tl.int64)
        if BY_MASS:
            value = mass_of(weights_of(x, peak, scale))
        found += tl.where(x >= threshold, value, 0)
    return tl.sum(found, 0)
