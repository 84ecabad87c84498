"""Each kernel against its formula in float64, on fresh random inputs.

A figure is the norm of the difference over the norm. Rounding a result once costs 1.7e-3 in bfloat16 and 2.1e-4 in
float16; attention rounds its weights too.
"""

import secrets
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.sampling import uniform
from protocol.messages import Sampling
from tests.gpu import references
from tests.gpu.findings import Conditions, Finding
from tests.gpu.paged import Heads, PagedStep

MOST = {torch.bfloat16: 5e-3, torch.float16: 1e-3, torch.float32: 5e-6}
"""Errors above this are not of rounding."""
UNIT = "of norm"
EPS = 1e-5


def measure(conditions: Conditions) -> Iterator[Finding]:
    seed = secrets.randbelow(2**31)
    yield Finding("seed of the inputs", seed, "")
    torch.manual_seed(seed)
    torch.set_default_device(conditions.device)
    dtypes = (torch.float32,) if conditions.smoke else (torch.bfloat16, torch.float16)
    for dtype in dtypes:
        yield from _attention(conditions, dtype, seed)
        yield from _layers(conditions, dtype)
        yield from _linear(conditions, dtype)
    yield from _sampling(conditions)


def _finding(what: str, dtype: torch.dtype, found: Tensor, exact: Tensor) -> Finding:
    name = f"{what}, {str(dtype).removeprefix('torch.')}"
    return Finding(name, references.relative_error(found, exact), UNIT, most=MOST[dtype])


def _attention(conditions: Conditions, dtype: torch.dtype, seed: int) -> Iterator[Finding]:
    """Prompts, chunks behind a context, rows that decode, contexts of one token and of many splits: in one launch."""
    starts, counts = [0, 0, 100, 5, 700, 2049, 6000], [1, 130, 75, 1, 1, 1, 17]
    shapes = [Heads(32, 8, 64), Heads(24, 8, 128), Heads(12, 12, 96), Heads(16, 1, 256)]
    if conditions.smoke:
        starts, counts, shapes = [0, 0, 3, 300], [1, 18, 1, 1], [Heads(4, 2, 16)]
    elif dtype == torch.float16:
        shapes = shapes[::2]  # compiling is most of what this takes
    for shape in shapes:
        for window in (None, 8 if conditions.smoke else 512) if shape.dim in (16, 64) else (None,):
            step = PagedStep(shape, starts, counts, dtype=dtype, device=conditions.device, window=window, seed=seed)
            step.run()
            seen = "" if window is None else f", window of {window}"
            yield _finding(f"attention, {shape}{seen}", dtype, step.out, references.attention(step))
            name = f"attention, {shape}{seen}, {str(dtype).removeprefix('torch.')}: rows that differ in other company"
            yield Finding(name, _differ(step), "rows", most=0)


