"""How many are at the doors: limits in all, of an address, and of those who have said nothing yet."""

from actors.crowd import MOST_OF_AN_ADDRESS, Crowd, Watchers

PROXY = "10.0.0.1"


def crowd(most: int = 1000, of_an_address: int | None = None, knocking: int = 16) -> Crowd:
    return Crowd(most, of_an_address, knocking, lambda peer: peer == PROXY)


def test_of_one_address_an_eighth_may_knock_and_the_others_still_can() -> None:
    doors = crowd(knocking=16)
    assert [doors.knock("203.0.113.9") for _ in range(3)] == [True, True, False]
    assert doors.knock("203.0.113.10")
    doors.knocked("203.0.113.9")
    assert doors.knock("203.0.113.9")


def test_a_proxy_and_this_machine_knock_for_many() -> None:
    doors = crowd(knocking=16)
    assert all(doors.knock(peer) for peer in [PROXY] * 8 + ["127.0.0.1"] * 4 + ["::1"] * 4)
    assert not doors.knock(PROXY), "but for no more than all together may"


def test_whoever_was_turned_away_is_not_counted() -> None:
    doors = crowd(knocking=8)
    assert doors.knock("203.0.113.9")
    for _ in range(100):
        assert not doors.knock("203.0.113.9")
    doors.knocked("203.0.113.9")
    assert doors.knock("203.0.113.9")
    assert doors._knocking.total() == 1


def test_sockets_are_limited_in_all_and_of_an_address() -> None:
    doors = crowd(most=3, of_an_address=2)
    for address in ("203.0.113.9", "203.0.113.9"):
        assert doors.limit_reached(address) is None
        doors.enter(address)
    assert (
        doors.limit_reached("203.0.113.9") == "2 connections from your address are open, the most one address may have"
    )
    assert doors.limit_reached("203.0.113.10") is None
    doors.enter("203.0.113.10")
    assert doors.limit_reached("203.0.113.11") == "3 connections are open, the most this server takes"
    doors.leave("203.0.113.9")
    assert doors.limit_reached("203.0.113.9") is None


def test_this_machine_is_limited_only_when_it_is_set() -> None:
    doors = crowd()
    for _ in range(MOST_OF_AN_ADDRESS):
        doors.enter("127.0.0.1")
        doors.enter("203.0.113.9")
    assert doors.limit_reached("127.0.0.1") is None
    assert str(MOST_OF_AN_ADDRESS) in (doors.limit_reached("203.0.113.9") or "")
    doors = crowd(of_an_address=1)
    doors.enter("127.0.0.1")
    assert doors.limit_reached("127.0.0.1") == "1 connection from your address is open, the most one address may have"


def test_nothing_is_kept_of_whoever_has_gone() -> None:
    doors = crowd()
    doors.knock("203.0.113.9")
    doors.knocked("203.0.113.9")
    doors.enter("203.0.113.9")
    doors.leave("203.0.113.9")
    assert not doors._inside
    assert not doors._knocking


def test_one_key_leaves_as_many_places_to_watch_from_as_it_takes() -> None:
    watchers = Watchers(16)
    places = 0
    while not watchers.full("shop"):
        watchers.enter("shop")
        places += 1
    assert places == 8
    for _ in range(4):
        assert not watchers.full("blog")
        watchers.enter("blog")
    assert watchers.full("blog")
    assert not watchers.full("third")
    watchers.leave("shop")
    assert not watchers.full("blog")


def test_however_many_take_all_they_can_the_next_one_finds_a_place() -> None:
    watchers = Watchers(16)
    for key in ("a", "b", "c", "d"):
        while not watchers.full(key):
            watchers.enter(key)
        assert not watchers.full("another")


def test_where_no_key_is_needed_every_place_may_be_taken() -> None:
    watchers = Watchers(3)
    for _ in range(3):
        assert not watchers.full("")
        watchers.enter("")
    assert watchers.full("")
    watchers.leave("")
    assert not watchers.full("")
