"""How figures, times and requests are written in what `rota trace` says.

Knows numbers and names. Knows no lines and no causes.
"""

import time
from collections.abc import Iterable

from loadgen.comparison import span
from protocol.kinds import RequestId

_LEAST = 4
_PREFIX = "resp_"


class Names:
    """Of each request of a trace the shortest beginning that no other has. Others keep eight characters."""

    def __init__(self, requests: Iterable[RequestId] = ()) -> None:
        ordered = sorted(set(requests))
        self._short: dict[RequestId, str] = {}
        for index, request in enumerate(ordered):
            beside = ordered[max(0, index - 1) : index] + ordered[index + 1 : index + 2]
            least = len(_PREFIX) * request.startswith(_PREFIX) + _LEAST
            self._short[request] = request[: max([least, *(_common(request, other) + 1 for other in beside)])]

    def of(self, request: RequestId) -> str:
        return self._short.get(request) or request[: len(_PREFIX) * request.startswith(_PREFIX) + 2 * _LEAST]


def _common(one: str, other: str) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def brief(seconds: float | None) -> str:
    """The same where microseconds matter: most messages take few."""
    return f"{seconds * 1e6:.0f} µs" if seconds is not None and seconds < 0.000995 else span(seconds)


def clock(at: float) -> str:
    """Local time of day, in milliseconds."""
    whole_ms = round(at * 1e3)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole_ms // 1000))}.{whole_ms % 1000:03d}"


def day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


def share(part: float) -> str:
    """From 0 to 1, as `93 %`; 100 only when it is all."""
    if 0 < part < 0.005:
        return "<1 %"
    shown = f"{part * 100:.0f}"
    return "99 %" if shown == "100" and part < 1 - 1e-4 else f"{shown} %"


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 step`, `12,000 tokens`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