def _differ(step: PagedStep) -> int:
    """Tokens whose bits are others when each chunk comes in two, or its last token alone as a row that decodes."""
    ends = [start + count for start, count in zip(step.starts, step.counts, strict=True)]
    queries, outs = torch.split(step.query, step.counts), torch.split(step.out, step.counts)
    halves = [count // 2 for count in step.counts]
    rest = [count - half for count, half in zip(step.counts, halves, strict=True)]
    first = step.again(step.starts, halves, torch.cat([it[:half] for it, half in zip(queries, halves, strict=True)]))
    middle = [start + half for start, half in zip(step.starts, halves, strict=True)]
    second = step.again(middle, rest, torch.cat([it[half:] for it, half in zip(queries, halves, strict=True)]))
    first.run()
    second.run()
    pieces = [torch.cat(it) for it in zip(torch.split(first.out, halves), torch.split(second.out, rest), strict=True)]
    differ = int((torch.cat(pieces) != step.out).flatten(1).any(1).sum())
    for row, end in enumerate(ends):
        one = [int(other == row) for other in range(len(ends))]
        alone = step.again([end - 1 if it else 0 for it in one], one, queries[row][-1:])
        alone.run()
        differ += int((alone.out[0] != outs[row][-1]).any())
    return differ


def _layers(conditions: Conditions, dtype: torch.dtype) -> Iterator[Finding]:
    from kernels.triton.activation import gate_up
    from kernels.triton.norm import add_rms_norm, rms_norm
    from kernels.triton.rotary import rotate_and_write

    tokens, width = (3, 24) if conditions.smoke else (129, 4096)
    x, residual = torch.randn(tokens, width).to(dtype), torch.randn(tokens, width).to(dtype)
    weight = torch.randn(width).to(dtype)
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, EPS, out)
    yield _finding(f"norm of {width}", dtype, out, references.rms_norm(x, weight, EPS))
    added = (x.float() + residual.float()).to(dtype)
    add_rms_norm(x, residual, weight, EPS, out)
    yield _finding("sum before the norm", dtype, residual, added.double())
    yield _finding(f"norm of a sum of {width}", dtype, out, references.rms_norm(added, weight, EPS))

    both, gated = torch.randn(tokens, 2 * width).to(dtype), out
    gate_up(both, gated)
    yield _finding(f"gate and up of {width}", dtype, gated, references.gate_up(both))

    heads = Heads(4, 2, 16) if conditions.smoke else Heads(32, 8, 128)
    qkv = torch.randn(tokens, heads.query + 2 * heads.kv, heads.dim).to(dtype)
    positions, slots = torch.randperm(4096)[:tokens].int(), torch.randperm(tokens + 32)[:tokens].int()
    angles = torch.arange(4096)[:, None].double() * 10000.0 ** -torch.linspace(0, 1, heads.dim // 2)
    weights = [torch.randn(heads.dim).to(dtype) for _ in range(2)]
    query = torch.full((tokens, heads.query, heads.dim), float("nan"), dtype=dtype)
    keys, values = (torch.full((tokens + 32, 1, heads.kv, heads.dim), float("nan"), dtype=dtype) for _ in range(2))
    for normed in (False, True):
        rotate_and_write(
            qkv.flatten(1),
            positions,
            slots,
            angles.cos().float(),
            angles.sin().float(),
            weights[0] if normed else None,
            weights[1] if normed else None,
            EPS,
            heads=heads.query,
            kv_heads=heads.kv,
            query=query,
            keys=keys,
            values=values,
        )
        parts = torch.split(qkv, [heads.query, heads.kv, heads.kv], 1)
        told = [references.rms_norm(it, by, EPS).to(dtype) for it, by in zip(parts, weights, strict=False)]
        turned = [references.rotated(it, angles[positions.long()]) for it in (told if normed else parts[:2])]
        how = f"rotary{' of normed heads' if normed else ''}, {heads}"
        yield _finding(f"{how}, queries", dtype, query, turned[0])
        yield _finding(f"{how}, keys", dtype, keys[slots.long(), 0], turned[1])
        yield _finding(f"{how}, values", dtype, values[slots.long(), 0], parts[2].double())


def _linear(conditions: Conditions, dtype: torch.dtype) -> Iterator[Finding]:
    """With few rows and many; and that a row's bits are the same beside others as alone."""
    from kernels.triton.linear import linear, scratch_elements

    shapes = [(48, 40)] if conditions.smoke else [(3072, 2048), (2048, 8192), (1000, 576)]
    shapes = shapes[:1] if dtype == torch.float16 else shapes
    for n, k in shapes:
        rows = 70 if conditions.smoke else 700
        x, weight, bias = (
            torch.randn(rows, k).to(dtype),
            (torch.randn(n, k) / k**0.5).to(dtype),
            torch.randn(n).to(dtype),
        )
        scratch = torch.full((max(1, scratch_elements(rows, n, k)),), float("nan"))
        out = torch.full((rows, n), float("nan"), dtype=dtype)
        linear(x, weight, bias, out, scratch)
        yield _finding(f"linear, {rows} rows of {k} to {n}", dtype, out, references.linear(x, weight, bias))
        differ = 0
        for some in (1, 5, 64, 257):
            few = torch.full((min(some, rows), n), float("nan"), dtype=dtype)
            linear(x[: len(few)], weight, bias, few, scratch)
            differ += int((few != out[: len(few)]).any(1).sum())
        name = f"linear, {k} to {n}, {str(dtype).removeprefix('torch.')}: rows that differ in other company"
        yield Finding(name, differ, "rows", most=0)


def _sampling(conditions: Conditions) -> Iterator[Finding]:
    """Beside `kernels/sampling.py` for the same numbers. Rounding may move a draw that falls between two tokens."""
    from kernels import sampling as plain
    from kernels.triton import sampling

    rows, vocabulary = (12, 512) if conditions.smoke else (256, 128256)
    logits = (4 * torch.randn(rows, vocabulary)).to(torch.float32 if conditions.smoke else torch.bfloat16)
    kinds = (
        Sampling(),
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=1.3, top_k=50),
        Sampling(temperature=1.0, min_p=0.05),
        Sampling(temperature=0.8, top_k=200, top_p=0.95, min_p=0.01),
    )
    asked = [kinds[row % len(kinds)] for row in range(rows)]
    numbers = [uniform(7, row) for row in range(rows)]
    wishes = sampling.Wishes(
        temperature=torch.tensor([it.temperature for it in asked]),
        top_k=torch.tensor([it.top_k for it in asked], dtype=torch.int32),
        top_p=torch.tensor([it.top_p for it in asked]),
        min_p=torch.tensor([it.min_p for it in asked]),
        uniform=torch.tensor(numbers, dtype=torch.float32),
    )
    chosen = torch.full((rows,), -1, dtype=torch.int32)
    sampling.sample(logits, wishes, chosen, sampling.Scratch.make(rows, vocabulary, torch.device(conditions.device)))
    drawn = [row for row, it in enumerate(asked) if it.temperature == 0]
    # In bfloat16 many are equal: the lowest is meant, where torch takes any.
    likeliest = torch.where(logits == logits.amax(-1, keepdim=True), torch.arange(vocabulary), vocabulary).amin(-1)
    missed = sum(int(chosen[row]) != int(likeliest[row]) for row in drawn)
    yield Finding("greedy: tokens that are not the likeliest", missed, "rows", most=0)
    outside = sum(
        not _allowed(logits[row].float(), its, int(chosen[row]))
        for row, its in enumerate(asked)
        if not plain.greedy(its)
    )
    yield Finding("drawn: tokens that a filter had taken away", outside, "rows", most=0)
    yield from _told(logits, chosen)


