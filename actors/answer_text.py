"""One answer on its way from tokens to text: what may be shown of it, and how and where it ends.

Knows end tokens, stop texts and the output limit; decides which comes first. Plain code: knows nothing of mailboxes
and addresses, and of time only what it is told.
"""

from collections import deque
from collections.abc import Callable

from actors.stop_text import StopText
from actors.text_decoder import TextDecoder
from protocol.messages import FinishReason, OpenStream, SampledToken, Text, TextEnd, TokenLogprob

TokenText = Callable[[int], str]
"""A single token as text, for log-probabilities: half a character is U+FFFD there."""


class AnswerText:
    """`take` the tokens, `end` it if they do not, and get `text` for what has become safe to show.

    Where it ends: at the earliest token that is an end token, completes a stop text, or is the last one allowed. Text
    held back as the beginning of a stop text is shown when the end proves it was none. A character that a limit or
    deadline leaves unfinished is not shown; one that the model itself left unfinished is U+FFFD.
    """

    def __init__(self, opened: OpenStream, decoder: TextDecoder, token_text: TokenText) -> None:
        self.request = opened.request
        self.connection = opened.connection
        self.finish: TextEnd | None = None
        self._end_tokens = frozenset(opened.end_tokens)
        self._most_tokens = opened.max_output_tokens
        self._decoder = decoder
        self._stop = StopText(opened.stop)
        self._may_stop = bool(opened.stop)
        self._tokens = 0
        self._times: list[float] = []
        self._unsent: list[str] = []
        self._sent: list[str] = []
        self._logprobs = None if opened.logprobs is None else _Logprobs(token_text)

    def take(self, sampled: SampledToken, at: float, last: bool) -> None:
        """The next token. `last`: no other will come."""
        assert self.finish is None, "nothing follows the end of an answer"
        self._tokens += 1
        self._times.append(at)
        if sampled.token in self._end_tokens:
            self._end("stop", self._decoder.finish())
            return
        decoded = self._decoder.push(sampled.token)
        if self._logprobs is not None:
            self._logprobs.add(sampled, len(decoded), self._decoder.unfinished)
        if self._may_stop:
            decoded = self._stop.push(decoded)
        self._show(decoded)
        if self._stop.found:
            self._close("stop_text")
        elif last or self._tokens == self._most_tokens:
            self._end("length", self._decoder.cut())

    def end(self, reason: FinishReason) -> None:
        """It ended without a token of its own: prefilled, or its deadline passed."""
        assert self.finish is None, "an answer ends once"
        self._end(reason, self._decoder.cut())

    def fail(self) -> None:
        """It cannot go on. What was safe to show still is; what was held back is not."""
        self._close("failed")

    def text(self) -> Text | None:
        """What has become safe to show, or the end, since the last call; None when there is neither."""
        if not self._unsent and self.finish is None:
            return None
        text = Text(
            self.request,
            "".join(self._unsent),
            tuple(self._times),
            () if self._logprobs is None else self._logprobs.due(ended=self.finish is not None),
            self.finish,
        )
        self._sent.append(text.text)
        self._unsent.clear()
        self._times.clear()
        return text

    def full_text(self) -> str:
        """Everything that `text` has given out."""
        return "".join(self._sent)

    def _end(self, reason: FinishReason, tail: str) -> None:
        self._show(self._stop.push(tail))
        if self._stop.found:
            reason = "stop_text"
        else:
            self._show(self._stop.release())
        self._close(reason)

    def _close(self, reason: FinishReason) -> None:
        self.finish = TextEnd(reason, self._tokens)

    def _show(self, text: str) -> None:
        if text:
            self._unsent.append(text)
            if self._logprobs is not None:
                self._logprobs.shown += len(text)


class _Logprobs:
    """The log-probabilities of tokens whose characters have not been shown yet.

    A token's are due when all its characters have been shown, or at the end if any were. Those of the end token and
    of a stop text are never due: they belong to nothing that was shown.
    """

    def __init__(self, token_text: TokenText) -> None:
        self.shown = 0
        self._token_text = token_text
        self._decoded = 0
        self._waiting: deque[tuple[int, int, TokenLogprob]] = deque()

    def add(self, sampled: SampledToken, characters: int, unfinished: bool) -> None:
        start = self._decoded
        self._decoded += characters
        if sampled.logprob is None:
            return
        logprob = TokenLogprob(
            self._token_text(sampled.token),
            sampled.logprob,
            tuple((self._token_text(token), value) for token, value in sampled.top),
        )
        # The character that this token leaves unfinished is its last one.
        self._waiting.append((start, self._decoded + unfinished, logprob))

    def due(self, ended: bool) -> tuple[TokenLogprob, ...]:
        due = []
        while self._waiting:
            start, end, logprob = self._waiting[0]
            if end > self.shown and not (ended and start < self.shown):
                break
            due.append(logprob)
            self._waiting.popleft()
        return tuple(due)
