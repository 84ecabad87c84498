"""The people of a simulated run, whose whims come from its seed, and what each must have been told in the end.

Knows the wire. Of the engine only how a socket is opened.
"""

import asyncio
import json
from array import array
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.input_items import Message
from tests.simulation.sockets import ELSEWHERE, FakeSocket, Response
from tests.simulation.worker import answer_to

if TYPE_CHECKING:
    from tests.simulation.world import World

NONSENSE: tuple[bytes | str, ...] = ("{", "[]", '{"type": 1}', b"\x00", '{"type": "nothing"}')
MAX_CONTEXT = 120
GROWN_OLD = 4006
"""The server's close code for a socket that has lived as long as one may, of which something is kept."""


class Resumed(NamedTuple):
    """What was asked on a lane: to go on with this. `soon`: nothing should have kept its client from that."""

    response: Response
    soon: bool


class Session:
    """One socket of a client, and what was asked on it."""

    def __init__(self, known: dict[str, Response]) -> None:
        self.socket = FakeSocket(known)
        self.sent: dict[str | None, list[dict[str, Any] | Resumed | None]] = {}
        """By lane: each create, what was resumed, or None for a frame that is nonsense."""

    def owed(self) -> bool:
        answers = self.socket.books.answers
        return any(len(answers[lane]) < len(sent) for lane, sent in self.sent.items())


