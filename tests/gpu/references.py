"""What the kernels are to compute, in plain torch and float64. Knows formulas, and none of the kernels.

Sources: Vaswani et al. (2017) with a causal mask, and a window where there is one; Zhang and Sennrich (2019) for the
norm; Su et al. (2021) with the halves of a head turned together; Shazeer (2020) for the gate.
"""

import torch
from torch import Tensor

from tests.gpu.paged import PagedStep


def attention(step: PagedStep) -> Tensor:
    """`[tokens, heads, head_dim]`, sequence after sequence."""
    found = []
    first = 0
    for row, (start, count) in enumerate(zip(step.starts, step.counts, strict=True)):
        end = start + count
        table = step.tables[row].long()
        keys, values = (
            pages[table].flatten(0, 1)[:end].double().repeat_interleave(step.heads.query // step.heads.kv, 1)
            for pages in (step.keys, step.values)
        )
        query = step.query[first : first + count].double()
        own = torch.arange(start, end, device=query.device)[:, None]
        at = torch.arange(end, device=query.device)[None, :]
        seen = at <= own
        if step.window is not None:
            seen &= at > own - step.window
        scores = torch.einsum("qhd,khd->hqk", query, keys) * step.scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, values))
        first += count
    return torch.cat(found)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


def rotated(heads: Tensor, angles: Tensor) -> Tensor:
    """`heads` `[tokens, heads, head_dim]`, `angles` `[tokens, head_dim / 2]`."""
    left, right = heads.double().chunk(2, -1)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)


def gate_up(both: Tensor) -> Tensor:
    gate, up = both.double().chunk(2, -1)
    return gate * gate.sigmoid() * up


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found = x.double() @ weight.double().T
    return found if bias is None else found + bias.double()


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm; what is no number anywhere makes it none."""
    return float((found.double() - exact).norm() / exact.norm())
