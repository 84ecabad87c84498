"""A decode step against what it must read at least: every weight once, and each row's keys and values.

The floor is those bytes at the bandwidth of a copy in the same run. A step's time is that between two ends when the
next is launched before the last has ended, as the engine does it; time on the device alone is told beside it.
"""

import random
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

from kernels.checkpoint import Checkpoint
from kernels.serving import Serving, load
from protocol.messages import LoadModel
from tests.gpu import model
from tests.gpu.findings import Conditions, Finding
from tests.gpu.rows import Blocks, Row, Steps

MOST = 1.5
"""Times the floor, at 64 rows."""
CONTEXT = 1024
STEPS = 60
"""Steps that are timed, after some that are not."""
FIRST = 10


def measure(conditions: Conditions) -> Iterator[Finding]:
    rows, context, chunk = ((1, 3), 40, 64) if conditions.smoke else ((1, 16, 64, 256), CONTEXT, 8192)
    folder = model.folder(conditions)
    began_s = time.perf_counter()
    serving = load(
        Checkpoint("model", folder),
        LoadModel(
            str(folder),
            device=conditions.device,
            dtype="bfloat16",
            kernels=conditions.kernels,
            kv_memory=2**24 if conditions.smoke else 12 * 2**30,
            max_context=256 if conditions.smoke else 2048,
            max_step_tokens=chunk,
            max_step_rows=max(rows),
        ),
    )
    yield Finding("from the files to the first step", time.perf_counter() - began_s, "s", note=serving.ready.kernels)
    for count in rows:
        yield from _decode(conditions, serving, count, context, chunk)


def _decode(conditions: Conditions, serving: Serving, count: int, context: int, chunk: int) -> Iterator[Finding]:
    draw, blocks, steps = random.Random(count), Blocks(serving), Steps(serving)
    rows = [Row(f"{count} {at}", [draw.randrange(256) for _ in range(context)], context) for at in range(count)]
    took_s = 0.0
    waiting = list(rows)
    while waiting:  # as many prompts a step as there is room for
        room, step = chunk, []
        while waiting and room:
            step.append((waiting[0], blocks.chunk(waiting[0], room)))
            room -= len(step[-1][1].tokens) // 4
            if step[-1][1].sampling is None:
                break
            waiting.pop(0)
        took_s += steps.run(step)
    if count == 64 or conditions.smoke:
        yield Finding(f"prompts of {context:,}, {count} rows", count * context / took_s, "tokens/s")
    apart_s, on_device_s = _step_s(serving, blocks, rows, 4 if conditions.smoke else STEPS)
    note = f"{apart_s * 1e3:.3f} ms a step, {on_device_s * 1e3:.3f} on the device"
    name = f"decode, {count} rows behind {context:,} tokens"
    yield Finding(f"{name}: tokens", count / apart_s, "tokens/s", note=note)
    if conditions.copy_bytes_per_s is not None:
        read = model.step_bytes(conditions, count, context)
        floor_s = read / conditions.copy_bytes_per_s
        note = f"{read / 1e6:,.0f} MB, {floor_s * 1e3:.3f} ms"
        most = MOST if count == 64 else None
        yield Finding(f"{name}: times its floor", apart_s / floor_s, "", most=most, note=note, timed=True)


def _step_s(serving: Serving, blocks: Blocks, rows: list[Row], count: int) -> tuple[float, float]:
    """Medians: from one step's end to the next one's, and on the device. Each is launched before the last has ended."""
    launched = serving.runner.launch(tuple(blocks.chunk(row, 1) for row in rows))
    ends, on_device = [], []
    for number in range(FIRST + count):
        for row in rows:
            row.computed += 1
        following = tuple(blocks.chunk(row, 1, follows=place) for place, row in enumerate(rows))
        behind = serving.runner.launch(following)
        took_s = launched.wait().took_s
        launched = behind
        if number >= FIRST:
            ends.append(time.perf_counter())
            on_device.append(took_s)
    launched.wait()
    apart = [later - earlier for earlier, later in pairwise(ends)]
    for row in rows:
        blocks.take_back(row)
    return statistics.median(apart), statistics.median(on_device)
