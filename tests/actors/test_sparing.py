"""What the log is told of seldom."""

from actors.sparing import EVERY_S, Sparing


def test_the_first_is_told_at_once_and_then_one_a_minute_with_how_many_came() -> None:
    sparing = Sparing()
    assert sparing.count("a", 100.0) == 1
    assert [sparing.count("a", 100.0 + second) for second in range(5)] == [None] * 5
    assert sparing.count("b", 101.0) == 1, "each kind by itself"
    assert sparing.count("a", 100.0 + EVERY_S) == 6
    assert sparing.count("a", 100.0 + EVERY_S) is None
    assert sparing.count("a", 1_000.0) == 2
