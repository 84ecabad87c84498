"""The tokeniser: owns the vocabulary's way in and the kept conversations; decides whether an input is valid and fits.

Knows chat messages, the context's length, and who may continue what. Knows nothing of sockets, and nothing of how
tokens become text again: of a finished answer it is told the text (`Remember`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import ClassVar, assert_never

import structlog

from actors.actor import Actor, Address, Clock, Fate, Mailbox
from actors.chat_template import PromptRefused
from actors.conversations import Conversation, Conversations, Keeping
from actors.directory import Directory
from actors.offload import Offload
from actors.prompt import Length, Prompts, fit_prompt, least
from actors.sampling_defaults import SamplingDefaults, sampling_of
from actors.scheduling.allowances import Allowances
from actors.targets import Tiers
from actors.tombstones import Tombstones
from protocol import errors
from protocol.errors import WireError
from protocol.input_items import Message
from protocol.messages import (
    Ask,
    Cancel,
    CloseStream,
    ConnectionClosed,
    Ended,
    Enqueue,
    Forget,
    ModelReady,
    OpenStream,
    Refused,
    Remember,
    RequestId,
    Stats,
    Sweep,
    Tokenised,
)
from protocol.responses import ResponseCreate, Targets, messages_of

TokeniserInbox = Ask | Cancel | Tokenised | Remember | Forget | ConnectionClosed | ModelReady | Sweep

_INLINE_BYTES = 2_000
"""Of prompt text, in UTF-8, that is tokenised on the event loop: 1.2 ms for English, 6 ms for random characters."""
_MESSAGE_BYTES = 60
"""A message takes as long as this much English, 35 µs, however little it says."""
_RETRY_AFTER_MS = 1_000.0

log = structlog.get_logger()


class _Request:
    """A request that is here or was passed on, until it comes back as `Remember`, `Cancel` or `Forget`."""

    __slots__ = ("ask", "cancelled", "keeps", "own", "parent", "passed_on", "turns")

    def __init__(self, ask: Ask, parent: Conversation | None, turns: tuple[Message, ...]) -> None:
        self.ask = ask
        self.parent = parent
        self.turns = turns
        instructions = ask.create.instructions
        self.own = (Message("system", instructions), *turns) if instructions else turns
        self.passed_on = False
        self.cancelled = False
        """Looked at by work that waits elsewhere: nobody wants its result."""
        self.keeps = True
        """Whether its conversation is to be kept: its only possible reader may have gone."""

    def length(self) -> Length:
        """Of all its messages."""
        own = Length.of(self.own)
        return own if self.parent is None else self.parent.length + own

    def messages(self) -> Sequence[Message]:
        """May be long: read where the prompt is made."""
        history = self.parent.history() if self.parent is not None else ()
        return [*self.own[: len(self.own) - len(self.turns)], *history, *self.turns]


class Tokeniser(Actor[TokeniserInbox]):
    """Turns `Ask` into `OpenStream` for the detokeniser and `Enqueue` for admission, in that order, or into `Refused`.

    Until the first `ModelReady` every request is refused with a retry time. Long prompts are tokenised elsewhere
    (`offload`); at most `most_offloaded` at a time. `allowances`: how often each key may ask, of which no more is
    tokenised. A cancel of a request that is still here ends it here (`Ended`, and
    no `Forget`: it never got to admission); one that was passed on, the cancel follows.
    """

    name: ClassVar[str] = "tokeniser"
    fate: ClassVar[Fate] = Fate.OWN

    def __init__(
        self,
        mailbox: Mailbox[TokeniserInbox],
        *,
        vocabulary: Prompts,
        admission: Address[Enqueue | Cancel],
        detokeniser: Address[OpenStream | CloseStream],
        directory: Directory,
        clock: Clock,
        offload: Offload,
        random: Random,
        aliases: tuple[str, ...] = (),
        defaults: SamplingDefaults | None = None,
        default_max_output_tokens: int = 1_024,
        tiers: Tiers | None = None,
        keeping: Keeping | None = None,
        most_offloaded: int = 64,
        allowances: Allowances | None = None,
    ) -> None:
        super().__init__(mailbox)
        self._vocabulary = vocabulary
        self._admission = admission
        self._detokeniser = detokeniser
        self._directory = directory
        self._clock = clock
        self._offload = offload
        self._random = random
        self._aliases = aliases
        self._defaults = defaults or SamplingDefaults()
        self._default_max_output_tokens = default_max_output_tokens
        self._tiers = tiers or Tiers()
        self._most_offloaded = most_offloaded
        self._model: ModelReady | None = None
        self._conversations = Conversations(keeping)
        self._requests: dict[RequestId, _Request] = {}
        self._offloaded: dict[RequestId, str] = {}
        """Whose each is."""
        self._allowances = allowances if allowances is not None else Allowances()
        self._tombstones = Tombstones()

    def handle(self, message: TokeniserInbox) -> None:
        match message:
            case Ask():
                self._ask(message)
            case Tokenised():
                self._offloaded.pop(message.request, None)
                self._tokenised(message)
            case Cancel():
                self._cancel(message)
            case Remember():
                self._remember(message)
            case Forget():
                self._requests.pop(message.request, None)
            case ConnectionClosed():
                self._conversations.forget_connection(message.connection)
                for request in self._requests.values():
                    if request.ask.connection == message.connection and not request.ask.create.stored:
                        request.keeps = False
            case ModelReady():
                self._model = message
            case Sweep():
                self._conversations.sweep(message.at)
                self._tombstones.sweep(message.at)
            case _:
                assert_never(message)

    def lose(self, message: TokeniserInbox, error: Exception) -> None:
        match message:
            case Ask():
                self._give_up(message)
            case Tokenised():
                self._offloaded.pop(message.request, None)
                request = self._requests.get(message.request)
                if request is not None:
                    self._give_up(request.ask)
            case Cancel():
                request = self._requests.pop(message.request, None)
                if request is not None and request.passed_on:
                    self._admission.tell(message)
                    self._detokeniser.tell(CloseStream(message.request))
                elif request is not None:
                    self._say_cancelled(request.ask)
            case Remember() | Forget():
                self._requests.pop(message.request, None)
            case ModelReady():
                self._model = message
            case ConnectionClosed() | Sweep():
                # Nobody waits for an answer to these; what they were about is swept in its time.
                pass
            case _:
                assert_never(message)

    def _give_up(self, ask: Ask) -> None:
        """Refuse it, wherever it has got to."""
        request = self._requests.get(ask.request)
        if request is not None and request.passed_on:
            self._admission.tell(Cancel(ask.request, self._clock(), None))
            self._detokeniser.tell(CloseStream(ask.request))
        self._refuse(ask, errors.internal_error())

    # --- from a question to tokens ---

    def _ask(self, ask: Ask) -> None:
        if self._tombstones.rises(ask.request):
            self._say_cancelled(ask)
            return
        request = self._too_often(ask) or self._open(ask)
        if isinstance(request, WireError):
            self._refuse(ask, request)
            return
        length, most_input = request.length(), self._most_input(ask.create)
        shortest = length if most_input is None else least(request.own)
        room = self._room(ask.create, max(1, shortest.tokens(self._vocabulary.longest_token)), at_least=True)
        if isinstance(room, WireError):
            self._refuse(ask, room)
            return
        self._requests[ask.request] = request
        work = partial(_prompt, self._vocabulary, request, most_input)
        if length.text_bytes + _MESSAGE_BYTES * length.messages <= _INLINE_BYTES:
            self._tokenised(_outcome(ask.request, _result(work)))
        elif (full := self._full(ask.tenant)) is not None:
            self._refuse(ask, errors.server_overloaded(full, _RETRY_AFTER_MS))
        else:
            self._offloaded[ask.request] = ask.tenant
            self._offload(work, lambda result: self._mailbox.tell(_outcome(ask.request, result)), ask.tenant)

    def _full(self, tenant: str) -> str | None:
        """Why no more long prompts of this key are taken, in a sentence without its full stop; None: they are. No key
        may have more places than are left free, so that none takes them all from the others; "", where no key is
        needed, is everyone."""
        free = self._most_offloaded - len(self._offloaded)
        mine = self._waiting_of(tenant) if tenant else 0
        if free > mine:
            return None
        whose = " that this key may have" if free else ""
        return f"All places for long prompts{whose}, of {self._most_offloaded:,}, are taken"

    def _waiting_of(self, tenant: str) -> int:
        return sum(other == tenant for other in self._offloaded.values())

    def _too_often(self, ask: Ask) -> WireError | None:
        """A key that has asked as often as it may must not keep others from being read. Admission counts, and asks
        again; those that are being tokenised it has not counted yet."""
        return self._allowances.refusal(ask.tenant, self._clock(), self._waiting_of(ask.tenant))

    def _open(self, ask: Ask) -> _Request | WireError:
        if self._model is None:
            return errors.server_overloaded("The model is still being loaded", _RETRY_AFTER_MS)
        served = (self._model.name, *self._aliases)
        if ask.create.model is not None and ask.create.model not in served:
            return errors.model_not_found(ask.create.model, served)
        parent = None
        previous = ask.create.previous_response_id
        if previous is not None:
            parent = self._conversations.find(ask.tenant, previous, ask.connection, self._clock())
            if parent is None:
                return errors.previous_response_not_found(previous)
        return _Request(ask, parent, tuple(messages_of(ask.create)))

    def _most_input(self, create: ResponseCreate) -> int | None:
        """The longest prompt to cut a conversation down to; None when it is not to be cut."""
        if create.truncation != "auto":
            return None
        assert self._model is not None
        wanted = create.max_output_tokens or min(self._default_max_output_tokens, self._model.max_context // 2)
        return self._model.max_context - (0 if create.prefill_only else wanted)

    def _tokenised(self, done: Tokenised) -> None:
        request = self._requests.get(done.request)
        if request is None:  # cancelled while it was being tokenised
            return
        room = self._room(request.ask.create, len(done.tokens) // 4) if done.error is None else done.error
        if isinstance(room, WireError):
            self._refuse(request.ask, room)
        else:
            self._pass_on(request, done.tokens, room)

    def _room(self, create: ResponseCreate, input_tokens: int, *, at_least: bool = False) -> int | WireError:
        """How many tokens the answer may have, or why there is no room for any. `at_least`: nothing is counted yet."""
        assert self._model is not None
        if input_tokens == 0:
            return errors.invalid_request("The input makes an empty prompt. Send a text.", "input")
        max_context = self._model.max_context
        wanted = 0 if create.prefill_only else create.max_output_tokens
        if wanted is None:
            room = min(self._default_max_output_tokens, max_context - input_tokens)
            exceeded = errors.context_length_exceeded(input_tokens, None, max_context, at_least=at_least)
            return room if room > 0 else exceeded
        if input_tokens + wanted > max_context:
            return errors.context_length_exceeded(input_tokens, wanted or None, max_context, at_least=at_least)
        return wanted

    def _pass_on(self, request: _Request, tokens: bytes, max_output_tokens: int) -> None:
        ask, create = request.ask, request.ask.create
        assert self._model is not None
        end_tokens = () if create.ignore_eos else self._model.end_tokens
        opened = OpenStream(ask.request, ask.connection, end_tokens, create.stop, create.logprobs, max_output_tokens)
        own = create.targets or Targets()
        goal = self._tiers.resolve(create.service_tier, own.ttft_ms, own.itl_ms, ask.tenant)
        enqueue = Enqueue(
            ask.request,
            ask.connection,
            ask.tenant,
            tokens,
            sampling_of(create, self._defaults, self._random.getrandbits(63)),
            max_output_tokens,
            end_tokens,
            ask.received_at,
            deadline_at=None if create.deadline_ms is None else ask.received_at + create.deadline_ms / 1000,
            service_tier=goal.tier,
            ttft_target_s=goal.ttft_s,
            itl_target_s=goal.itl_s,
        )
        self._detokeniser.tell(opened)
        if not self._admission.offer(enqueue):
            self._detokeniser.tell(CloseStream(ask.request))
            self._refuse(ask, errors.server_overloaded("Too many requests arrive at once", _RETRY_AFTER_MS))
        else:
            request.passed_on = True

    def _refuse(self, ask: Ask, error: WireError) -> None:
        self._requests.pop(ask.request, None)
        self._directory.tell(ask.connection, Refused(ask.request, error))

    # --- how requests end ---

    def _cancel(self, cancel: Cancel) -> None:
        request = self._requests.pop(cancel.request, None)
        if request is None:
            # Not here yet, or over. What its reader has seen counts, even if it is less than the whole answer.
            self._tombstones.bury(cancel.request, self._clock())
            if cancel.keep is not None:
                self._conversations.shorten(cancel.request, cancel.keep)
            return
        request.cancelled = True
        if cancel.keep is not None:
            self._keep(request, cancel.keep or None)
        if request.passed_on:
            self._admission.tell(cancel)
            self._detokeniser.tell(CloseStream(cancel.request))
        else:
            self._say_cancelled(request.ask)

    def _remember(self, remember: Remember) -> None:
        request = self._requests.pop(remember.request, None)
        if request is not None and request.keeps:
            self._keep(request, remember.text)

    def _keep(self, request: _Request, answer: str | None) -> None:
        ask = request.ask
        only_for = None if ask.create.stored else ask.connection
        conversation = Conversation(request.parent, request.turns, answer)
        self._conversations.keep(ask.tenant, ask.request, conversation, only_for, self._clock())

    def _say_cancelled(self, ask: Ask) -> None:
        self._directory.tell(ask.connection, Ended(ask.request, "cancelled", Stats()))


def _prompt(vocabulary: Prompts, request: _Request, most: int | None) -> bytes:
    """Nothing for a request that was cancelled before its turn came: others wait behind it."""
    return b"" if request.cancelled else fit_prompt(vocabulary, request.messages(), most)


def _result(work: Callable[[], bytes]) -> bytes | Exception:
    try:
        return work()
    except PromptRefused as refused:
        return refused


def _outcome(request: RequestId, result: bytes | Exception) -> Tokenised:
    match result:
        case bytes():
            return Tokenised(request, result)
        case PromptRefused():
            return Tokenised(request, b"", errors.invalid_request(str(result), "input"))
        case _:
            log.error("prompt.failed", request=request, exc_info=result)
            return Tokenised(request, b"", errors.internal_error())
