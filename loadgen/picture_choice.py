"""Which of many requests are drawn a row each: those around the first that missed its targets, or the busiest.

Knows timelines and their order. Draws nothing.
"""

from collections.abc import Sequence

from protocol.timeline import Timeline, Turn

BEFORE = 10
"""So many that came before the one that missed: what it met with."""


def chosen(timelines: Sequence[Timeline], most: int) -> tuple[Sequence[Timeline], str]:
    """The same `most` requests of each timeline, and a caption that says which they are."""
    everybody = max(len(timeline.lives) for timeline in timelines)
    missed = next((found for timeline in timelines if (found := _first_missed(timeline)) is not None), None)
    if missed is None:
        first, why = _busiest(timelines[0], most), "the busiest"
    else:
        index, policy = missed
        first, why = index - BEFORE, f"around the first that missed its targets under {policy}"
    first = max(0, min(first, everybody - most))
    some = [
        Timeline(timeline.policy, timeline.lives[first : first + most], _of_these(timeline.turns, first, most))
        for timeline in timelines
    ]
    return some, f"{most} of {everybody:,} requests, from number {first + 1:,} on: {why}"


def _first_missed(timeline: Timeline) -> tuple[int, str] | None:
    index = next((index for index, life in enumerate(timeline.lives) if not life.met), None)
    return None if index is None else (index, timeline.policy)


def _busiest(timeline: Timeline, most: int) -> int:
    """Where so many come within the shortest time."""
    came = [life.arrived_s for life in timeline.lives]
    spans = [abs(last_s - first_s) for first_s, last_s in zip(came, came[most - 1 :], strict=False)]
    return spans.index(min(spans)) if spans else 0


def _of_these(turns: Sequence[Turn], first: int, most: int) -> tuple[Turn, ...]:
    """The steps, with what they read of these requests; nobody's decode rows are drawn from them."""
    return tuple(
        Turn(
            turn.start_s,
            turn.end_s,
            tuple((index - first, tokens) for index, tokens in turn.prefills if first <= index < first + most),
        )
        for turn in turns
    )
