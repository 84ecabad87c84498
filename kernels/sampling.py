"""From logits to tokens, for all rows of a step at once.

Knows greedy choice, temperature, top-k, top-p, min-p and log-probabilities. Does not know where the logits come from,
or which request a row belongs to.

A row's token depends on its own logits, its own `Sampling` and its position, never on the rows beside it: randomness
is a hash of (seed, position), and whatever is summed is summed over a width that the row alone decides.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from protocol.messages import SampledToken, Sampling

WIDTHS = (256, 4096)
"""How many of the likeliest tokens are sorted at first, and when that was not enough, before the whole vocabulary
is. Sorting all of 49,152 takes milliseconds a row; 256 nearly always hold what top-p keeps."""
GREEDY_BELOW = 1e-5
"""Lower temperatures are as good as 0: the likeliest token alone keeps any weight, unless two logits are nearly the
same. In float32 the smallest would be 0."""
SLICE_ELEMENTS = 2**22
"""Most logits that are filtered at one time, so that working memory stays bounded (some 20 bytes each)."""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def sample(logits: Tensor, asked: Sequence[Sampling], positions: Sequence[int]) -> tuple[SampledToken, ...]:
    """Choose a token a row.

    `logits` is `[rows, vocabulary]` of any float type; `positions` are the absolute positions the chosen tokens will
    have in their sequences. Log-probabilities are natural, of the raw logits (before temperature and filters).
    """
    if not asked:
        return ()
    chosen = logits.max(-1).indices  # four times as quick as argmax on the CPU (measured)
    drawn = [row for row, it in enumerate(asked) if not greedy(it)]
    for rows in _sliced(drawn, rows_at_once(logits.shape[1])):
        uniforms = [uniform(asked[row].seed, positions[row]) for row in rows]
        index = torch.tensor(rows, device=logits.device)
        chosen[index] = _draw(logits[index].float(), [asked[row] for row in rows], uniforms)
    tokens: list[int] = chosen.tolist()
    told = [row for row, it in enumerate(asked) if it.logprobs is not None]
    if not told:
        return tuple(SampledToken(token) for token in tokens)
    known = {}
    for rows in _sliced(told, rows_at_once(logits.shape[1])):
        known.update(_with_logprobs(logits, tokens, asked, rows))
    return tuple(known.get(row) or SampledToken(token) for row, token in enumerate(tokens))


def greedy(asked: Sampling) -> bool:
    """Whether the likeliest token is always the one chosen."""
    return asked.temperature < GREEDY_BELOW


def rows_at_once(vocabulary: int) -> int:
    """How many rows are filtered together; more are taken in slices, one after the other."""
    return max(1, SLICE_ELEMENTS // vocabulary)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position) alone: 53 bits of SplitMix64's output function over a counter.

    Guy L. Steele Jr., Doug Lea, Christine H. Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014.
    The seed is mixed before the counter is added, so that neighbouring seeds do not walk through each other's numbers.
    """
    state = _mix(seed & _MASK) + _GOLDEN * (position + 1)
    return float(_mix(state & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _draw(logits: Tensor, asked: Sequence[Sampling], uniforms: Sequence[float]) -> Tensor:
    """One token a row, none of them greedy. `logits` float32 `[rows, vocabulary]`.

    The filters follow one another, each on what the one before has left: temperature, top-k, top-p, min-p. Each keeps
    the likeliest few, a prefix of the tokens sorted by probability, so together they keep the shortest prefix.
    """
    vocabulary = logits.shape[1]
    temperature = torch.tensor([it.temperature for it in asked], device=logits.device)
    # The largest logit is taken off first: a low temperature then gives 0 and -inf, never inf - inf.
    scaled = (logits - logits.amax(-1, keepdim=True)).div_(temperature[:, None])
    weights = scaled.exp_()
    chosen = torch.empty(len(asked), dtype=torch.long, device=logits.device)
    plain = [row for row, it in enumerate(asked) if not _filters(it, vocabulary)]
    if plain:
        index = torch.tensor(plain, device=logits.device)
        chosen[index] = _invert(weights[index].double().cumsum(-1), [uniforms[row] for row in plain])
    left = [row for row, it in enumerate(asked) if _filters(it, vocabulary)]
    for width in (*WIDTHS, vocabulary):
        mine = [row for row in left if width == vocabulary or asked[row].top_k <= width < vocabulary]
        if not mine:
            continue
        index = torch.tensor(mine, device=logits.device)
        sorted_weights, tokens = weights[index].topk(width)
        kept = _kept(sorted_weights.double(), weights[index].double().cumsum(-1)[:, -1], [asked[row] for row in mine])
        # A prefix that fills the whole width may go on beyond it, unless top-k ends it.
        enough = [
            count < width or width == vocabulary or 0 < asked[row].top_k <= width
            for row, count in zip(mine, kept.tolist(), strict=True)
        ]
        done = torch.tensor([place for place, yes in enumerate(enough) if yes], dtype=torch.long, device=logits.device)
        places = torch.arange(width, device=logits.device)
        running = (sorted_weights.double() * (places < kept[:, None])).cumsum(-1)[done]
        ranks = _invert(running, [uniforms[row] for row, yes in zip(mine, enough, strict=True) if yes])
        ranks = ranks.minimum(kept[done] - 1)
        chosen[index[done]] = tokens[done].gather(1, ranks[:, None])[:, 0]
        finished = {row for row, yes in zip(mine, enough, strict=True) if yes}
        left = [row for row in left if row not in finished]
    return chosen


def _kept(weights: Tensor, total: Tensor, asked: Sequence[Sampling]) -> Tensor:
    """How many of the likeliest tokens each row keeps, at least one.

    `weights` float64 `[rows, width]` are unnormalised probabilities, falling; `total` `[rows]` is their sum over the
    whole vocabulary.

    top-p keeps the smallest set of tokens whose probability reaches p: Holtzman et al., "The curious case of neural
    text degeneration", ICLR 2020. min-p keeps those at least min_p times as likely as the likeliest: Nguyen et al.,
    "Turning up the heat: min-p sampling for creative and coherent LLM outputs", ICLR 2025.
    """
    width, device = weights.shape[1], weights.device
    top_k = torch.tensor([min(it.top_k, width) if it.top_k > 0 else width for it in asked], device=device)
    running = weights.cumsum(-1)
    limited = torch.tensor([0 < it.top_k <= width for it in asked], device=device)
    within = torch.where(limited, running.gather(1, top_k[:, None] - 1)[:, 0], total)
    top_p = torch.tensor([it.top_p for it in asked], dtype=torch.float64, device=device)
    nucleus = 1 + (running[:, :-1] < (top_p * within)[:, None]).sum(-1)
    nucleus = torch.where(top_p < 1, nucleus, width)
    min_p = torch.tensor([it.min_p for it in asked], dtype=torch.float64, device=device)
    likely = (weights >= min_p[:, None] * weights[:, :1]).sum(-1)
    return top_k.minimum(nucleus).minimum(likely).clamp_(min=1)


def _filters(asked: Sampling, vocabulary: int) -> bool:
    return 0 < asked.top_k < vocabulary or asked.top_p < 1 or asked.min_p > 0


def _invert(running: Tensor, uniforms: Sequence[float]) -> Tensor:
    """The first index whose running sum `[rows, width]` passes u times the row's total: inverse transform sampling."""
    goals = torch.tensor(uniforms, dtype=torch.float64, device=running.device) * running[:, -1]
    found = torch.searchsorted(running, goals[:, None], right=True)[:, 0]
    return found.clamp_(max=running.shape[1] - 1)


def _with_logprobs(
    logits: Tensor, tokens: Sequence[int], asked: Sequence[Sampling], rows: Sequence[int]
) -> dict[int, SampledToken]:
    logprobs = logits[torch.tensor(rows, device=logits.device)].float().log_softmax(-1)
    wanted = [asked[row].logprobs or 0 for row in rows]
    chosen = logprobs[torch.arange(len(rows)), torch.tensor([tokens[row] for row in rows])].tolist()
    values, indices = logprobs.topk(min(max(wanted), logprobs.shape[1]))
    found = {}
    for row, count, own, top_values, top_tokens in zip(
        rows, wanted, chosen, values.tolist(), indices.tolist(), strict=True
    ):
        top = tuple(zip(top_tokens[:count], top_values[:count], strict=True))
        found[row] = SampledToken(tokens[row], own, top)
    return found


def _sliced(rows: list[int], size: int) -> list[list[int]]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]
