"""Whose turn it is on one socket."""

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.lanes import Lanes, Refuse, Rejoin, Run, Turn, Withdraw
from protocol.errors import invalid_request
from protocol.responses import ResponseCreate

WRONG = invalid_request("That was wrong.")


def create(lane: str | None = None, name: str = "") -> ResponseCreate:
    return ResponseCreate(stream_id=lane, input=name)


def new_lanes(lanes: int = 8, running: int = 8, waiting: int = 8, size: int = 1_000) -> Lanes:
    return Lanes(lanes=lanes, running=running, waiting_per_lane=waiting, waiting_bytes=size)


def turns(lanes: Lanes) -> list[Turn]:
    found = []
    while (turn := lanes.next_turn()) is not None:
        found.append(turn)
    return found


def inputs(found: list[Turn]) -> list[object]:
    return [turn.create.input for turn in found if isinstance(turn, Run)]


def test_one_lane_runs_one_at_a_time_in_the_order_asked() -> None:
    lanes = new_lanes()
    for name in "abc":
        lanes.ask(create(name=name), 0.0, 1)
    assert inputs(turns(lanes)) == ["a"]
    lanes.ended(None)
    assert inputs(turns(lanes)) == ["b"]
    lanes.ended(None)
    assert inputs(turns(lanes)) == ["c"]
    lanes.ended(None)
    assert lanes.idle


def test_lanes_run_side_by_side() -> None:
    lanes = new_lanes()
    for lane in ("x", None, "y"):
        lanes.ask(create(lane, str(lane)), 0.0, 1)
    assert inputs(turns(lanes)) == ["x", "None", "y"]


def test_a_refusal_waits_for_the_end_of_the_response_before_it() -> None:
    lanes = new_lanes()
    lanes.ask(create(name="a"), 0.0, 1)
    lanes.refuse(None, WRONG)
    lanes.ask(create(name="b"), 0.0, 1)
    assert inputs(turns(lanes)) == ["a"]
    assert lanes.refusals == 1
    lanes.ended(None)
    assert turns(lanes) == [Refuse(None, WRONG), Run(create(name="b"), 0.0, 1)]
    assert lanes.refusals == 0


def test_a_refusal_on_an_idle_lane_is_said_at_once_and_leaves_no_lane_behind() -> None:
    lanes = new_lanes()
    lanes.refuse("x", WRONG)
    assert turns(lanes) == [Refuse("x", WRONG)]
    assert lanes.idle


def test_more_lanes_than_may_be_are_refused_by_name() -> None:
    lanes = new_lanes(lanes=2)
    for lane in "abc":
        lanes.ask(create(lane, lane), 0.0, 1)
    *_, refused = turns(lanes)
    assert isinstance(refused, Refuse)
    assert (refused.lane, refused.error.code) == ("c", "websocket_stream_limit_reached")
    lanes.ended("a")
    lanes.ask(create("c", "again"), 0.0, 1)
    assert inputs(turns(lanes)) == ["again"]


def test_more_requests_than_may_wait_on_a_lane_are_refused_in_their_place() -> None:
    lanes = new_lanes(waiting=2)
    for name in "rabx":
        lanes.ask(create(name=name), 0.0, 1)
        if name == "r":
            assert inputs(turns(lanes)) == ["r"]
    for name in "ab":
        lanes.ended(None)
        (turn, *rest) = turns(lanes)
        assert inputs([turn]) == [name]
        assert not rest
    lanes.ended(None)
    (refused,) = turns(lanes)
    assert isinstance(refused, Refuse)
    assert refused.error.code == "server_overloaded"


def test_when_enough_run_the_rest_wait_but_refusals_do_not() -> None:
    lanes = new_lanes(running=1)
    lanes.ask(create("a", "a"), 0.0, 1)
    lanes.ask(create("b", "b"), 0.0, 1)
    lanes.refuse("c", WRONG)
    assert turns(lanes) == [Run(create("a", "a"), 0.0, 1), Refuse("c", WRONG)]
    lanes.ended("a")
    assert inputs(turns(lanes)) == ["b"]


