"""Which responses can be resumed, by whom, and how many are kept that nobody reads."""

from actors.resumables import Berth, Resumables, Room

FEW, SOME = Room(2, 100), Room(3, 100)


def book(*requests: str, per_key: Room = FEW, in_all: Room = SOME, tenant: str = "anna") -> Resumables:
    resumables = Resumables(per_key=per_key, in_all=in_all)
    for request in requests:
        resumables.add(tenant, request, 1, "a")
    return resumables


def test_a_response_is_found_under_its_own_key_only() -> None:
    resumables = book("r")
    assert resumables.find("anna", "r") == Berth(1, "a")
    assert resumables.find("ben", "r") is None
    resumables.remove("anna", "r")
    resumables.remove("anna", "r")
    assert resumables.find("anna", "r") is None
    assert len(resumables) == 0


def test_no_more_are_kept_of_a_key_than_may_be() -> None:
    resumables = book("r", "s", "t")
    assert resumables.leave_unread("anna", "r", 1, over=False) == (True, ())
    assert resumables.leave_unread("anna", "s", 1, over=False) == (True, ())
    assert resumables.leave_unread("anna", "t", 1, over=False) == (False, ())
    assert resumables.leave_unread("anna", "s", 1, over=False) == (True, ()), "it has its place"
    resumables.read("anna", "r")
    assert resumables.leave_unread("anna", "t", 1, over=False) == (True, ())
    assert resumables.unread == 2


def test_one_that_has_had_its_end_gives_way_to_whoever_comes_after_it() -> None:
    resumables = book("r", "s", "t")
    resumables.leave_unread("anna", "r", 1, over=False)
    resumables.leave_unread("anna", "s", 1, over=True)
    assert resumables.leave_unread("anna", "t", 1, over=False) == (True, ("s",))
    assert resumables.unread == 2


def test_keys_do_not_push_out_one_another_s() -> None:
    resumables = book("r", "s")
    resumables.add("ben", "t", 2, None)
    resumables.add("cleo", "u", 3, None)
    for request in ("r", "s"):
        assert resumables.leave_unread("anna", request, 1, over=True) == (True, ())
    assert resumables.leave_unread("ben", "t", 1, over=False) == (True, ())
    assert resumables.leave_unread("cleo", "u", 1, over=False) == (False, ()), "there are as many as there may be"
    resumables.remove("anna", "r")
    assert resumables.leave_unread("cleo", "u", 1, over=False) == (True, ())


# --- in bytes --------------------------------------------------------------------------------------------------------


def test_no_more_bytes_are_kept_of_a_key_than_may_be_and_as_many_give_way_as_need_be() -> None:
    resumables = book("r", "s", "t", "u", per_key=Room(9, 100), in_all=Room(9, 1000))
    for request, size in (("r", 40), ("s", 30), ("t", 30)):
        assert resumables.leave_unread("anna", request, size, over=True) == (True, ())
    assert resumables.leave_unread("anna", "u", 50, over=False) == (True, ("r", "s"))
    assert resumables.unread == 2
    assert resumables.leave_unread("anna", "r", 101, over=False) == (False, ()), "it is more than may be kept at all"
    assert resumables.unread == 2, "and nothing gave way in vain"


def test_what_is_read_again_or_gone_leaves_its_bytes_to_others() -> None:
    resumables = book("r", "s", "t", per_key=Room(9, 100), in_all=Room(9, 150))
    resumables.add("ben", "u", 2, None)
    resumables.leave_unread("anna", "r", 90, over=False)
    assert resumables.leave_unread("anna", "s", 90, over=False) == (False, ())
    assert resumables.leave_unread("ben", "u", 90, over=False) == (False, ()), "there is as much as there may be"
    resumables.read("anna", "r")
    assert resumables.leave_unread("ben", "u", 60, over=False) == (True, ())
    assert resumables.leave_unread("anna", "s", 90, over=False) == (True, ())
    resumables.remove("anna", "s")
    assert resumables.leave_unread("anna", "t", 90, over=False) == (True, ())
