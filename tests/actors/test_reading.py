"""Whose bytes are read next: all who wait share the time of one turn, and whoever was read longest ago is first."""

import contextlib
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from actors.reading import TURN_S, Reading


class Loop:
    """Turns of it, one after the other, by a clock that only reading moves."""

    def __init__(self) -> None:
        self.now = 1.0
        self.due: list[Callable[[], None]] = []
        self.reading = Reading(self.due.append, clock=lambda: self.now)

    def turn(self) -> None:
        due, self.due[:] = list(self.due), []
        for work in due:
            work()

    def rest(self) -> int:
        """Until there is nothing to do. Returns how many turns that took."""
        turns = 0
        while self.due:
            self.turn()
            turns += 1
        return turns


class Place:
    def __init__(self, loop: Loop, name: str, pieces: int = 1, piece_s: float = TURN_S / 4) -> None:
        self.loop = loop
        self.name = name
        self.pieces = pieces
        self.piece_s = piece_s
        self.read_at = 0.0
        self.burden_s = 0.0
        self.read: list[str] = []

    def read_some(self) -> bool:
        self.read.append(self.name)
        self.loop.now += self.piece_s
        self.pieces -= 1
        return self.pieces > 0


def places(loop: Loop, *names: str, pieces: int = 1) -> list[Place]:
    """That write down in one list who was read."""
    all_of_them = [Place(loop, name, pieces) for name in names]
    for place in all_of_them:
        place.read = all_of_them[0].read
    return all_of_them


def test_what_is_little_is_read_at_once() -> None:
    loop = Loop()
    (place,) = places(loop, "a")
    loop.reading.come(place)
    assert place.read == ["a"]


def test_what_comes_later_waits_for_a_turn_though_there_is_time() -> None:
    loop = Loop()
    (place,) = places(loop, "a")
    loop.reading.wait(place)
    assert place.read == []
    loop.turn()
    assert place.read == ["a"]


def test_all_of_them_share_the_time_of_one_turn() -> None:
    loop = Loop()
    many = places(loop, *"abcdefgh", pieces=100)
    for place in many:
        loop.reading.wait(place)
    for _ in range(10):
        before = loop.now
        loop.turn()
        assert TURN_S / 2 < loop.now - before < TURN_S * 3 / 2
    reads = [many[0].read.count(name) for name in "abcdefgh"]
    assert max(reads) - min(reads) <= 1


def test_who_was_read_longest_ago_is_read_before_those_who_say_much() -> None:
    loop = Loop()
    *many, one = places(loop, *"abcdef", pieces=100)
    one.pieces = 1
    for place in many:
        loop.reading.come(place)
    for _ in range(5):
        loop.turn()
    so_far = len(one.read)
    loop.reading.come(one)
    assert one.read[so_far:] == [], "there is no time left"
    loop.turn()
    assert one.read[so_far] == one.name


def test_what_is_done_elsewhere_of_what_was_read_is_counted() -> None:
    loop = Loop()
    first, second = places(loop, "a", "b")
    loop.reading.come(first)
    loop.reading.spend(TURN_S)
    loop.reading.come(second)
    assert second.read == ["a"]
    loop.turn()
    assert second.read == ["a", "b"]


def test_one_that_fails_does_not_keep_the_others_from_being_read() -> None:
    loop = Loop()
    first, second, third = places(loop, "a", "b", "c")

    def fail() -> bool:
        raise RuntimeError("on purpose")

    first.read_some = fail  # type: ignore[method-assign]
    for place in (first, second, third):
        loop.reading.wait(place)
    with contextlib.suppress(RuntimeError):
        loop.turn()
    loop.rest()
    assert first.read == ["b", "c"]


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(TURN_S / 50, TURN_S * 3)), min_size=1, max_size=12))
def test_everything_is_read_and_no_turn_is_longer_than_its_time_and_a_piece(
    all_of_them: list[tuple[int, float]],
) -> None:
    loop = Loop()
    many = [Place(loop, str(n), pieces, piece_s) for n, (pieces, piece_s) in enumerate(all_of_them)]
    longest = max(piece_s for _, piece_s in all_of_them)
    for place in many:
        loop.reading.wait(place)
    while loop.due:
        before = loop.now
        loop.turn()
        assert loop.now - before <= TURN_S + longest + 1e-9
    assert [len(place.read) for place in many] == [pieces for pieces, _ in all_of_them]


def test_who_brings_little_goes_before_those_who_bring_much_until_they_have_waited_for_it() -> None:
    loop = Loop()
    late, little, *much = places(loop, "late", "little", "a", "b")
    for place in much:
        place.burden_s = 1.0
    loop.reading.spend(TURN_S)  # nobody is read in this turn any more
    for place in much:
        loop.reading.wait(place)
    little.read_at = 0.9
    loop.reading.wait(little)
    late.read_at = 2.1
    loop.reading.wait(late)
    loop.rest()
    assert little.read == ["little", "a", "b", "late"]
