"""The people of a scenario, drawn: who comes when, asks what, and how they behave.

Knows what a person does, as plain values that a load plays and a test compares. Knows no server and no text.

The same scenario and seed are the same people on every machine and every Python: a generator of its own, named in
words, for each property of each person, of which only `random()` is used, which Python promises never to change.
"""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import count

from msgspec import Struct, structs

from protocol.arrival_times import arrival_times
from protocol.azure import read_rows
from protocol.distributions import seconds, whole
from protocol.groups import Group
from protocol.responses import ServiceTier
from protocol.scenario import Scenario


class Question(Struct, frozen=True):
    """One request of a person.

    It is sent `think_s` seconds after the person's last answer has ended; the first one when the person has come.
    """

    prompt_tokens: int
    """Of this question alone, without what was said before."""
    output_tokens: int
    think_s: float = 0.0


class Person(Struct, frozen=True):
    """One of those outside: a conversation of one or more questions, on a socket.

    A person comes `at_s` seconds after the start or, when `after` names others, `at_s` seconds after the last of those
    has had the first text of its first answer. When that will never come, neither will this one.
    """

    name: str
    questions: tuple[Question, ...]
    at_s: float = 0.0
    after: tuple[str, ...] = ()
    group: str = ""
    """Of its scenario: figures are told for each."""
    client: str = ""
    """Those of one client share a socket, each request on a lane of its own. "": a socket of one's own."""
    service_tier: ServiceTier = "default"
    ttft_target_s: float = math.inf
    itl_target_s: float = math.inf
    remembers: bool = True
    """Its next question continues the conversation (`previous_response_id`); else each stands alone."""
    leaves_after_s: float | None = None
    """It closes its page so long after its first question was sent, if it is not through by then."""
    leaves_after_chunks: int | None = None
    """It closes its page when it has had so many pieces of text of its first answer."""
    comes_back_s: float | None = None
    """So long after it has left it comes back on another socket and asks the same again, this time to the end.
    None: it never does."""
    reads_chunks_per_s: float | None = None
    """It takes no more from its socket than that. None: all that comes, when it comes."""
    reconnects: bool = False
    """Between two questions it closes its socket and opens another."""


def people(scenario: Scenario, seed: int | None = None) -> tuple[Person, ...]:
    """Everybody who comes, in the order in which they do; those who come after others stand at the end.

    An arrival is a person with one question. Those of a group are named after it and numbered, "chat 1" the first to
    come. `seed` in place of the scenario's. Raises `ScenarioError` where a trace can no longer be read.
    """
    found = [
        Person(
            name=arrival.name,
            questions=(Question(arrival.prompt_tokens, arrival.output_tokens),),
            at_s=arrival.at_s,
            after=arrival.after,
            client=arrival.client,
            service_tier=arrival.service_tier,
            ttft_target_s=scenario.targets(arrival)[0],
            itl_target_s=scenario.targets(arrival)[1],
        )
        for arrival in scenario.arrivals
    ]
    for group in scenario.people:
        found += _drawn(group, scenario, scenario.seed if seed is None else seed)
    found.sort(key=lambda person: (bool(person.after), person.at_s))
    return tuple(found) if scenario.sockets is None else tuple(_sharing(found, scenario.sockets))


def offered_per_s(people: Sequence[Person]) -> float | None:
    """First questions a second, from the first to the last who comes at a time of its own. None: all come at once."""
    times = [person.at_s for person in people if not person.after]
    span_s = max(times) - min(times) if times else 0.0
    return (len(times) - 1) / span_s if span_s else None


def _sharing(found: Sequence[Person], sockets: int) -> Iterator[Person]:
    turn = count()
    for person in found:
        yield person if person.client else structs.replace(person, client=f"socket {next(turn) % sockets + 1}")


def _drawn(group: Group, scenario: Scenario, seed: int) -> list[Person]:
    ttft_target_s, itl_target_s = scenario.targets(group)
    members = _Members(group, seed)
    leaving, slow = members.some("leave", group.leave), members.some("read_slowly", group.read_slowly)
    returning = members.some("come_back", group.come_back, leaving)
    reconnecting = members.some("reconnect", group.reconnect)
    return [
        Person(
            name=f"{group.name} {number}",
            questions=questions,
            at_s=round(group.start_s + at_s, 6),
            group=group.name,
            service_tier=group.service_tier,
            ttft_target_s=ttft_target_s,
            itl_target_s=itl_target_s,
            remembers=group.remember,
            leaves_after_s=members.seconds("leave_after_s", number) if number in leaving else None,
            leaves_after_chunks=members.whole("leave_after_chunks", number) if number in leaving else None,
            comes_back_s=members.seconds("come_back_s", number) if number in returning else None,
            reads_chunks_per_s=group.chunks_per_s if number in slow else None,
            reconnects=number in reconnecting,
        )
        for number, (at_s, questions) in enumerate(members.coming(), 1)
    ]


class _Members:
    """Draws a group's people, numbered from 1."""

    def __init__(self, group: Group, seed: int) -> None:
        self._group = group
        self._seed = seed
        self._count = group.count or 0

    def _chance(self, what: str, number: int) -> random.Random:
        return random.Random(f"rota people/{self._seed}/{self._group.name}/{number}/{what}")

    def some(self, what: str, share: float, of: Sequence[int] | frozenset[int] | None = None) -> frozenset[int]:
        """That share of them, or of these: those who drew the lowest numbers, so a greater share has the same and
        more."""
        numbers = range(1, self._count + 1) if of is None else of
        wanted = math.floor(share * len(numbers) + 0.5)
        if not wanted:
            return frozenset()
        drawn = sorted((self._chance(what, number).random(), number) for number in numbers)
        return frozenset(number for _, number in drawn[:wanted])

    def seconds(self, key: str, number: int) -> float | None:
        of = getattr(self._group, key)
        return None if of is None else seconds(of, self._chance(key, number))

    def whole(self, key: str, number: int) -> int | None:
        of = getattr(self._group, key)
        return None if of is None else whole(of, self._chance(key, number))

    def coming(self) -> Iterator[tuple[float, tuple[Question, ...]]]:
        """When each comes, in seconds after the first, and what it asks."""
        group = self._group
        if group.trace is not None:
            rate, tokens = group.rate or 1.0, group.tokens or 1.0
            for row in read_rows(group.trace, first=group.first or 0, count=group.count, rate=rate, tokens=tokens):
                yield row.at_s, (Question(row.prompt_tokens, row.output_tokens),)
            return
        chance = self._chance("arrive", 0)
        times = arrival_times(group.arrive, self._count, group.rate or 1.0, group.burstiness or 1.0, chance)
        for number, at_s in enumerate(times, 1):
            yield at_s, self._questions(number)

    def _questions(self, number: int) -> tuple[Question, ...]:
        group = self._group
        assert group.prompt_tokens is not None, "only a trace has its own"
        assert group.output_tokens is not None, "only a trace has its own"
        keys = ("prompt_tokens", "output_tokens", "think_s")
        prompt, output, think = (self._chance(key, number) for key in keys)
        return tuple(
            Question(
                whole(group.prompt_tokens, prompt),
                whole(group.output_tokens, output),
                seconds(group.think_s, think) if index else 0.0,
            )
            for index in range(whole(group.questions, self._chance("questions", number)))
        )
