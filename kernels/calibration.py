"""What steps of different kinds take on this device, measured once at the start.

Knows which few steps tell the parts of a step's cost apart (a step at all; its prefill tokens, pairs and context; its
decode rows and theirs), and how to count what is in a step. Does not know how a cost is fitted to what was measured:
the scheduler does that, and goes on learning from every real step.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from kernels.runner import Runner
from protocol.messages import Chunk, Measured, Sampling, Work

BUDGET_S = 1.5
"""No step begins later than this after the first one began."""
REPEAT_S = 1.0
"""No step is run again later than this: a better first guess is not worth a longer start."""
SHORT = 16
LONG = 4096
"""Tokens in the cache that a decode row or a chunk reads, where the model's context has room for as many."""
LARGEST_CHUNK = 128
SOME_ROWS = 8
MANY_ROWS = 128
"""Most decode rows. What more of them take follows from these, and on a CPU these are slow enough."""
ROWS_CONTEXT = 8192
"""Most tokens in the cache that the rows of a step read together, for the same reason."""


def calibrate(
    runner: Runner,
    max_step_tokens: int,
    max_step_rows: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Measured, ...]:
    """Run and time steps of several kinds. What they leave in the blocks is overwritten before it is read."""
    cache = runner.cache
    steps = steps_to_run(cache.block_size, cache.blocks, runner.decoder.max_context, max_step_tokens, max_step_rows)
    touched = 1 + max(int(np.frombuffer(it.blocks, "<i4").max()) for chunks in steps for it in chunks)
    for pages in (*cache.keys, *cache.values):
        # On a CPU, what was never written is one and the same page of zeros, which is read faster than real ones; and
        # to write it for the first time can take longer than the step itself.
        pages[:touched].zero_()
    return measure(runner.run, steps, clock)


def measure(
    run: Callable[[tuple[Chunk, ...]], object], steps: Sequence[tuple[Chunk, ...]], clock: Callable[[], float]
) -> tuple[Measured, ...]:
    """Time the steps in their order, and then again while `REPEAT_S` lasts; the shorter of two times counts.

    When a kind of step first runs, memory is allocated and kernels are chosen. Still, every kind comes once before any
    comes twice: one that is missing would distort more. On a slow device the last ones are left out.
    """
    best: dict[int, float] = {}
    began = clock()
    for again, limit_s in ((False, BUDGET_S), (True, REPEAT_S)):
        for index, chunks in enumerate(steps):
            start = clock()
            if start - began >= limit_s:
                break
            run(chunks)  # sampled tokens are back on the host, so the device is done too
            took_s = clock() - start
            best[index] = min(took_s, best[index]) if again else took_s
    return tuple(Measured(work_of(steps[index]), took_s) for index, took_s in best.items())


def work_of(chunks: Sequence[Chunk]) -> Work:
    """What is in a step, counted as `Work` says. A chunk of one token is a decode row, whatever it was meant as."""
    prefill_tokens = prefill_pairs = prefill_context = decode_rows = decode_context = 0
    for chunk in chunks:
        count = len(chunk.tokens) // 4
        if count == 1:
            decode_rows += 1
            decode_context += chunk.start
        else:
            prefill_tokens += count
            prefill_pairs += count * chunk.start + count * (count + 1) // 2
            prefill_context += chunk.start
    return Work(prefill_tokens, prefill_pairs, prefill_context, decode_rows, decode_context)


def steps_to_run(
    block_size: int, blocks: int, max_context: int, max_step_tokens: int, max_step_rows: int
) -> list[tuple[Chunk, ...]]:
    """The steps, in the order of what they tell: from the first six on, all six parts of the cost can be told apart.

    All of them share the pool's first blocks. A step that the bounds make equal to an earlier one is left out.
    """
    context = min(max_context, blocks * block_size)
    longest = min(LONG, context // 2)
    pool = -(-min(context, LONG + LARGEST_CHUNK) // block_size)

    def table(length: int, turn: int) -> bytes:
        return ((np.arange(-(-length // block_size)) + turn) % pool).astype("<i4").tobytes()

    def prefill(count: int, start: int) -> tuple[Chunk, ...]:
        start = min(start, longest)
        count = min(count, context - start, max_step_tokens)
        return (Chunk("calibration", start, bytes(4 * count), table(start + count, 0), Sampling()),)

    def decode(rows: int, mean: int) -> tuple[Chunk, ...]:
        rows = min(rows, max_step_rows, max_step_tokens)
        mean = min(mean, longest, ROWS_CONTEXT // rows)
        # From half to one and a half times the mean: real rows differ, and are padded and grouped because they do.
        starts = [mean // 2 + mean * (2 * row + 1) // (2 * rows) for row in range(rows)]
        # Each table begins elsewhere, or all rows would read what the first has just brought into the device's caches.
        return tuple(
            Chunk(f"calibration {row}", start, bytes(4), table(start + 1, row * pool // rows), Sampling())
            for row, start in enumerate(starts)
        )

    def both(rows: int, mean: int, count: int, start: int) -> tuple[Chunk, ...]:
        rows = min(rows, max_step_rows - 1, max_step_tokens - 2)
        return decode(rows, mean) + prefill(min(count, max_step_tokens - rows), start) if rows > 0 else ()

    steps = (
        decode(1, SHORT),
        prefill(LARGEST_CHUNK, 0),
        decode(SOME_ROWS, 1024),
        prefill(LARGEST_CHUNK, LONG),
        decode(MANY_ROWS, SHORT),
        prefill(16, LONG),
        decode(1, LONG),
        prefill(16, 0),
        decode(SOME_ROWS, SHORT),
        both(SOME_ROWS, 256, 32, 512),
        decode(MANY_ROWS, 1024),
    )
    return [it for it in dict.fromkeys(steps) if it]
