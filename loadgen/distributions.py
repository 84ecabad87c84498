"""Percentiles of samples, and nothing else."""

from collections.abc import Iterable, Sequence

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """Of `count` samples: nearest-rank percentiles, so each figure is one that occurred. Unit: the field name's."""

    count: int
    p50: float
    p90: float
    p99: float
    worst: float


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest sample that at least `percent` % of the samples do not exceed (nearest rank, no interpolation).

    `ordered` is ascending and not empty; `percent` is in 1..100.
    """
    rank = -(-len(ordered) * percent // 100)  # whole numbers: ceil(0.99 * n) in floats is one too many for some n
    return ordered[rank - 1]


def distribution(samples: Iterable[float | None]) -> Distribution | None:
    """The distribution of all the samples that are not None; None when there are none."""
    ordered = sorted(sample for sample in samples if sample is not None)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        worst=ordered[-1],
    )