def test_whoever_has_a_deadline_does_not_wait_for_enough_to_end() -> None:
    lanes = new_lanes(running=1)
    for name in "ab":
        lanes.ask(create(name, name), 0.0, 1)
    hurried = ResponseCreate(stream_id="c", input="c", deadline_ms=300.0)
    lanes.ask(hurried, 0.0, 1)
    assert inputs(turns(lanes)) == ["a", "c"]
    lanes.ask(hurried, 0.0, 1)
    assert turns(lanes) == [], "its own lane answers one after the other"
    lanes.ended("a")
    assert turns(lanes) == [], "c counts among those that run"
    lanes.ended("c")
    assert inputs(turns(lanes)) == ["b", "c"]


def test_lanes_take_turns_when_few_may_run() -> None:
    lanes = new_lanes(running=1)
    for lane in "ab":
        for number in "123":
            lanes.ask(create(lane, lane + number), 0.0, 1)
    order = []
    while found := inputs(turns(lanes)):
        order += found
        lanes.ended(str(found[0])[0])
    assert order == ["a1", "b1", "a2", "b2", "a3", "b3"]


def test_more_bytes_than_may_wait_are_refused_on_every_lane() -> None:
    lanes = new_lanes(size=10)
    lanes.ask(create("a", "runs"), 0.0, 10)
    assert inputs(turns(lanes)) == ["runs"]
    lanes.ask(create("a", "waits"), 0.0, 6)
    lanes.ask(create("b", "too big"), 0.0, 5)
    (refused,) = turns(lanes)
    assert isinstance(refused, Refuse)
    assert (refused.lane, refused.error.code) == ("b", "server_overloaded")
    assert "5 bytes and 6 bytes" in refused.error.message
    lanes.ask(create("b", "fits"), 0.0, 4)
    assert inputs(turns(lanes)) == ["fits"]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "ask", "ask", "withdraw", "end", "clear"]), st.integers(0, 7)), max_size=60
    )
)
def test_a_request_is_refused_for_its_size_exactly_when_the_rest_leaves_no_room(script: list[tuple[str, int]]) -> None:
    lanes = new_lanes(lanes=100, running=2, waiting=100, size=6)
    waiting: list[int] = []
    running: list[str | None] = []
    for what, number in script:
        lane = "abc"[number % 3]
        match what:
            case "ask":
                refusals = lanes.refusals
                lanes.ask(create(lane), 0.0, number)
                assert (lanes.refusals > refusals) == (sum(waiting) + number > 6)
                if lanes.refusals == refusals:
                    waiting.append(number)
            case "withdraw":
                lanes.withdraw(lane)
            case "end" if running:
                lanes.ended(running.pop(0))
            case "clear":
                lanes.clear()
                waiting.clear()
        for turn in turns(lanes):
            if not isinstance(turn, Refuse):
                waiting.remove(turn.size)
            if isinstance(turn, Run):
                running.append(turn.create.stream_id)


def test_withdrawn_requests_keep_their_turn_and_later_ones_run() -> None:
    lanes = new_lanes()
    for name in "abc":
        lanes.ask(create(name=name), 0.0, 1)
    assert inputs(turns(lanes)) == ["a"]
    lanes.withdraw(None)
    lanes.ask(create(name="d"), 1.0, 1)
    assert turns(lanes) == []
    lanes.ended(None)
    assert turns(lanes) == [
        Withdraw(create(name="b"), 0.0, 1),
        Withdraw(create(name="c"), 0.0, 1),
        Run(create(name="d"), 1.0, 1),
    ]


def test_withdrawing_from_a_lane_that_is_not_there_does_nothing() -> None:
    lanes = new_lanes()
    lanes.withdraw("x")
    assert lanes.idle


