"""The people of a scenario: the same for the same seed everywhere, and as many of each kind as the file says."""

import hashlib
import math
import statistics
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from protocol.distributions import Drawn
from protocol.groups import Group
from protocol.people import Person, Question, offered_per_s, people
from protocol.scenario import Arrival, Scenario, crowd, read_scenario, scaled, shipped

CHAT = Group(
    name="chat",
    count=200,
    arrive="poisson",
    rate=2.0,
    questions=Drawn(from_=1, to=4),
    think_s=Drawn(mean=5.0),
    prompt_tokens=Drawn(median=80, spread=0.7, most=600),
    output_tokens=Drawn(from_=10, to=99),
    leave=0.25,
    leave_after_s=Drawn(from_=0.5, to=3.0),
    come_back=0.5,
    come_back_s=2.0,
    read_slowly=0.1,
    chunks_per_s=4.0,
    reconnect=0.05,
)
OTHERS = Group(name="others", count=50, arrive="gamma", rate=1.0, burstiness=2.0, prompt_tokens=9, output_tokens=9)


def of(*groups: Group, seed: int = 0, arrivals: tuple[Arrival, ...] = ()) -> Scenario:
    return Scenario("s", arrivals, people=groups, seed=seed)


def named(scenario: Scenario, group: str) -> list[Person]:
    return [person for person in people(scenario) if person.group == group]


# -- the same, and not the same


def test_these_are_the_people_of_this_scenario_on_every_machine_and_python() -> None:
    """A change here is a change of every scenario that anybody has measured with: say so in the commit."""
    drawn = msgspec.json.encode(people(of(CHAT, OTHERS, seed=7)))
    assert hashlib.sha256(drawn).hexdigest() == "3d10ba7fde44c1484f48caa747be4c04b1cfe3d9da2140e3b2f77c7c024ef8b0"


def test_the_same_seed_is_the_same_people_and_another_is_not() -> None:
    assert people(of(CHAT, seed=3)) == people(of(CHAT, seed=3)) == people(of(CHAT), seed=3)
    first, other = people(of(CHAT)), people(of(CHAT, seed=1))
    assert [person.at_s for person in first] != [person.at_s for person in other]
    assert [person.questions for person in first] != [person.questions for person in other]


def test_a_group_does_not_depend_on_the_others() -> None:
    alone = named(of(CHAT), "chat")
    assert named(of(OTHERS, CHAT), "chat") == alone
    assert named(of(CHAT, structs.replace(OTHERS, count=7)), "chat") == alone


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"rate": 5.0}, {"at_s"}),
        ({"arrive": "gamma", "burstiness": 3.0}, {"at_s"}),
        ({"think_s": 1.0}, {"questions"}),
        ({"read_slowly": 0.3}, {"reads_chunks_per_s"}),
        ({"reconnect": 0.5}, {"reconnects"}),
        ({"leave_after_s": 1.0}, {"leaves_after_s"}),
        ({"come_back": 0.9}, {"comes_back_s"}),
        ({"itl_target_s": 0.1}, {"itl_target_s"}),
    ],
)
def test_changing_one_property_draws_nothing_else_anew(change: dict[str, object], fields: set[str]) -> None:
    before, after = people(of(CHAT)), people(of(structs.replace(CHAT, **change)))
    changed = {
        name
        for one, other in zip(before, after, strict=True)
        for name in Person.__struct_fields__
        if getattr(one, name) != getattr(other, name)
    }
    assert changed == fields


def test_longer_answers_leave_prompts_and_thoughts_as_they_were() -> None:
    before, after = people(of(CHAT)), people(of(structs.replace(CHAT, output_tokens=7)))
    for one, other in zip(before, after, strict=True):
        assert other.questions == tuple(structs.replace(question, output_tokens=7) for question in one.questions)


def test_more_people_are_the_same_and_some_more() -> None:
    quiet = structs.replace(CHAT, come_back=0.0, come_back_s=None, read_slowly=0.0, chunks_per_s=None, reconnect=0.0)
    quiet = structs.replace(quiet, leave=0.0, leave_after_s=None)
    assert people(of(structs.replace(quiet, count=300)))[:200] == people(of(quiet))


# -- as the file says


