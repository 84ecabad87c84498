"""One person on a server, from its coming to its end: asks, waits, leaves, comes back, asks on.

Knows how a person behaves and what is recorded of it. Knows neither when it comes nor how sockets are opened.
"""

import asyncio
import time
from collections.abc import Callable

from loadgen.bodies import conversation
from loadgen.client import Askable, NotOpened
from loadgen.exchange import Exchange
from loadgen.pace import sleep_until
from loadgen.run import Run
from loadgen.sockets import AHEAD_S


class _Left(Exception):
    """The person has had enough of the answer."""


async def live(run: Run, index: int, due_s: float) -> None:
    """Play that person, whose first question is due at `due_s`, to its end. What it went through is in its exchanges.

    A later question is due when the answer before it has ended and its think time is over. A person whose socket does
    not open or was dropped, or whose conversation broke off, asks no more. A cancel leaves everything as it is.
    """
    await _Life(run, index, due_s).live()


class _Life:
    """Where a person is in what it is going to ask, and the socket that it has."""

    def __init__(self, run: Run, index: int, due_s: float) -> None:
        self._run = run
        self._index = index
        self._person = run.people[index]
        self._mine = run.by_person[index]
        self._position = 0
        """In `_mine`, of what it asks now or next, which is due at `_due_s`."""
        self._due_s = due_s
        self._conversation = conversation(run.api)
        self._socket: Askable | None = None
        self._usable = False
        self._gone = False
        """It has left and will not come back."""

    async def live(self) -> None:
        try:
            await self._ask_all()
        except NotOpened as declined:
            exchange = self._mine[self._position]
            exchange.due_s, exchange.code, exchange.message = self._due_s, declined.code, str(declined)
        for exchange in self._mine[self._position :]:
            if self._gone:
                exchange.left, exchange.outcome = True, "left"
            self._run.board.end(exchange)
        self._run.tell_first_text(self._index, None)
        if self._socket is not None:
            self._run.sockets.back(self._index, self._usable)

    async def _ask_all(self) -> None:
        questions = self._person.questions
        for number in range(len(questions)):
            if number:
                await self._think()
            exchange = await self._ask(may_leave=number == 0)
            if exchange.left:
                if self._person.comes_back_s is None:
                    self._gone = True
                    return
                await self._come_back(exchange, self._person.comes_back_s)
                exchange = await self._ask(may_leave=False)
            if number + 1 == len(questions) or not self._can_go_on(exchange):
                return
            assert exchange.ended_s is not None, "an answer has ended"
            self._due_s = exchange.ended_s + questions[number + 1].think_s

    async def _ask(self, *, may_leave: bool) -> Exchange:
        """Send what is due, and see its answer to the end, or to where the person leaves."""
        run, person = self._run, self._person
        exchange = self._mine[self._position]
        request = run.requests[self._index][exchange.question]
        exchange.asked_tokens = request.asked_tokens
        exchange.warm_up = self._due_s - run.start_s < run.warmup_s
        if not run.at_will:
            exchange.due_s = self._due_s
        if self._socket is None:
            self._socket = await run.sockets.of(self._index)
        exchange.socket, exchange.connect_ms = self._socket.number, self._socket.connect_ms_once()
        if not person.remembers:
            self._conversation = conversation(run.api)
        if self._conversation.keeps_text and person.remembers:
            exchange.text = []
        body = self._conversation.body(request)
        run.board.sent()
        try:
            async with asyncio.timeout(person.leaves_after_s if may_leave else None) as patience:
                self._usable = await self._socket.ask(body, exchange, self._listener(exchange, may_leave=may_leave))
        except (_Left, TimeoutError) as why:
            if not (isinstance(why, _Left) or patience.expired()):
                raise
            exchange.ended_s = time.perf_counter()
            exchange.left, exchange.outcome = True, "left"
            run.sockets.leave(self._index)
            self._socket = None
        if run.at_will:
            exchange.due_s = exchange.sent_s
        run.board.end(exchange)
        self._position += 1
        return exchange

    def _listener(self, exchange: Exchange, *, may_leave: bool) -> Callable[[], None]:
        """What is called at each piece of text; it raises `_Left` at the one that was enough."""
        run, index, texts_s, board = self._run, self._index, exchange.texts_s, self._run.board
        enough = self._person.leaves_after_chunks

        def on_text() -> None:
            if len(texts_s) > 1:
                board.text(texts_s[-1] - texts_s[-2])
                return
            from_s = exchange.from_s
            assert from_s is not None, "it has been sent"
            board.first_text(texts_s[0] - from_s)
            run.tell_first_text(index, texts_s[0])

        def on_text_or_leave() -> None:
            on_text()
            if len(texts_s) == enough:
                raise _Left

        return on_text_or_leave if may_leave and enough is not None else on_text

    def _can_go_on(self, exchange: Exchange) -> bool:
        if not self._usable:
            return False
        if not self._person.remembers:
            return True
        request = self._run.requests[self._index][exchange.question]
        return exchange.outcome == "finished" and self._conversation.answered(request, exchange)

    async def _think(self) -> None:
        """Until the next question is due; meanwhile it may open another socket."""
        if self._person.reconnects:
            self._run.sockets.back(self._index, usable=False)
            self._socket = None
            self._socket = await self._run.sockets.of(self._index)
        await sleep_until(self._due_s)

    async def _come_back(self, left: Exchange, away_s: float) -> None:
        """On another socket, opened a little before, to ask the same again."""
        assert left.ended_s is not None, "it has left"
        self._due_s = left.ended_s + away_s
        self._run.again(self._index, self._position - 1)
        await sleep_until(self._due_s - AHEAD_S)
        self._socket = await self._run.sockets.of(self._index)
        await sleep_until(self._due_s)