class Client:
    """One person, at one socket after the other, whose whims come from the seed."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.chance = Random(f"{world.seed} {number}")
        self.number = number
        self.key = Random(f"{world.seed} {number} key").choice(("", "", "anna"))
        self.known: dict[str, Response] = {}
        self.sessions = [Session(self.known)]
        self.polite = False
        self._serving: list[asyncio.Task[None]] = []

    @property
    def socket(self) -> FakeSocket:
        return self.sessions[-1].socket

    @property
    def sent(self) -> dict[str | None, list[dict[str, Any] | Resumed | None]]:
        return self.sessions[-1].sent

    async def live(self) -> None:
        chance = self.chance
        await asyncio.sleep(chance.uniform(0, 0.3))
        self._connect()
        for _ in range(chance.choice((1, 6, 12, 24))):
            if self.socket.closed is not None and not await self._come_back():
                break
            self._act()
            await asyncio.sleep(chance.choice((0, 0, 0, 0.001, 0.02, 0.1)))
            if chance.random() < 0.12:
                await self._blink()
        self.socket.read(True)
        if chance.random() < 0.75:
            self.polite = True
            while self.socket.closed is None and self.sessions[-1].owed():
                self.socket.books.changed.clear()
                await self.socket.books.changed.wait()
            await asyncio.sleep(0.5)
            self.socket.leave(1000)
        else:
            self.socket.leave(chance.choice((1000, 1001, 1006)))
        for session in self.sessions:
            session.socket.leave(1006)
        await asyncio.gather(*self._serving)

    # --- the network, and whoever comes back ---

    def _connect(self) -> None:
        self.world.sockets.append(self.socket)
        name = f"socket {self.number}.{len(self.sessions)}"
        served = self.world.engine.open_connection(self.socket, self.key)
        self._serving.append(asyncio.create_task(served, name=name))

    async def _blink(self) -> None:
        """The socket is lost: at once, or unnoticed by the server for a while, or until after the client is back."""
        old, chance = self.socket, self.chance
        if chance.random() < 0.7:
            old.go_dark()
            await asyncio.sleep(chance.choice((0, 0.01, 0.1, 0.4)))
        half_dead = old.dark and chance.random() < 0.5
        awake = not old.dark and chance.random() < 0.3
        if not (half_dead or awake):
            old.leave(1006)
        await self._come_back(at_once=True)
        if half_dead:
            await asyncio.sleep(chance.choice((0, 0.01, 0.1)))
            old.leave(1006)

    async def _come_back(self, *, at_once: bool = False) -> bool:
        """On a new socket, and everything that was not finished goes on."""
        chance = self.chance
        closed = self.socket.closed
        if not at_once and (closed not in (1006, GROWN_OLD) or (closed == 1006 and chance.random() < 0.3)):
            return False
        waited = 0.0 if at_once else chance.choice((0, 0.01, 0.1, 1.0, 8.0))
        await asyncio.sleep(waited)
        self.sessions.append(Session(self.known))
        self._connect()
        soon = waited < 0.5 and self.world.clean and self.world.resume_grace_s > 2
        unfinished = [one for one in self.known.values() if one.status is None and not one.lost]
        for response in unfinished[:4]:
            if chance.random() < 0.8:
                response.books = self.socket.books
                resume: dict[str, Any] = {"type": "response.resume", "response_id": response.id}
                if response.events:
                    resume["starting_after"] = response.events - 1
                first = response.lane not in self.sent
                resumable = self._question(response).get("resumable", False)
                self.sent.setdefault(response.lane, []).append(Resumed(response, soon and first and resumable))
                if response.lane is not None:
                    resume["stream_id"] = response.lane
                self._say(resume)
            else:
                response.lost = True
        return True

    def _act(self) -> None:
        match self.chance.choice(
            ("ask", "ask", "ask", "ask", "cancel", "cancel lane", "nonsense", "read", "stop reading")
        ):
            case "ask":
                self._ask()
            case "cancel":
                ids = list(self.known) or ["resp_unknown"]
                self._say({"type": "response.cancel", "response_id": self.chance.choice(ids)})
            case "cancel lane":
                lane = self.chance.choice(list(self.sent) or [None])
                self._say({"type": "response.cancel"} | ({} if lane is None else {"stream_id": lane}))
            case "nonsense":
                self.sent.setdefault(None, []).append(None)
                self.socket.feed(self.chance.choice(NONSENSE))
            case "read":
                self.socket.read(True)
            case "stop reading":
                self.socket.read(False)

    def _ask(self) -> None:
        chance = self.chance
        lane = chance.choice((None, None, "a", "b", "c"))
        create: dict[str, Any] = {
            "type": "response.create",
            "input": "x" * chance.choice((1, 5, 12, 20)) + str(chance.randrange(100)),
            "temperature": 0,
        }
        if lane is not None:
            create["stream_id"] = lane
        if chance.random() < 0.7:
            create["max_output_tokens"] = chance.choice((1, 2, 5, 30, 80))
        if chance.random() < 0.3:
            create["stop"] = [chance.choice(("ab", "✓", "字🙂", ".", "abc"))]
        if chance.random() < 0.7:
            create["resumable"] = True
        if chance.random() < 0.1:
            create["generate"] = False
        if chance.random() < 0.15:
            create["deadline_ms"] = chance.choice((1, 20, 100, 1000))
        if chance.random() < 0.1:
            create["input"] = "y" * 100
        if chance.random() < 0.5:
            create["targets"] = {"ttft_ms": chance.choice((5, 100, 3000)), "itl_ms": chance.choice((5, 30, 300))}
        if chance.random() < 0.3:
            create["service_tier"] = chance.choice(("auto", "flex", "priority", "ultrafast"))
        self.sent.setdefault(lane, []).append(create)
        self._say(create)

    def _say(self, event: dict[str, Any]) -> None:
        self.socket.feed(json.dumps(event))

    # --- what must hold at the end ---

    def check(self) -> None:
        """Every question that was read has one answer, in order, and no answer says what the model did not."""
        for session in self.sessions:
            self._check_session(session)
        for response in self.known.values():
            if response.status is not None:
                self._check_answer(self._question(response), response)

    def _question(self, response: Response) -> dict[str, Any]:
        session = next(one for one in self.sessions if response.id in one.socket.books.responses)
        question = session.sent[response.lane][response.place]
        assert isinstance(question, dict), "nonsense was answered with a response"
        return question

    def _check_session(self, session: Session) -> None:
        books = session.socket.books
        if books.violation is not None:
            raise books.violation
        answers = books.answers
        for lane, sent in session.sent.items():
            assert len(answers[lane]) <= len(sent), f"more answers than questions on lane {lane}"
            grown_old = session.socket.closed in (1001, GROWN_OLD)
            if self.polite and self.world.clean and session is self.sessions[-1] and not grown_old:
                assert len(answers[lane]) == len(sent), f"an unanswered question on lane {lane}"
            for question, answer in zip(sent, answers[lane], strict=False):
                if isinstance(question, Resumed):
                    if isinstance(answer, Response):
                        assert answer is question.response, f"{answer.id} went on instead of {question.response.id}"
                    else:
                        assert answer in ("response_not_found", ELSEWHERE), answer
                        assert not question.soon or answer == ELSEWHERE, f"{question.response.id}: {answer}"
                elif question is None:
                    assert isinstance(answer, str), "nonsense was answered with a response"

    def _check_answer(self, question: dict[str, Any], answer: Response) -> None:
        prompt = self.world.vocabulary.prompt([Message("user", question["input"])])
        whole = answer_to(array("i", prompt))
        text, reason, tokens = expected(whole, question, MAX_CONTEXT - len(prompt))
        if answer.finish_reason in ("stop", "stop_text", "length", "prefilled"):
            assert (answer.text, answer.finish_reason) == (text, reason), f"expected {(text, reason)} of {whole!r}"
            assert answer.usage["output_tokens"] == tokens
            assert answer.usage["input_tokens"] == len(prompt)
        else:
            assert text.startswith(answer.text), f"{answer.finish_reason}: {answer.text!r} is not how {text!r} begins"
            if self.world.clean:
                assert answer.finish_reason in ("cancelled", "deadline", "failed")
                # What can be resumed gives way while nobody reads it.
                gave_way = ("server_overloaded",) if question.get("resumable") else ()
                may_be = (None, "deadline_exceeded", *gave_way, *self.world.ends_of_age)
                assert answer.error_code in may_be, answer.error_code


def expected(whole: bytes, question: dict[str, Any], room: int) -> tuple[str, str, int]:
    """Text, finish reason and output tokens of an answer that is let to end by itself, found the slow way."""
    if question.get("generate") is False:
        return "", "prefilled", 0
    limit = question.get("max_output_tokens", room)
    for count in range(1, len(whole) + 1):
        text = whole[:count].decode(errors="ignore")
        for stop in question.get("stop", ()):
            if stop in text and count <= limit:
                return text[: text.index(stop)], "stop_text", count
        if count == limit:
            return text, "length", count
    if len(whole) + 1 > limit:
        return whole[:limit].decode(errors="ignore"), "length", limit
    return whole.decode(), "stop", len(whole) + 1
