"""One question of somebody in a simulation, and what has become of it so far.

Knows its figures, and which questions make a conversation. Decides nothing.
"""

import math
import random
from collections.abc import Sequence

from protocol.people import Person, Question
from protocol.timeline import Life

ANSWER_TOKEN = 1
"""All that is ever answered here."""


class Request:
    """One question, and what has become of it so far."""

    __slots__ = (
        "arrived_s", "at_s", "before", "dependents", "ended_s", "following", "index", "name", "number", "outcome",
        "output_tokens", "person", "preemptions", "prompt_tokens", "said", "started_s", "token_times", "waits_for",
    )  # fmt: skip

    def __init__(self, index: int, person: Person, question: Question, before: "Request | None" = None) -> None:
        """`before`: the person's last one, which has to be answered first."""
        self.index = index
        self.person = person
        self.name = person.name
        self.number = 1
        """Among the person's own."""
        self.prompt_tokens = question.prompt_tokens
        self.output_tokens = question.output_tokens
        self.at_s = person.at_s
        self.waits_for = len(person.after)
        self.before: Request | None = None
        """Whose conversation it continues."""
        if before is not None:
            self.name = f"{person.name}, question {before.number + 1}"
            self.number = before.number + 1
            self.at_s = question.think_s
            self.waits_for = 1
            before.following = self
            if person.remembers:
                self.before = before
                self.prompt_tokens += before.prompt_tokens + before.output_tokens
        self.following: Request | None = None
        """The person's next one, which comes when this one is answered."""
        self.dependents: list[Request] = []
        """Those of others, which come when this one has its first token."""
        self.said = b""
        """The conversation before its answer."""
        self.arrived_s = math.inf
        self.started_s: float | None = None
        self.token_times: list[float] = []
        self.ended_s: float | None = None
        self.outcome = ""
        self.preemptions = 0

    @property
    def client(self) -> str:
        return self.person.client or f"{self.person.name}\0"

    def tokens(self, chance: random.Random) -> bytes:
        """The prompt, as little-endian int32: what was said before, and a question like no other."""
        earlier = b""
        if self.before is not None:
            earlier = self.before.said + ANSWER_TOKEN.to_bytes(4, "little") * self.before.output_tokens
        prompt = earlier + chance.randbytes(4 * self.prompt_tokens - len(earlier))
        if self.following is not None and self.following.before is self:
            self.said = prompt
        return prompt

    def life(self) -> Life:
        return Life(
            name=self.name,
            prompt_tokens=self.prompt_tokens,
            arrived_s=self.arrived_s,
            ttft_target_s=self.person.ttft_target_s,
            itl_target_s=self.person.itl_target_s,
            started_s=self.started_s,
            token_times=tuple(self.token_times),
            ended_s=self.ended_s,
            finished=self.outcome == "length",
            outcome=self.outcome,
            preemptions=self.preemptions,
        )


def requests_of(people: Sequence[Person]) -> list[Request]:
    """Every question of everybody, each tied to those that it waits for."""
    requests: list[Request] = []
    firsts: dict[str, Request] = {}
    for person in people:
        before: Request | None = None
        for question in person.questions:
            before = Request(len(requests), person, question, before)
            requests.append(before)
            firsts.setdefault(person.name, before)
    for first in firsts.values():
        for name in first.person.after:
            firsts[name].dependents.append(first)
    return requests
