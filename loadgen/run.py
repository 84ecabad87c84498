"""A run under way: who plays, with which requests, on which sockets, and what has become of each request.

Knows the records, and who waits for whose first text. Plays nobody.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.bodies import Prepared
from loadgen.exchange import Api, Exchange
from loadgen.progress import Board
from loadgen.sockets import Sockets
from protocol.people import Person


@dataclass(slots=True)
class Run:
    """People and their requests, person by person in the same order."""

    people: Sequence[Person]
    sockets: Sockets
    board: Board
    requests: Sequence[Sequence[Prepared]] = ()
    """Of each person, one a question; there before the first person comes."""
    api: Api = "responses"
    at_will: bool = False
    """Nobody keeps to a time: a request is due when it is sent."""
    phase: str = "running"
    """What the board is to call it, once the sockets are open."""
    warmup_s: float = 0.0
    """What is due so early is in no figure."""
    start_s: float = 0.0
    lag_worst_s: float = 0.0
    """The longest that the client's event loop was late."""
    by_person: list[list[Exchange]] = field(init=False)
    """Of every planned request, before any is sent: so one that never was is counted too. Who comes back has more."""
    _firsts: dict[str, asyncio.Future[float | None]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_person = [
            [exchange_of(person, index, number) for number in range(len(person.questions))]
            for index, person in enumerate(self.people)
        ]
        self._firsts = {}

    @property
    def exchanges(self) -> list[Exchange]:
        """Person by person, and of each in the order in which they were asked."""
        return [exchange for mine in self.by_person for exchange in mine]

    def await_firsts(self) -> None:
        """Get ready to tell who waits for others of them. An event loop has to be running."""
        loop = asyncio.get_running_loop()
        self._firsts = {name: loop.create_future() for person in self.people for name in person.after}

    async def first_texts(self, names: Sequence[str]) -> list[float | None]:
        """When each of them had the first text of its first answer; None: it will have none."""
        return [await self._firsts[name] for name in names]

    def tell_first_text(self, index: int, at_s: float | None) -> None:
        """Of that person, if anybody waits for it and it is the first that is heard of it."""
        first = self._firsts.get(self.people[index].name)
        if first is not None and not first.done():
            first.set_result(at_s)

    def again(self, index: int, position: int) -> Exchange:
        """A request more: that person asks for the second time what it asked in the one at `position`."""
        before = self.by_person[index][position]
        number = before.question
        exchange = exchange_of(self.people[index], index, number)
        self.by_person[index].insert(position + 1, exchange)
        self.board.requests += 1
        return exchange


def exchange_of(person: Person, index: int, number: int) -> Exchange:
    """The record of a request that has not been sent yet: that person's question `number`."""
    return Exchange(
        index,
        number,
        person=person.name,
        group=person.group,
        question=number,
        slow_reader=person.reads_chunks_per_s is not None,
        ttft_target_s=person.ttft_target_s,
        itl_target_s=person.itl_target_s,
    )
