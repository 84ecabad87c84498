"""What a run is to play: people, what they ask in so many bytes, and how that is called.

Knows how scenarios and plain loads become people and requests: the same scenario and seed give the same bytes, due at
the same offsets. Knows no socket.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from loadgen.bodies import Asking, Prepared, prepared, wishes
from loadgen.figures import Load
from loadgen.sockets import lane_of, shares
from loadgen.wording import EXACT, LETTERS, Wording
from protocol.groups import Group
from protocol.people import Person, Question, offered_per_s, people
from protocol.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    people: tuple[Person, ...]
    prompts: str = LETTERS
    """`letters`, `exact`, or a file of prompts."""
    text: str | None = None
    """In place of any prompt."""
    name: str | None = None
    """Of the scenario. None: a number of sockets, with requests one after another on each, due when they are sent."""
    arrivals: str = "together"
    connects_per_s: float = math.inf

    @property
    def offered_per_s(self) -> float | None:
        return offered_per_s(self.people)

    @property
    def questions(self) -> int:
        return sum(len(person.questions) for person in self.people)

    @property
    def made_prompt_tokens(self) -> int:
        """Of all prompts together; 0 where their text is given and not made."""
        if self.text is not None or self.prompts not in (LETTERS, EXACT):
            return 0
        return sum(question.prompt_tokens for person in self.people for question in person.questions)

    @property
    def own_sockets(self) -> int:
        """How many have one of their own."""
        return sum(not shares(person) for person in self.people)

    @property
    def sockets(self) -> int:
        """If everybody who has one of its own is there at once."""
        return self.own_sockets + len({person.client for person in self.people if shares(person)})

    @property
    def longest_answer(self) -> int:
        return max(question.output_tokens for person in self.people for question in person.questions)

    @property
    def mean_answer(self) -> int:
        return sum(question.output_tokens for person in self.people for question in person.questions) // self.questions


def plain(load: Load, text: str | None, connects_per_s: float = math.inf) -> Scene:
    """`load.sockets` people, all at once, each of whom asks `load.requests_per_socket` times."""
    question = Question(load.prompt_tokens or 1, load.max_output_tokens)
    everybody = tuple(
        Person(
            f"socket {number}",
            (question,) * load.requests_per_socket,
            ttft_target_s=load.ttft_target_s or math.inf,
            itl_target_s=load.itl_target_s or math.inf,
            remembers=False,
        )
        for number in range(load.sockets)
    )
    return Scene(people=everybody, text=text, connects_per_s=connects_per_s)


def of_scenario(
    scenario: Scenario, seed: int, *, connects_per_s: float = math.inf, arrivals: str | None = None
) -> Scene:
    """`arrivals`: in words, where the scenario cannot know better. Raises `ScenarioError`."""
    return Scene(
        people=people(scenario, seed),
        prompts=scenario.prompts,
        name=scenario.name,
        arrivals=arrivals or arrivals_in_words(scenario),
        connects_per_s=connects_per_s,
    )


def context_for(everybody: Sequence[Person]) -> int:
    """A power of two, in tokens, in which the longest request and its answer fit, with what was said before.

    Prompts are only about as long as asked, so there is some room to spare.
    """
    longest = 0
    for person in everybody:
        each = [question.prompt_tokens + question.output_tokens for question in person.questions]
        longest = max(longest, sum(each) if person.remembers else max(each))
    return 1 << math.ceil(math.log2(longest * 1.05 + 64))


def arrivals_in_words(scenario: Scenario) -> str:
    """For example `poisson, 4/s`; of several groups, each by its name."""
    if not scenario.people:
        return "as written"
    each = [_comes(group) for group in scenario.people]
    if len(each) == 1 and not scenario.arrivals:
        return each[0]
    named = [f"{group.name} {how}" for group, how in zip(scenario.people, each, strict=True)]
    return "; ".join([*(["as written"] if scenario.arrivals else []), *named])


def _comes(group: Group) -> str:
    match group.arrive:
        case "together":
            return "together"
        case "trace":
            return "as recorded" if group.rate in (None, 1.0) else f"as recorded, {group.rate:g} times as fast"
        case "gamma":
            return f"gamma with burstiness {group.burstiness:g}, {group.rate:g}/s"
    return f"{group.arrive}, {group.rate:g}/s"


def requests_of(
    everybody: Sequence[Person], asking: Asking, wording: Wording, *, on_lanes: bool = False, bare: bool = False
) -> list[list[Prepared]]:
    """Of each person, a request a question.

    `on_lanes`: everybody names a lane, and not only those who share a socket. `bare`: nothing is said of what the
    server is to store.
    """
    indices = count()
    requests: list[list[Prepared]] = []
    for index, person in enumerate(everybody):
        lane = {"stream_id": lane_of(index)} if on_lanes or shares(person) else {}
        mine: list[Prepared] = []
        for number, question in enumerate(person.questions):
            continues = number > 0 and person.remembers
            said = wording.question(next(indices), question.prompt_tokens, first=not continues)
            # So that it can be continued from there, from whichever socket.
            store = {} if bare else {"store": person.remembers and number + 1 < len(person.questions)}
            mine.append(
                prepared(
                    asking,
                    said.text,
                    question.output_tokens,
                    # Of what continues, all that was said before counts as well.
                    asked_tokens=None if continues else said.asked_tokens,
                    **lane,
                    **store,
                    **wishes(person),
                )
            )
        requests.append(mine)
    return requests
