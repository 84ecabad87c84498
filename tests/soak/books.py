"""What was asked on one socket and what came of it: every request has one terminal event, or its socket was closed.

The order of events is checked by the books of the simulation. Knows no network.
"""

import asyncio
import json
from collections import Counter
from typing import Any

from tests.simulation.sockets import Books, Response


class Ledger:
    """All sockets together. `faults` are sentences about what must not be."""

    def __init__(self) -> None:
        self.acts: Counter[str] = Counter()
        self.sent = 0
        self.ends: Counter[str] = Counter()
        """Requests by how they ended: a status and reason, an error's code, or `socket closed`."""
        self.resumed = 0
        """Responses that went on upon another socket than before; one may do so more than once."""
        self.faults: list[str] = []

    def fault(self, sentence: str) -> None:
        if len(self.faults) < 20:
            self.faults.append(sentence)


class Account:
    """One socket's."""

    def __init__(self, ledger: Ledger, act: str, known: dict[str, Response] | None = None) -> None:
        """`known`: the responses that the same client had on sockets before this one."""
        self._ledger = ledger
        self._act = act
        self._books = Books(known)
        self._sent: Counter[str | None] = Counter()

    def sent(self, lane: str | None) -> None:
        self._sent[lane] += 1
        self._ledger.sent += 1

    def heard(self, frame: bytes | str) -> dict[str, Any]:
        """Take one event, and return it."""
        raw = frame.encode() if isinstance(frame, str) else frame
        event: dict[str, Any] = json.loads(raw)
        try:
            self._books.take(raw)
        except AssertionError as wrong:
            self._ledger.fault(f"{self._act}: {wrong}: {raw[:300]!r}")
        return event

    @property
    def changed(self) -> asyncio.Event:
        return self._books.changed

    @property
    def owed(self) -> int:
        """Requests that have no terminal event yet."""
        return sum(count - len(self._books.answers[lane]) for lane, count in self._sent.items())

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._books.responses), None)

    @property
    def running(self) -> Response | None:
        """One that has begun and not ended."""
        return next(iter(self._books.open.values()), None)

    @property
    def resumed(self) -> int:
        """Responses that began on another socket and went on here."""
        return self._books.resumed

    def take_over(self, response: Response) -> None:
        """From now on its client reads it here."""
        response.books = self._books

    def close(self, *, silent: bool = False) -> None:
        """The socket is closed. `silent`: it was given up, because it said nothing for far too long."""
        ends = self._ledger.ends
        for lane, answers in self._books.answers.items():
            if len(answers) > self._sent[lane]:
                self._ledger.fault(f"{self._act}: {len(answers)} ends of {self._sent[lane]} requests on a lane")
            for answer in answers:
                ends[answer if isinstance(answer, str) else self._named(answer)] += 1
        if silent:
            self._ledger.fault(f"{self._act}: {self.owed} requests got no end, and the socket was not closed")
        else:
            ends["socket closed"] += max(0, self.owed)

    @staticmethod
    def _named(answer: Any) -> str:
        return str(answer.error_code or answer.finish_reason)
