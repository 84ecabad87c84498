"""Asks a question, and asks it again where that helps: of a server that is full, or that has forgotten.

Knows what an error code means for a person. The socket is `chat_socket`'s, the words are `chat_words`'.
"""

import asyncio

from loadgen.chat_conversation import Conversation
from loadgen.chat_screen import Screen
from loadgen.chat_socket import Session
from loadgen.chat_wire import Answer, Event, harmless_line, request
from loadgen.chat_words import ending, standing, time_of
from loadgen.client import NotOpened

_FULL = frozenset({"server_overloaded", "rate_limit_exceeded"})
MOST_TRIES = 5
"""Of one question, on a server that is full."""
RETRY_AFTER_MS = 1_000.0
"""Where the server names no time."""
LONGEST_RETRY_MS = 30_000.0


class Dialogue:
    """A conversation, the socket it goes over and the screen it stands on."""

    def __init__(self, conversation: Conversation, session: Session, screen: Screen) -> None:
        self.conversation = conversation
        self._session = session
        self._screen = screen
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """End the answer that is coming in, and do not ask again. What was written of it stays. May be said twice."""
        self._stop.set()
        self._screen.standing("stopping")

    async def ask(self, question: str) -> bool:
        """Ask, show the answer and why it ended. False: it failed, or there is none. Stopping it is no failure."""
        self.conversation.asked(question)
        self._stop = asyncio.Event()
        with self._screen.answering():
            answer, sentence = await self._answer(question, self._stop)
        if answer is None:
            self._screen.problem(sentence)
            return False
        self.conversation.answered(answer)
        if answer.failed:
            self._screen.problem(sentence)
        else:
            self._screen.ended(sentence)
        return not answer.failed

    async def _answer(self, question: str, stop: asyncio.Event) -> tuple[Answer | None, str]:
        """The answer, or none at all, and the sentence that says how it ended."""
        tries = 1
        while True:
            try:
                answer = await self._once(question, stop)
            except NotOpened as declined:
                return None, harmless_line(str(declined))
            if answer.code == "previous_response_not_found" and self.conversation.continues is not None:
                self.conversation.lose_the_past()
                self._screen.note("The server has forgotten the conversation: this question begins a new one.")
            elif answer.refused and answer.code in _FULL and tries < MOST_TRIES and not stop.is_set():
                tries += 1
                if not await self._waited(answer, stop):
                    return answer, self._sentence(answer)
            else:
                return answer, self._sentence(answer)

    async def _once(self, question: str, stop: asyncio.Event) -> Answer:
        reading = self.conversation.reading_tokens(question)
        self._screen.standing("waiting")

        def heard(event: Event) -> None:
            where = standing(event, reading)
            if where is not None:
                self._screen.standing(where)
            if event.type == "response.output_text.delta" and event.delta:
                self._screen.text(event.delta)

        body = request(self.conversation.settings, question, self.conversation.continues)
        return await self._session.ask(body, stop, heard)

    async def _waited(self, answer: Answer, stop: asyncio.Event) -> bool:
        """Wait until the server is to be asked again. False: nobody wants to know any more."""
        assert answer.error is not None
        wait_ms = min(answer.error.retry_after_ms or RETRY_AFTER_MS, LONGEST_RETRY_MS)
        self._screen.standing(f"the server is full, asking again in {time_of(wait_ms)}")
        try:
            await asyncio.wait_for(stop.wait(), wait_ms / 1e3)
        except TimeoutError:
            return True
        return False

    def _sentence(self, answer: Answer) -> str:
        sentence = ending(answer)
        if answer.code == "context_length_exceeded" and self.conversation.continues is not None:
            return f"{sentence} /new forgets the conversation."
        return sentence
