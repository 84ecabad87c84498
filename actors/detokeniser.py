"""The detokeniser: owns one incremental decoder a request; decides which text is safe to show and how answers end.

A thin shell around `answer_text.py`: tokens in, text out to the connections, the end to the tokeniser (which keeps the
conversation) and to the scheduler (which plans no further step). Knows nothing of sockets, steps or memory.
"""

from collections import deque
from typing import ClassVar, Protocol, assert_never

import structlog

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.answer_text import AnswerText
from actors.directory import Directory
from actors.text_decoder import TextDecoder
from actors.tombstones import Tombstones
from protocol.messages import (
    CloseStream,
    FinishStream,
    OpenStream,
    Released,
    Remember,
    RequestId,
    Text,
    TextEnd,
    Tokens,
    TokensTaken,
)

DetokeniserInbox = OpenStream | Tokens | CloseStream | Released

log = structlog.get_logger()


class Decoding(Protocol):
    """What the detokeniser needs of a vocabulary."""

    def decoder(self) -> TextDecoder:
        """For one answer."""
        ...

    def token_text(self, token: int) -> str: ...


class Detokeniser(Actor[DetokeniserInbox]):
    """Turns each step's tokens into at most one `Text` a request, then says so (`TokensTaken`).

    Tokens of streams that were never opened, are closed or have ended are dropped silently: a step in flight may end
    after its request did. An answer that cannot be decoded ends as `failed`, told through the text's own slot, because
    the scheduler may long have told the connection that it ended well; the others in its step do not notice.
    """

    name: ClassVar[str] = "detokeniser"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(
        self,
        mailbox: Mailbox[DetokeniserInbox],
        *,
        vocabulary: Decoding,
        tokeniser: Address[Remember],
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
        self._tombstones = Tombstones()
        self._data_handled = 0
        self._released: deque[tuple[int, RequestId]] = deque()
        """Requests to forget once so many data messages have been handled."""

    def handle(self, message: DetokeniserInbox) -> None:
        match message:
            case OpenStream():
                self._open(message)
                self._count_data()
            case Tokens():
                self._take(message)
                self._count_data()
            case CloseStream():
                if not self._drop(message.request):
                    self._tombstones.bury(message.request, self._clock())
            case Released():
                self._release(message)
            case _:
                assert_never(message)

    def lose(self, message: DetokeniserInbox, error: Exception) -> None:
        match message:
            case OpenStream():
                self._answers.pop(message.request, None)
                self._tokeniser.tell(Remember(message.request, None))
                self._scheduler.tell(FinishStream(message.request, self._clock()))
                end = TextEnd("failed", 0)
                self._directory.tell(message.connection, Text(message.request, "", (), (), end))
                self._count_data()
            case Tokens():
                for request in [row.request for row in message.rows] + [request for request, _ in message.ended]:
                    answer = self._answers.get(request)
                    if answer is not None:
                        answer.fail()
                        self._deliver(answer)
                self._scheduler.tell(TokensTaken(message.step))
                self._count_data()
            case CloseStream() | Released():
                self._forget(message.request)
            case _:
                assert_never(message)

    # --- streams open and close ---

    def _open(self, opened: OpenStream) -> None:
        if self._tombstones.rises(opened.request):
            self._tokeniser.tell(Remember(opened.request, None))
        else:
            decoder = self._vocabulary.decoder()
            self._answers[opened.request] = AnswerText(opened, decoder, self._vocabulary.token_text)

    def _release(self, released: Released) -> None:
        """Forget the request, but not before the tokens that were sent ahead of its release and wait in the data lane.

        They may hold the end of its answer, and a cancelled request's `OpenStream` may be among what waits.
        """
        waiting = self._mailbox.capacity - self._mailbox.room
        if waiting:
            self._released.append((self._data_handled + waiting, released.request))
        else:
            self._forget(released.request)

    def _count_data(self) -> None:
        self._data_handled += 1
        while self._released and self._released[0][0] <= self._data_handled:
            self._forget(self._released.popleft()[1])

    def _forget(self, request: RequestId) -> None:
        self._drop(request)
        self._tombstones.rises(request)

    def _drop(self, request: RequestId) -> bool:
        """Close a stream without an end. False when there is none."""
        if self._answers.pop(request, None) is None:
            return False
        self._tokeniser.tell(Remember(request, None))
        return True

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
            # Ahead of the text: whoever reads the end may continue from it at once.
            self._tokeniser.tell(Remember(answer.request, None if failed else answer.full_text()))
            if failed or text.end.reason == "stop_text":
                self._scheduler.tell(FinishStream(answer.request, self._clock()))
        self._directory.tell(answer.connection, text)

    def _fail(self, answer: AnswerText) -> None:
        log.exception("answer.failed", request=answer.request)
        answer.fail()