def test_shares_are_kept_exactly() -> None:
    found = people(of(CHAT))
    leaving = [person for person in found if person.leaves_after_s is not None]
    assert len(leaving) == 50
    assert len([person for person in leaving if person.comes_back_s == 2.0]) == 25
    assert not any(person.comes_back_s for person in found if person.leaves_after_s is None)
    assert len([person for person in found if person.reads_chunks_per_s == 4.0]) == 20
    assert len([person for person in found if person.reconnects]) == 10
    assert all(0.5 <= (person.leaves_after_s or 0.0) <= 3.0 for person in leaving)


@pytest.mark.parametrize(("share", "of_ten"), [(0.0, 0), (0.04, 0), (0.05, 1), (0.34, 3), (0.96, 10), (1.0, 10)])
def test_of_a_few_people_the_nearest_whole_number_does(share: float, of_ten: int) -> None:
    few = structs.replace(CHAT, count=10, reconnect=share)
    assert sum(person.reconnects for person in people(of(few))) == of_ten


def test_a_greater_share_is_the_same_people_and_some_more() -> None:
    def leaving(share: float) -> set[str]:
        found = people(of(structs.replace(CHAT, leave=share)))
        return {person.name for person in found if person.leaves_after_s is not None}

    assert leaving(0.2) < leaving(0.3)


def test_they_leave_after_pieces_of_text_where_the_file_says_so() -> None:
    group = structs.replace(CHAT, leave_after_s=None, leave_after_chunks=Drawn(from_=2, to=5))
    after = {person.leaves_after_chunks for person in people(of(group))}
    assert after == {None, 2, 3, 4, 5}
    assert {person.leaves_after_s for person in people(of(group))} == {None}


def test_questions_thoughts_and_tokens_are_within_their_bounds() -> None:
    found = people(of(CHAT))
    assert {len(person.questions) for person in found} == {1, 2, 3, 4}
    assert {person.questions[0].think_s for person in found} == {0.0}
    later = [question for person in found for question in person.questions[1:]]
    assert statistics.mean(question.think_s for question in later) == pytest.approx(5.0, rel=0.15)
    assert all(1 <= question.prompt_tokens <= 600 and 10 <= question.output_tokens <= 99 for question in later)


def test_everybody_has_the_targets_and_the_tier_of_the_group_or_else_the_scenarios() -> None:
    group = structs.replace(OTHERS, service_tier="flex", itl_target_s=0.5, remember=False)
    for person in people(structs.replace(of(group), ttft_target_s=3.0)):
        assert (person.ttft_target_s, person.itl_target_s, person.service_tier) == (3.0, 0.5, "flex")
        assert not person.remembers


# -- when they come


def test_they_come_in_order_and_are_numbered_as_they_come() -> None:
    found = named(of(CHAT, OTHERS), "chat")
    assert [person.name for person in found] == [f"chat {number}" for number in range(1, 201)]
    times = [person.at_s for person in people(of(CHAT, OTHERS))]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("arrive", "burstiness", "variation"),
    [("fixed", None, 0.0), ("poisson", None, 1.0), ("gamma", 0.3, 0.3), ("gamma", 1.0, 1.0), ("gamma", 3.0, 3.0)],
)
def test_the_rate_is_right_on_average_and_the_gaps_vary_as_asked(
    arrive: str, burstiness: float | None, variation: float
) -> None:
    found = people(
        crowd(count=40_000, arrive=arrive, rate=4.0, burstiness=burstiness, prompt_tokens=1, output_tokens=1)
    )
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(found)]
    assert found[0].at_s == 0.0
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.04)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.05, abs=1e-3)
    assert offered_per_s(found) == pytest.approx(1 / statistics.mean(gaps))


def test_a_group_begins_when_it_is_told_to() -> None:
    late = structs.replace(OTHERS, start_s=30.0)
    assert named(of(late), "others")[0].at_s == 30.0
    together = crowd(count=3, start_s=2.0, prompt_tokens=1, output_tokens=1)
    assert [person.at_s for person in people(together)] == [2.0] * 3


