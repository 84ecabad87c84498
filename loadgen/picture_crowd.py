"""A crowd in one strip: how many waited for their first token, paused for too long, or were being answered, and when.

Knows counts over time and their shapes in an SVG. Knows no single request.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element, SubElement

from loadgen.picture_rows import Scale, pixels, text
from protocol.timeline import Life

POINTS = 500
LOOKS = 8
"""Between two points: what comes and goes faster is averaged."""
KINDS = ("waiting", "paused", "answered")
"""From the bottom up: their classes."""

Counts = list[tuple[float, float, float]]
"""At each point of time, of each kind."""


def counts_over(lives: Sequence[Life], scale: Scale) -> Counts:
    """How many wait for their first token, pause for too long, and are answered: `POINTS` averages over the scale."""
    looks = POINTS * LOOKS
    step_s = (scale.to_s - scale.from_s) / looks
    found = counts_at(lives, [scale.from_s + step_s * (number + 0.5) for number in range(looks)])
    return [
        (sum(of[0] for of in some) / LOOKS, sum(of[1] for of in some) / LOOKS, sum(of[2] for of in some) / LOOKS)
        for some in (found[first : first + LOOKS] for first in range(0, looks, LOOKS))
    ]


def counts_at(lives: Sequence[Life], times_s: Sequence[float]) -> list[tuple[int, int, int]]:
    """At each of these ascending times: how many wait for their first token, pause for too long, and are answered."""
    changes = [[0] * (len(times_s) + 1) for _ in range(3)]

    def during(kind: int, from_s: float, to_s: float) -> None:
        changes[kind][bisect_left(times_s, from_s)] += 1
        changes[kind][bisect_left(times_s, to_s)] -= 1

    for life in lives:
        last_s = max(life.arrived_s, life.ended_s or 0.0, *life.token_times[-1:])
        first_s = life.token_times[0] if life.token_times else last_s
        during(0, life.arrived_s, first_s)
        during(2, first_s, last_s)
        for earlier, later in pairwise(life.token_times):
            if later - earlier > life.itl_target_s:
                during(1, earlier + life.itl_target_s, later)
                during(2, later, earlier + life.itl_target_s)
    counts = [0, 0, 0]
    found = []
    for index in range(len(times_s)):
        counts = [count + of[index] for count, of in zip(counts, changes, strict=True)]
        found.append((counts[0], counts[1], counts[2]))
    return found


def most(counts: Counts) -> int:
    """Of all kinds together at their highest, rounded up."""
    return math.ceil(max(map(sum, counts), default=0))


def draw(parent: Element, counts: Counts, scale: Scale, top: float, height: float, highest: int) -> None:
    """The counts, one kind upon the other, `highest` of them as high as the strip."""
    bottom = top + height
    x = [pixels(scale.left + scale.width * (number + 0.5) / len(counts)) for number in range(len(counts))]
    floor = [0.0] * len(counts)
    for kind, style in enumerate(KINDS):
        roof = [below + each[kind] for below, each in zip(floor, counts, strict=True)]
        if roof != floor:
            there = [f"{at} {pixels(bottom - height * level / highest)}" for at, level in zip(x, roof, strict=True)]
            back = [f"{at} {pixels(bottom - height * level / highest)}" for at, level in zip(x, floor, strict=True)]
            SubElement(parent, "path", {"d": f"M{'L'.join(there + back[::-1])}z", "class": style})
        floor = roof
    ground = f"M{pixels(scale.left)} {pixels(bottom)}h{pixels(scale.width)}"
    SubElement(parent, "path", {"d": ground, "class": "neutral"})
    text(parent, scale.left - 8, top + 9, f"{highest:,}", "faint small end")
    text(parent, scale.left - 8, bottom, "0", "faint small end")
