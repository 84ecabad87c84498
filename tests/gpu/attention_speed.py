"""How much of the device's bandwidth attention gets, and how fast it reads prompts.

Bytes are those of keys and values up to each row's position, queries and results: what is read twice does not count.
The bandwidth beside it is that of a copy, in the same run.
"""

from collections.abc import Iterator

from tests.gpu.findings import Conditions, Finding
from tests.gpu.paged import Heads, PagedStep
from tests.gpu.timing import median_s

LEAST = 0.75
"""Of the copy's bandwidth, for rows that decode."""
WANTED = ((Heads(32, 8, 64), 64, 4096), (Heads(32, 8, 128), 64, 4096))
BESIDE = (
    (Heads(32, 8, 64), 1, 32768),
    (Heads(32, 8, 64), 16, 4096),
    (Heads(32, 8, 64), 256, 1024),
    (Heads(32, 8, 128), 256, 1024),
    (Heads(32, 32, 128), 16, 4096),
    (Heads(16, 2, 256), 64, 4096),
)
PROMPTS = ((Heads(32, 8, 64), 0, 4096), (Heads(32, 8, 128), 0, 4096), (Heads(32, 8, 128), 16384, 1024))


def measure(conditions: Conditions) -> Iterator[Finding]:
    shapes: list[tuple[Heads, int, int, float | None]]
    if conditions.smoke:
        shapes = [(Heads(4, 2, 16), 3, 40, LEAST)]
        prompts = [(Heads(4, 2, 16), 8, 20)]
    else:
        shapes = [(*it, LEAST) for it in WANTED] + [(*it, None) for it in BESIDE]
        prompts = list(PROMPTS)
    for heads, rows, context, least in shapes:
        yield from _decode(conditions, heads, rows, context, least)
    for heads, start, tokens in prompts:
        step = PagedStep(heads, [start], [tokens], device=conditions.device)
        took_s = median_s(step.run, conditions)
        name = f"prompt of {tokens:,} behind {start:,}, {heads}"
        yield Finding(name, step.flops / took_s / 1e12, "TFLOP/s", note=f"{took_s * 1e6:,.0f} us")


def _decode(conditions: Conditions, heads: Heads, rows: int, context: int, least: float | None) -> Iterator[Finding]:
    step = PagedStep(heads, [context - 1] * rows, [1] * rows, device=conditions.device)
    took_s = median_s(step.run, conditions)
    name, note = (
        f"decode, {rows} x {context:,} tokens, {heads}",
        f"{step.bytes / 1e6:,.0f} MB in {took_s * 1e6:,.0f} us",
    )
    if conditions.copy_bytes_per_s is None:
        yield Finding(name, step.bytes / took_s / 1e9, "GB/s", note=note)
        return
    share = step.bytes / took_s / conditions.copy_bytes_per_s
    yield Finding(name, share, "of copy", least=least, note=note, timed=True)
