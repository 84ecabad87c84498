"""The detokeniser: owns one incremental decoder a request; decides which text is safe to show and how answers end.

A thin shell around `answer_text.py`: tokens in, text out to the connections, the end to the tokeniser (which keeps the
conversation) and to the scheduler (which plans no further step). Knows nothing of sockets, steps or memory.
"""

from typing import ClassVar, Protocol, assert_never

import structlog

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.answer_text import AnswerText
from actors.directory import Directory
from actors.text_decoder import TextDecoder
from protocol.messages import (
    CloseStream,
    FinishStream,
    Forget,
    OpenStream,
    Remember,
    RequestId,
    Text,
    TextEnd,
    Tokens,
    TokensTaken,
)

DetokeniserInbox = OpenStream | Tokens | CloseStream

log = structlog.get_logger()


class Decoding(Protocol):
    """What the detokeniser needs of a vocabulary."""

    def decoder(self) -> TextDecoder:
        """For one answer."""
        ...

    def token_text(self, token: int) -> str: ...


class Detokeniser(Actor[DetokeniserInbox]):
    """Turns each step's tokens into at most one `Text` a request, then says so (`TokensTaken`).

    Tokens of streams that are closed or have ended are dropped silently: a step in flight may end after its request
    did. A stream is opened before anyone can close it, and both messages take the same lane, so no close comes early.

    An answer that cannot be decoded ends as `failed`, told through the text's own slot, because the scheduler may long
    have told the connection that it ended well; the others in its step do not notice.
    """

    name: ClassVar[str] = "detokeniser"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(
        self,
        mailbox: Mailbox[DetokeniserInbox],
        *,
        vocabulary: Decoding,
        tokeniser: Address[Remember | Forget],
        scheduler: Address[TokensTaken | FinishStream],
        directory: Directory,
        clock: Clock,
    ) -> None:
        super().__init__(mailbox)
        self._vocabulary = vocabulary
        self._tokeniser = tokeniser
        self._scheduler = scheduler
        self._directory = directory
        self._clock = clock
        self._answers: dict[RequestId, AnswerText] = {}

    def handle(self, message: DetokeniserInbox) -> None:
        match message:
            case OpenStream():
                decoder = self._vocabulary.decoder()
                self._answers[message.request] = AnswerText(message, decoder, self._vocabulary.token_text)
            case Tokens():
                self._take(message)
            case CloseStream():
                self._answers.pop(message.request, None)
            case _:
                assert_never(message)

    def lose(self, message: DetokeniserInbox, error: Exception) -> None:
        match message:
            case OpenStream():
                self._answers.pop(message.request, None)
                self._tokeniser.tell(Forget(message.request))
                self._scheduler.tell(FinishStream(message.request, self._clock()))
                end = TextEnd("failed", 0)
                self._directory.tell(message.connection, Text(message.request, "", (), (), end))
            case Tokens():
                for request in [row.request for row in message.rows] + [request for request, _ in message.ended]:
                    answer = self._answers.get(request)
                    if answer is not None:
                        answer.fail()
                        self._deliver(answer)
                self._scheduler.tell(TokensTaken(message.step))
            case CloseStream():
                self._answers.pop(message.request, None)
            case _:
                assert_never(message)

    # --- tokens become text ---

    def _take(self, tokens: Tokens) -> None:
        touched: dict[RequestId, AnswerText] = {}
        for row in tokens.rows:
            answer = self._answers.get(row.request)
            if answer is None or answer.finish is not None:
                continue
            touched[row.request] = answer
            try:
                answer.take(row.token, tokens.at, row.last)
            except Exception:  # noqa: BLE001  the law: that request fails, not its neighbours in the step
                self._fail(answer)
        for request, reason in tokens.ended:
            answer = self._answers.get(request)
            if answer is None or answer.finish is not None:
                continue
            touched[request] = answer
            try:
                answer.end(reason)
            except Exception:  # noqa: BLE001  as above
                self._fail(answer)
        for answer in touched.values():
            self._deliver(answer)
        self._scheduler.tell(TokensTaken(tokens.step))

    def _deliver(self, answer: AnswerText) -> None:
        text = answer.text()
        if text is None:
            return
        if text.end is not None:
            del self._answers[answer.request]
            failed = text.end.reason == "failed"
            whole: str | None = answer.full_text()
            if not whole and text.end.reason in ("prefilled", "deadline"):
                whole = None  # Elsewhere the answer is there, and empty.
            # Ahead of the text: whoever reads the end may continue from it at once.
            self._tokeniser.tell(Forget(answer.request) if failed else Remember(answer.request, whole))
            if failed or text.end.reason == "stop_text":
                self._scheduler.tell(FinishStream(answer.request, self._clock()))
        self._directory.tell(answer.connection, text)

    def _fail(self, answer: AnswerText) -> None:
        log.exception("answer.failed", request=answer.request)
        answer.fail()