def test_clear_forgets_those_who_wait_and_keeps_what_runs() -> None:
    lanes = new_lanes(running=1)
    lanes.ask(create("a", "a"), 0.0, 1)
    lanes.ask(create("a", "b"), 0.0, 1)
    lanes.ask(create("c", "c"), 0.0, 1)
    assert inputs(turns(lanes)) == ["a"]
    lanes.clear()
    assert turns(lanes) == []
    assert not lanes.idle
    lanes.ended("a")
    assert lanes.idle


operations = st.lists(
    st.tuples(st.sampled_from(["ask", "refuse", "withdraw", "end"]), st.sampled_from([None, "a", "b", "c", "d"])),
    max_size=60,
)


@settings(deadline=None)
@given(operations)
def test_every_request_gets_one_turn_in_the_order_of_its_lane(script: list[tuple[str, str | None]]) -> None:
    lanes = new_lanes(lanes=3, running=2, waiting=3)
    asked: dict[str | None, list[float]] = {}
    answered: dict[str | None, list[float]] = {}
    running: list[str | None] = []

    def settle() -> None:
        while (turn := lanes.next_turn()) is not None:
            match turn:
                case Run(create=made, received_at=at):
                    assert made.stream_id not in running
                    running.append(made.stream_id)
                    answered.setdefault(made.stream_id, []).append(at)
                case Withdraw(create=made, received_at=at):
                    assert made.stream_id not in running
                    answered.setdefault(made.stream_id, []).append(at)
                case Refuse(lane=lane, error=error):
                    assert lane not in running
                    if error.code == "invalid_request_error":
                        answered.setdefault(lane, []).append(float(error.param or "nan"))
        assert len(running) <= 2
        assert len(lanes) <= 3

    for number, (what, lane) in enumerate(script):
        match what:
            case "ask":
                before = lanes.refusals
                lanes.ask(create(lane), float(number), 1)
                if lanes.refusals == before:
                    asked.setdefault(lane, []).append(float(number))
            case "refuse":
                lanes.refuse(lane, invalid_request("no", str(number)))
                asked.setdefault(lane, []).append(float(number))
            case "withdraw":
                lanes.withdraw(lane)
            case "end" if running:
                lanes.ended(running.pop(0))
        settle()
    while running:
        lanes.ended(running.pop())
        settle()
    assert answered == asked
    assert lanes.idle
    assert lanes.refusals == 0


def test_a_response_that_goes_on_takes_its_place_in_its_lane_like_a_request() -> None:
    lanes = new_lanes(running=1)
    again = Rejoin("a", "resp_1", 4, 10)
    lanes.ask(create("a", "first"), 0.0, 1)
    lanes.rejoin(again)
    lanes.ask(create("a", "second"), 0.0, 1)
    assert inputs(turns(lanes)) == ["first"]
    lanes.ended("a")
    assert turns(lanes) == [again]
    assert turns(lanes) == [], "the lane is taken"
    lanes.ended("a")
    assert inputs(turns(lanes)) == ["second"]


def test_a_response_that_goes_on_counts_among_those_that_run_and_those_that_wait() -> None:
    lanes = new_lanes(running=1, waiting=1)
    lanes.ask(create("a", "first"), 0.0, 1)
    lanes.rejoin(Rejoin("b", "resp_1", 4, 10))
    lanes.rejoin(Rejoin("b", "resp_2", 4, 10))
    assert inputs(turns(lanes)) == ["first"]
    assert lanes.refusals == 1
    lanes.ended("a")
    assert [type(turn) for turn in turns(lanes)] == [Rejoin]


def test_one_that_is_cancelled_while_it_waits_still_has_its_turn() -> None:
    lanes = new_lanes()
    lanes.ask(create("a"), 0.0, 1)
    turns(lanes)
    lanes.rejoin(Rejoin("a", "resp_1", 4, 10))
    lanes.withdraw("a")
    lanes.ended("a")
    assert turns(lanes) == [Rejoin("a", "resp_1", 4, 10, cancelled=True)]
