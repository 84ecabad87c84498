"""Which of many requests are drawn: those around the first that missed, or where most came at once."""

from collections.abc import Callable

from loadgen.picture_choice import chosen
from protocol.timeline import Life, Timeline, Turn


def lives(count: int, arrived_s: Callable[[int], float] = float, missed: int | None = None) -> tuple[Life, ...]:
    def one(index: int) -> Life:
        came_s = arrived_s(index)
        return Life(f"r{index}", 10, came_s, 5.0, 0.25, token_times=(came_s + 1,), finished=index != missed)

    return tuple(map(one, range(count)))


def names(timeline: Timeline) -> list[str]:
    return [life.name for life in timeline.lives]


def test_they_are_those_around_the_first_that_missed_the_same_under_every_policy() -> None:
    fine, missing = Timeline("slack", lives(100)), Timeline("fixed_chunk", lives(100, missed=50))
    some, caption = chosen([fine, missing], 20)
    assert [names(each) for each in some] == [[f"r{index}" for index in range(40, 60)]] * 2
    assert (
        caption == "20 of 100 requests, from number 41 on: around the first that missed its targets under fixed_chunk"
    )


def test_at_either_end_there_are_as_many() -> None:
    for missed, first in ((0, 0), (3, 0), (99, 80)):
        (some,), _ = chosen([Timeline("slack", lives(100, missed=missed))], 20)
        assert names(some) == [f"r{index}" for index in range(first, first + 20)]


def test_when_nobody_missed_they_are_the_busiest() -> None:
    def came(index: int) -> float:
        return index if index < 30 else 30 + (index - 30) * 0.1 if index < 55 else index + 100.0

    (some,), caption = chosen([Timeline("slack", lives(100, came))], 20)
    assert set(names(some)) <= {f"r{index}" for index in range(30, 55)}
    assert caption.endswith(": the busiest")


def test_steps_are_told_by_the_places_of_those_chosen() -> None:
    turns = (Turn(0.0, 1.0, ((5, 100), (42, 7))), Turn(1.0, 2.0, (), (42,)))
    (some,), _ = chosen([Timeline("slack", lives(100, missed=50), turns)], 20)
    assert [turn.prefills for turn in some.turns] == [((2, 7),), ()]
