"""Numbers that are drawn: uniform, log-normal or exponential, as a scenario's file writes them.

Knows how each is drawn from a stream of even random numbers, which Python promises to be the same for the same seed in
every version; what it makes of them elsewhere (`shuffle`, `gauss`, `gammavariate`) it does not promise. Knows nothing
of what is drawn.
"""

import math
import random
from statistics import NormalDist
from typing import Annotated

from msgspec import Meta, Struct

MOST_TOKENS = 10**9
"""Of one prompt or one answer."""
MOST_DRAWN = 10**6
"""Of one prompt or one answer of people who are drawn, and of whatever else a person has a whole number of."""
MOST_S = 1e9
WIDEST = 10.0
"""Of a log-normal's spread."""
Count = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_S)]

_NORMAL = NormalDist()


class Drawn(Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """How a number is drawn, in one of three ways:

    - `from` and `to`: any between them alike, both included;
    - `median` and `spread`: log-normal. Half are below the median, and `spread` is the standard deviation of the
      natural logarithm: two thirds are at most e to the `spread` times more or less than the median (0.5: 1.65 times);
    - `mean`: exponential, as the time between things that have nothing to do with one another.

    The last two may have `least` and `most`: what would be outside is put on the edge, so that the median stays.
    """

    from_: float | None = None
    to: float | None = None
    median: float | None = None
    spread: float | None = None
    mean: float | None = None
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        given = frozenset(name for name in self.__struct_fields__ if getattr(self, name) is not None)
        if not any(core <= given <= core | more for core, more in _KINDS):
            raise ValueError(
                "it has from and to, or median and spread, or mean (these two may also have least and most)"
            )
        for name in given:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name.strip('_')} must be 0 or more, and finite")
        if self.median == 0 or self.mean == 0:
            raise ValueError("median and mean must be above 0")
        if self.spread is not None and self.spread > WIDEST:
            raise ValueError(f"spread is {self.spread:g}, of the natural logarithm: it must be at most {WIDEST:g}")
        for low, high in (("from_", "to"), ("least", "most")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise ValueError(f"{low.strip('_')} {least:g} is above {high} {most:g}")

    @property
    def lowest(self) -> float:
        """The least that can be drawn."""
        return (self.from_ if self.from_ is not None else self.least) or 0.0

    @property
    def highest(self) -> float:
        """The most that can be drawn; `inf`: there is no bound."""
        bound = self.to if self.to is not None else self.most
        return math.inf if bound is None else bound

    def draw(self, chance: random.Random) -> float:
        """Takes one number from `chance`."""
        even = between(chance)
        if self.from_ is not None and self.to is not None:
            return self.from_ + (self.to - self.from_) * even
        if self.median is not None and self.spread is not None:
            value = self.median * math.exp(self.spread * _NORMAL.inv_cdf(even))
        else:
            assert self.mean is not None, "checked when it was made"
            value = -self.mean * math.log(even)
        return min(max(value, self.lowest), self.highest)

    def draw_whole(self, chance: random.Random) -> int:
        """A whole number of 1 or more within the bounds; from a uniform one each as likely as any other. Takes one
        number from `chance`."""
        if self.from_ is not None and self.to is not None:
            first, last = math.ceil(self.from_), math.floor(self.to)
            return min(first + math.floor((last - first + 1) * between(chance)), last)
        # A bound that is no whole number is kept as well.
        least, most = (
            max(1, math.ceil(self.lowest)),
            MOST_DRAWN if self.highest == math.inf else math.floor(self.highest),
        )
        return min(max(round(self.draw(chance)), least), most)


_EDGES = frozenset(("least", "most"))
_KINDS = (
    (frozenset(("from_", "to")), frozenset[str]()),
    (frozenset(("median", "spread")), _EDGES),
    (frozenset(("mean",)), _EDGES),
)

Tokens = Count | Drawn
"""A whole number of 1 or more: tokens, questions, pieces of text."""
Time = Seconds | Drawn
"""Seconds."""


def between(chance: random.Random) -> float:
    """A random number above 0 and below 1."""
    return chance.random() or 2**-54


def whole(of: Tokens, chance: random.Random) -> int:
    return of.draw_whole(chance) if isinstance(of, Drawn) else of


def seconds(of: Time, chance: random.Random) -> float:
    """To the microsecond: what mathematical libraries differ in is further behind."""
    return round(of.draw(chance) if isinstance(of, Drawn) else of, 6)


def check_whole(name: str, of: Tokens | None) -> None:
    """Whether there are whole numbers from 1 to `MOST_DRAWN` to be drawn. Raises ValueError, beginning with `name`."""
    if not isinstance(of, Drawn):
        if of is not None and of > MOST_DRAWN:
            raise ValueError(f"{name}: {of:,} is more than {MOST_DRAWN:,}")
        return
    if of.from_ is not None and of.to is not None:
        if of.from_ < 1 or math.ceil(of.from_) > math.floor(of.to):
            raise ValueError(f"{name}: there is no whole number of 1 or more from {of.from_:g} to {of.to:g}")
    elif of.highest < 1 or math.ceil(of.lowest) > of.highest:
        raise ValueError(f"{name}: there is no whole number of 1 or more from {of.lowest:g} to {of.highest:g}")
    # Without a bound of its own it is cut there, which most of them must be below.
    most = of.highest if of.highest < math.inf else max(of.lowest, of.median or of.mean or 0.0)
    if most > MOST_DRAWN:
        raise ValueError(f"{name}: {most:,.0f} is more than {MOST_DRAWN:,}")
