"""What is said of an answer: its tokens on their way to text, the text on its way to the socket, and how it ended.

Knows no steps' content and no wire format.
"""

from msgspec import Struct

from protocol.kinds import ConnectionId, Data, FinishReason, Merging, RequestControl, RequestId, SingleControl
from protocol.steps import SampledToken

# --- scheduler <-> detokeniser ----------------------------------------------------------------------------------------


class TokenRow(Struct, frozen=True, array_like=True):
    """A request's next token. `last`: the scheduler has stopped running it (end token or output limit)."""

    request: RequestId
    token: SampledToken
    last: bool = False


class Tokens(Data, frozen=True):
    """scheduler -> detokeniser: all that one step produced. `at`: when the step's result arrived.

    `ended` are requests that ended without a token of their own in this step: `prefilled` or `deadline`.
    """

    step: int
    at: float
    rows: tuple[TokenRow, ...]
    ended: tuple[tuple[RequestId, FinishReason], ...] = ()


class TokensTaken(SingleControl, frozen=True):
    """detokeniser -> scheduler: every `Tokens` up to `step` has been turned into text. Bounds what is under way."""

    step: int


class FinishStream(RequestControl, frozen=True):
    """detokeniser -> scheduler: a stop text was found; plan no further step for this request."""

    at: float


# --- tokeniser <-> detokeniser ----------------------------------------------------------------------------------------


class OpenStream(RequestControl, frozen=True):
    """tokeniser -> detokeniser: tokens of this request will come; told before its `Enqueue` is offered.

    A control message, so that the detokeniser's data lane is the scheduler's alone and never full.
    """

    connection: ConnectionId
    end_tokens: tuple[int, ...]
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    max_output_tokens: int = 0


class CloseStream(RequestControl, frozen=True):
    """tokeniser, admission, scheduler -> detokeniser: cancelled, refused or failed. Nothing more of it is wanted, nor
    its end. (An answer that ends well closes its stream itself, in order with its tokens.)"""


class Remember(RequestControl, frozen=True):
    """detokeniser -> tokeniser: the answer ended here; keep the conversation, so that it can be continued.

    `text` None: its client was shown no answer, not even an empty one.
    """

    text: str | None


class Forget(RequestControl, frozen=True):
    """admission, scheduler, detokeniser -> tokeniser: refused or failed; there is no answer to continue from.

    So every request that passed the tokeniser comes back to it once: as `Remember`, `Cancel` or this.
    """


# --- detokeniser -> connection ----------------------------------------------------------------------------------------


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token's log-probability as text; `top` are the alternatives, likeliest first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class TextEnd(Struct, frozen=True):
    """How and where the answer ended: `output_tokens` counts up to and with the token that ended it.

    `failed` here says that the detokeniser failed on this answer (`internal_error`); an `Ended` that names another
    reason only adds its figures, as always.
    """

    reason: FinishReason
    output_tokens: int


class Text(Merging, frozen=True):
    """detokeniser -> connection, through the request's slot: text that is safe to show, in order.

    `token_times` has one entry for each token consumed so far and not yet reported, shown or held back.
    """

    text: str
    token_times: tuple[float, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    end: TextEnd | None = None

    def join(self, newer: "Text") -> "Text":
        """This text followed by `newer`."""
        assert self.end is None, "nothing follows the end of an answer"
        return Text(
            self.request,
            self.text + newer.text,
            self.token_times + newer.token_times,
            self.logprobs + newer.logprobs,
            newer.end,
        )
