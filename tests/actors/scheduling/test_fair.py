"""Virtual counters: whoever has had least is next, and nobody saves up turns."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from actors.scheduling.fair import MOST_AWAY, VirtualCounters


def nobody_first(client: str) -> float:
    return 0.0


class Service:
    """Clients of which two requests always wait; one is served at a time, of whoever has the least counter."""

    def __init__(self, *clients: str) -> None:
        self.counters: VirtualCounters[str] = VirtualCounters()
        self.here: list[str] = []
        self.served: Counter[str] = Counter()
        for client in clients:
            self.come(client)

    def come(self, client: str) -> None:
        self.counters.arrive(client)
        self.counters.arrive(client)
        self.here.append(client)

    def leave(self, client: str) -> None:
        self.counters.leave(client)
        self.counters.leave(client)
        self.here.remove(client)

    def serve(self, work: int, truth: int | None = None) -> str:
        """The next one: it is charged `work`, takes `truth`, and another comes for it. Who it was."""
        client = self.counters.least(self.here, nobody_first)
        assert client is not None
        self.counters.begin(client, work)
        self.counters.arrive(client)
        took = work if truth is None else truth
        self.counters.end(client, took - work)
        self.served[client] += took
        return client


def test_whoever_has_had_least_is_next() -> None:
    service = Service("a", "b", "c")
    assert [service.serve(work) for work in (30, 10, 20, 10, 5, 5)] == ["a", "b", "c", "b", "b", "c"]


def test_among_equals_the_tie_decides() -> None:
    counters: VirtualCounters[str] = VirtualCounters()
    for client in "abc":
        counters.arrive(client)
    assert counters.least("abc", {"a": 3.0, "b": 1.0, "c": 2.0}.__getitem__) == "b"
    assert counters.least("ac", {"a": 3.0, "b": 1.0, "c": 2.0}.__getitem__) == "c"
    assert counters.least("", nobody_first) is None


@given(clients=st.integers(2, 5), works=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=200))
def test_among_those_who_always_wait_nobody_is_ahead_by_more_than_a_request(
    clients: int, works: list[tuple[int, int]]
) -> None:
    """Twice the largest: what was charged, or what it took in truth, of the last one of each."""
    service = Service(*"abcde"[:clients])
    for charged, took in works:
        service.serve(charged, took)
        most, least = max(service.served[one] for one in service.here), min(service.served[one] for one in service.here)
        assert most - least <= 2 * 50


@given(
    works=st.lists(st.integers(1, 50), min_size=1, max_size=100),
    after=st.lists(st.integers(1, 50), min_size=1, max_size=50),
    has_been_here=st.booleans(),
)
def test_whoever_comes_or_comes_back_has_no_turns_saved_up(
    works: list[int], after: list[int], has_been_here: bool
) -> None:
    service = Service("a", "b")
    if has_been_here:
        service.come("c")
        service.leave("c")
    for work in works:
        service.serve(work)
    service.come("c")
    before = Counter(service.served)
    for work in after:
        service.serve(work)
        since = service.served - before
        assert since["c"] <= min(since["a"], since["b"]) + 2 * 50


def test_whoever_comes_when_nobody_waits_starts_where_the_last_one_was() -> None:
    counters: VirtualCounters[str] = VirtualCounters()
    counters.arrive("a")
    counters.begin("a", 70)
    counters.arrive("a")
    counters.begin("a", 5)
    counters.arrive("b")
    assert counters.counter("b") == 70
    assert counters.counter("a") == 75


def test_whoever_has_something_running_keeps_its_counter() -> None:
    counters: VirtualCounters[str] = VirtualCounters()
    counters.arrive("a")
    counters.begin("a", 500)
    counters.arrive("b")
    counters.arrive("a")
    assert (counters.counter("a"), counters.counter("b")) == (500, 0)
    assert (counters.running("a"), counters.waiting("a"), counters.running("b"), counters.waiting("b")) == (1, 1, 0, 1)


def test_what_a_request_took_in_truth_is_what_counts() -> None:
    counters: VirtualCounters[str] = VirtualCounters()
    for client in "ab":
        counters.arrive(client)
        counters.arrive(client)
    for client, truth in (("a", 20), ("b", 400)):
        counters.begin(client, 100)
        counters.end(client, truth - 100)
    assert (counters.counter("a"), counters.counter("b")) == (20, 400)


def test_a_client_that_asks_again_only_after_each_answer_is_charged_for_them_all_the_same() -> None:
    """`a` has one long request at a time, and nothing of it waits or runs between two of them; `b` always waits."""
    counters: VirtualCounters[str] = VirtualCounters()
    served: Counter[str] = Counter()
    since = {"a": 0, "b": 0}
    counters.arrive("a")
    counters.arrive("b")
    for turn in range(1, 400):
        client = counters.least("ab", since.__getitem__)
        assert client is not None
        work = {"a": 1000, "b": 10}[client]
        counters.begin(client, work)
        if client == "b":
            counters.arrive("b")
        counters.end(client, 0)
        if client == "a":
            counters.arrive("a")
        since[client] = turn
        served[client] += work
    assert abs(served["a"] - served["b"]) <= 2 * 1000


def test_whoever_is_away_is_remembered_until_the_others_have_had_as_much() -> None:
    counters: VirtualCounters[str] = VirtualCounters()
    counters.arrive("a")
    counters.arrive("a")
    counters.begin("a", 10)
    counters.leave("a")
    counters.end("a", 0)
    assert counters.idle
    assert (counters.running("a"), counters.waiting("a")) == (0, 0)
    for _ in range(2):
        assert "a" in counters
        counters.arrive("b")
        counters.begin("b", 10)
        counters.end("b", 0)
    assert "a" not in counters


def test_only_so_many_are_remembered() -> None:
    counters: VirtualCounters[int] = VirtualCounters()
    for client in range(MOST_AWAY + 10):
        counters.arrive(client)
    for client in range(MOST_AWAY + 10):
        counters.begin(client, 10)
        counters.end(client, 0)
    assert [client in counters for client in (0, 9, 10, MOST_AWAY)] == [False, False, True, True]
