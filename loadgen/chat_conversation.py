"""A conversation as its client keeps it: what the next question continues, and what was spent so far.

Plain values. The text of the conversation is the server's to keep; here is only the id of the response it stands at.
"""

from dataclasses import dataclass, field

from loadgen.chat_wire import Answer, Settings

_CHARACTERS_A_TOKEN = 4


@dataclass(slots=True)
class Spent:
    """On all answers of a conversation, those too that were taken back."""

    answers: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    took_s: float = 0.0
    """From sending each question to the end of its answer, summed."""


@dataclass(slots=True)
class _Place:
    """Where a conversation stands."""

    response: str | None = None
    tokens: int | None = None
    """How long it is up to here."""


@dataclass(slots=True)
class Conversation:
    settings: Settings
    spent: Spent = field(default_factory=Spent)
    _now: _Place = field(default_factory=_Place)
    _before: _Place = field(default_factory=_Place)
    """Where it stood before the last question."""
    _question: str | None = None

    @property
    def continues(self) -> str | None:
        """The response that the next question goes on from. None: it begins a conversation."""
        return self._now.response

    def asked(self, question: str) -> None:
        """`question` is asked from here."""
        self._question = question
        self._before = self._now

    def answered(self, answer: Answer) -> None:
        """Count an answer, and go on from it if there is something to go on from."""
        if answer.last is None:
            return
        self.spent.answers += 1
        if answer.sent_s is not None and answer.ended_s is not None:
            self.spent.took_s += answer.ended_s - answer.sent_s
        usage = answer.last.usage
        if usage is not None:
            self.spent.input_tokens += usage.input_tokens
            self.spent.cached_tokens += usage.cached_tokens
            self.spent.output_tokens += usage.output_tokens
        if answer.can_be_continued:
            tokens = None if usage is None else usage.input_tokens + usage.output_tokens
            self._now = _Place(answer.last.id, tokens)

    def take_back(self) -> str | None:
        """Go back to before the last question, and return it. None: there was none."""
        self._now = self._before
        return self._question

    def forget(self) -> None:
        """Begin anew, with the same settings."""
        self.lose_the_past()
        self.spent = Spent()
        self._question = None

    def lose_the_past(self) -> None:
        """The server does not have it any more: the question that was just asked begins anew."""
        self._now = self._before = _Place()

    def reading_tokens(self, question: str) -> int | None:
        """About how long the prompt will be: what came before is known, of the question only its characters are."""
        if self._now.response is not None and self._now.tokens is None:
            return None
        more = len(question) + (len(self.settings.instructions or "") if self._now.tokens is None else 0)
        return (self._now.tokens or 0) + max(1, more // _CHARACTERS_A_TOKEN)
