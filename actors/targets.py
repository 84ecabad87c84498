"""How soon answers are wanted: the targets of each service tier, and what one request gets of them.

Knows the tiers, how their table is written, and that a request may have targets of its own, but none tighter than its
key allows. Knows nothing of where settings come from, and nothing of how a target is met.
"""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from msgspec import Struct, structs


class TargetsError(Exception):
    """A table that cannot be used. The message goes on from the name of the setting: "has no tier 'gold'."."""


class Target(Struct, frozen=True):
    """Milliseconds to the first token, from receiving the request, and from one token to the next."""

    ttft_ms: float
    itl_ms: float

    def no_tighter_than(self, other: "Target") -> bool:
        """In neither figure."""
        return self.ttft_ms >= other.ttft_ms and self.itl_ms >= other.itl_ms


class TierTable(Struct, frozen=True, kw_only=True):
    """The targets of every tier of OpenAI's `service_tier`, without `auto`, which means default."""

    default: Target = Target(5_000, 250)
    flex: Target = Target(60_000, 1_000)
    scale: Target = Target(5_000, 250)
    priority: Target = Target(2_000, 150)
    fast: Target = Target(3_000, 200)
    ultrafast: Target = Target(1_000, 100)

    def __str__(self) -> str:
        """As `table_of` reads it."""
        return ", ".join(
            f"{tier}={target.ttft_ms:.15g}/{target.itl_ms:.15g}" for tier, target in structs.asdict(self).items()
        )

    def of(self, tier: str) -> Target:
        target = getattr(self, tier)
        assert isinstance(target, Target)
        return target


TIERS = TierTable.__struct_fields__
_FIGURES = Target.__struct_fields__


class Goal(NamedTuple):
    """What a request is to get: its tier, and seconds to the first token and from one token to the next."""

    tier: str
    ttft_s: float
    itl_s: float


class Tiers:
    """The table, and for some keys, by name, the best tier they may have, and the tightest targets (`floors`)."""

    def __init__(
        self,
        table: TierTable | None = None,
        best: Mapping[str, str] | None = None,
        floors: Mapping[str, Target] | None = None,
    ) -> None:
        self._table = table if table is not None else TierTable()
        self._best = dict(best or {})
        self._floors = dict(floors or {})

    def tier(self, service_tier: str | None, key: str = "") -> str:
        """The tier used: the one asked for, or the key's best where the one asked for is tighter than that."""
        tier = "default" if service_tier is None or service_tier == "auto" else service_tier
        best = self._best.get(key)
        if best is None:
            return tier
        asked, most = self._table.of(tier), self._table.of(best)
        return best if asked != most and most.no_tighter_than(asked) else tier

    def resolve(self, service_tier: str | None, ttft_ms: float | None, itl_ms: float | None, key: str = "") -> Goal:
        """The goal of a request: each figure of its own stands instead of its tier's, as far as its key allows."""
        tier = self.tier(service_tier, key)
        target = self._table.of(tier)
        ttft_ms = target.ttft_ms if ttft_ms is None else ttft_ms
        itl_ms = target.itl_ms if itl_ms is None else itl_ms
        if key in self._best:
            best = self._table.of(self._best[key])
            ttft_ms, itl_ms = max(ttft_ms, best.ttft_ms), max(itl_ms, best.itl_ms)
        if key in self._floors:
            floor = self._floors[key]
            ttft_ms, itl_ms = max(ttft_ms, floor.ttft_ms), max(itl_ms, floor.itl_ms)
        return Goal(tier, ttft_ms / 1000, itl_ms / 1000)


# --- reading the table -----------------------------------------------------------------------------------------------


def table_of(given: object) -> TierTable:
    """The table from text, from a list of texts, each TIER=TTFT_MS/ITL_MS, or from tables within a table.

    What is not named keeps its default. Raises TargetsError.
    """
    if isinstance(given, dict):
        return _merged({tier: _figures(tier, figures) for tier, figures in given.items()})
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise TargetsError(f"cannot be {given!r}: {_FORM}.")
    return _merged(dict(_tier_and_figures(part) for text in texts for part in _parts(text)))


def nearest_tier(name: str) -> str:
    """A sentence that helps whoever wrote the name of a tier that there is not."""
    near = ["default"] if name == "auto" else get_close_matches(name, TIERS, n=1, cutoff=0.5)
    return f"Did you mean {near[0]}?" if near else f"The tiers are {', '.join(TIERS)}."


_FORM = "a tier's targets are written TIER=TTFT_MS/ITL_MS, such as default=5000/250"


def _parts(text: object) -> list[str]:
    if not isinstance(text, str):
        raise TargetsError(f"cannot be {text!r}: {_FORM}.")
    return [part.strip() for part in text.split(",") if part.strip()]


def _tier_and_figures(text: str) -> tuple[str, dict[str, float]]:
    tier, _, figures = text.partition("=")
    try:
        ttft_ms, itl_ms = map(float, figures.split("/"))
    except ValueError:
        raise TargetsError(f"cannot be {text!r}: {_FORM}.") from None
    return tier.strip(), {"ttft_ms": ttft_ms, "itl_ms": itl_ms}


def _figures(tier: str, given: object) -> dict[str, object]:
    if not isinstance(given, dict):
        raise TargetsError(f"cannot have {tier} = {given!r}: write {tier} = {{ ttft_ms = 5000, itl_ms = 250 }}.")
    return given


def _merged(named: Mapping[str, Mapping[str, object]]) -> TierTable:
    """The defaults, with the figures that were named in their places."""
    table = TierTable()
    for tier, figures in named.items():
        if tier not in TIERS:
            raise TargetsError(f"has no tier {tier!r}. {nearest_tier(tier)}")
        read = {name: _figure(tier, name, value) for name, value in figures.items()}
        table = structs.replace(table, **{tier: structs.replace(table.of(tier), **read)})
    return table


def _figure(tier: str, name: str, value: object) -> float:
    if name not in _FIGURES:
        near = get_close_matches(name, _FIGURES, n=1, cutoff=0.5)
        advice = f"Did you mean {tier}.{near[0]}?" if near else f"A tier has {' and '.join(_FIGURES)}."
        raise TargetsError(f"has no {tier}.{name}. {advice}")
    # `true` is an int to Python, and TOML knows infinity.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        shown = f"{value:.15g}" if isinstance(value, float) else repr(value)
        raise TargetsError(f"cannot have {tier}.{name} = {shown}: it must be a number of milliseconds above 0.")
    return float(value)
