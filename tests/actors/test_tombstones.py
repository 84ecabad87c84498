from actors.tombstones import Tombstones


def test_a_request_behind_its_own_cancel_rises_once() -> None:
    stones = Tombstones()
    stones.bury("a", 0.0)
    assert stones.rises("a")
    assert not stones.rises("a")
    assert not stones.rises("never cancelled")


def test_ids_that_never_arrive_are_dropped_by_age() -> None:
    stones = Tombstones(kept_s=60.0)
    stones.bury("old", 0.0)
    stones.bury("young", 30.0)
    stones.sweep(60.0)
    assert len(stones) == 1
    assert stones.rises("young")


def test_there_are_at_most_so_many_and_the_oldest_go_first() -> None:
    stones = Tombstones(capacity=2)
    for at, request in enumerate("abc"):
        stones.bury(request, at)
    assert len(stones) == 2
    assert [stones.rises(request) for request in "abc"] == [False, True, True]


def test_a_repeated_cancel_makes_no_second_stone_and_renews_the_first() -> None:
    stones = Tombstones(capacity=2)
    stones.bury("a", 0.0)
    stones.bury("b", 1.0)
    stones.bury("a", 2.0)
    stones.bury("c", 3.0)
    assert [stones.rises(request) for request in "abc"] == [True, False, True], "b was the oldest"