def test_all_at_once_is_no_rate() -> None:
    assert offered_per_s(people(crowd(count=3, prompt_tokens=1, output_tokens=1))) is None
    assert offered_per_s(people(of(arrivals=(Arrival("A", 1, 1), Arrival("B", 1, 1, at_s=2.0, after=("A",)))))) is None
    assert offered_per_s(()) is None


@pytest.mark.parametrize("arrive", ["fixed", "poisson", "gamma"])
def test_twice_as_fast_they_are_the_same_people_at_half_the_times(arrive: str) -> None:
    burstiness = 2.0 if arrive == "gamma" else None
    group = structs.replace(CHAT, arrive=arrive, burstiness=burstiness, start_s=8.0)
    arrivals = (Arrival("A", 1, 1, at_s=4.0), Arrival("B", 1, 1, at_s=1.0, after=("A",)))
    before, after = people(of(group, arrivals=arrivals)), people(scaled(of(group, arrivals=arrivals), 2.0))
    assert [person.name for person in after] == [person.name for person in before]
    for one, other in zip(before, after, strict=True):
        assert other.at_s == pytest.approx(one.at_s if one.after else one.at_s / 2, abs=2e-6)
        assert structs.replace(other, at_s=one.at_s) == one


def test_those_who_come_together_still_do_when_all_is_faster() -> None:
    together = crowd(count=2, start_s=3.0, prompt_tokens=1, output_tokens=1)
    assert [person.at_s for person in people(scaled(together, 3.0))] == [1.0, 1.0]


# -- arrivals, traces, sockets


def test_an_arrival_is_a_person_with_one_question() -> None:
    b = Arrival("B", 12_000, 256, at_s=0.5, after=("A",), client="c", service_tier="priority", ttft_target_s=60.0)
    scenario = Scenario("s", (b, Arrival("A", 200, 128, at_s=1.0)), itl_target_s=math.inf)
    assert people(scenario) == (
        Person("A", (Question(200, 128),), 1.0, ttft_target_s=5.0),
        Person("B", (Question(12_000, 256),), 0.5, ("A",), client="c", service_tier="priority", ttft_target_s=60.0),
    )


def test_people_of_a_trace_come_and_ask_as_it_says(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:15:{second:02},{100 * second},{10 * second}\n" for second in (10, 12, 18, 20))
    (tmp_path / "t.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[people]]\nname = "t"\narrive = "trace"\ntrace = "t.csv"\nfirst = 1\ncount = 2\nrate = 2\ntokens = 0.5\n'
        "start_s = 5\nleave = 0.5\nleave_after_s = 1\n"
    )
    scenario = read_scenario(file)
    assert [(person.name, person.at_s, person.questions) for person in people(scenario)] == [
        ("t 1", 5.0, (Question(600, 60),)),
        ("t 2", 8.0, (Question(900, 90),)),
    ]
    assert sum(person.leaves_after_s is not None for person in people(scenario)) == 1
    assert [person.at_s for person in people(scaled(scenario, 2.0))] == [2.5, 4.0]
    file.write_text('[[people]]\nname = "t"\narrive = "trace"\ntrace = "t.csv"\n')
    assert read_scenario(file).people[0].count == 4, "all that it has"
    assert len(people(read_scenario(file))) == 4


def test_shared_sockets_are_taken_in_turn_and_a_client_of_ones_own_is_kept() -> None:
    arrivals = (Arrival("A", 1, 1, client="mine"),)
    scenario = structs.replace(of(structs.replace(OTHERS, count=5), arrivals=arrivals), sockets=2)
    clients = [person.client for person in people(scenario) if person.group]
    assert clients == ["socket 1", "socket 2", "socket 1", "socket 2", "socket 1"]
    assert [person.client for person in people(scenario) if not person.group] == ["mine"]
    assert {person.client for person in people(of(OTHERS))} == {""}


@pytest.mark.parametrize("name", shipped())
def test_whoever_comes_in_a_shipped_scenario_fits_into_the_context_it_names(name: str) -> None:
    scenario = read_scenario(name)
    longest = max(
        sum(question.prompt_tokens + question.output_tokens for question in person.questions)
        for person in people(scenario)
    )
    wide = name == "laptops" or "--max-context 16384" in scenario.about
    assert longest * 1.05 + 64 < (16384 if wide else 8192)
    assert wide == (longest > 8192)