def _allowed(logits: Tensor, its: Sampling, token: int) -> bool:
    """Whether all filters leave it, with what rounding in the sums may add at the edge."""
    weights = (logits.double() / its.temperature).softmax(-1)
    own = float(weights[token])
    above = weights[weights > own]
    if 0 < its.top_k <= len(above):
        return False
    # Equals of the last of the top k stay with it.
    within = float(weights[weights >= weights.topk(its.top_k).values[-1]].sum()) if its.top_k else 1.0
    if its.top_p < 1 and float(above.sum()) > its.top_p * within + 1e-5:
        return False
    return own >= its.min_p * float(weights.max()) * (1 - 1e-5)


def _told(logits: Tensor, chosen: Tensor) -> Iterator[Finding]:
    from kernels.triton.sampling import MOST_TOLD, log_probabilities

    rows = torch.arange(0, len(logits), 3, dtype=torch.int32)
    told = torch.full((len(rows), 2 * (1 + MOST_TOLD)), -7, dtype=torch.int32)
    log_probabilities(logits, rows, chosen, told)
    exact = logits[rows.long()].double().log_softmax(-1)
    own = exact.gather(1, chosen[rows.long()].long()[:, None])
    expected = torch.cat([own, exact.topk(MOST_TOLD).values], 1)
    found = told[:, : 1 + MOST_TOLD].contiguous().view(torch.float32)
    yield _finding("log-probabilities", torch.float32, found, expected)
