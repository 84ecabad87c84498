"""What is said of a request: on its way to the scheduler, on the way back to its socket, and of who may come next.

Times are seconds on the engine's monotonic clock. Knows no steps and no text.
"""

import math

from msgspec import Struct

from protocol.errors import WireError
from protocol.kinds import ConnectionId, Data, FinishReason, RequestControl, RequestId, SingleControl
from protocol.responses import ResponseCreate
from protocol.steps import Sampling

# --- connection -> tokeniser -> admission -> scheduler ----------------------------------------------------------------


class Ask(Data, frozen=True):
    """connection -> tokeniser: a valid `response.create`, to be turned into tokens."""

    request: RequestId
    connection: ConnectionId
    tenant: str
    """Whose conversations and cached prefixes it may see: the key's name, "" when the server has no keys."""
    create: ResponseCreate
    received_at: float


class Tokenised(RequestControl, frozen=True):
    """The tokeniser's thread -> the tokeniser: the work it put off the event loop is done.

    `error`: these messages make no prompt, and why; `tokens` is then empty.
    """

    tokens: bytes
    error: WireError | None = None


class Enqueue(Data, frozen=True):
    """tokeniser -> admission -> scheduler: a request in tokens, from here on the same to everyone."""

    request: RequestId
    connection: ConnectionId
    tenant: str
    tokens: bytes
    sampling: Sampling
    max_output_tokens: int
    """0: prefill only (`generate: false`)."""
    end_tokens: tuple[int, ...]
    """Tokens that end the answer; empty under `ignore_eos`."""
    received_at: float
    accepted_at: float | None = None
    """When admission accepted it; None until the scheduler is given it."""
    deadline_at: float | None = None
    service_tier: str = "default"
    ttft_target_s: float = math.inf
    """To the first token, from `received_at`; infinity: no target."""
    itl_target_s: float = math.inf
    """From one token to the next."""


class Cancel(RequestControl, frozen=True):
    """connection -> tokeniser -> admission -> scheduler: nobody wants this answer any more. Idempotent.

    `keep` is the answer's text as far as it was delivered, when its reader stopped it and may carry on from there;
    None when the reader has gone.
    """

    at: float
    keep: str | None = None


class SetPaused(RequestControl, frozen=True):
    """connection -> scheduler: the reader has fallen behind (`paused`), or caught up.

    `unread`: nobody reads it, its socket was lost; then it is paused too.
    """

    paused: bool
    at: float
    unread: bool = False


# --- answers of tokeniser, admission and scheduler to the connection --------------------------------------------------


class Refused(RequestControl, frozen=True):
    """tokeniser, admission -> connection: there will be no response; the client gets an `error` event."""

    error: WireError


class Accepted(RequestControl, frozen=True):
    """admission -> connection: there will be a response."""

    input_tokens: int
    max_output_tokens: int
    at: float
    position: int = 0
    """Place in the waiting room, counting from 1; 0: it goes straight to the scheduler."""
    estimated_wait_s: float | None = None
    """None: nothing is known yet to estimate from."""


class Moved(RequestControl, frozen=True):
    """admission -> connection: a waiting request's place has changed."""

    position: int
    estimated_wait_s: float | None


class Started(RequestControl, frozen=True):
    """scheduler -> connection: the first step that runs this request has been planned."""

    at: float
    prefilled_tokens: int = 0
    """Of its prompt, found in the cache: they count as read."""


class PromptRead(RequestControl, frozen=True):
    """scheduler -> connection: more of its prompt has been read, and not yet all. Now and then, never after a token."""

    prefilled_tokens: int
    """Of its prompt so far, those found in the cache among them; never fewer than were told before."""


class Stats(Struct, frozen=True):
    """What the engine knows of a request when it ends. Times are durations in seconds."""

    queued_s: float = 0.0
    """From acceptance to the first step that ran it (or to its end, if none did)."""
    prefill_s: float | None = None
    """From that first step to the first token; None when there was none."""
    first_token_at: float | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    """Tokens sampled. The answer may end earlier, where the detokeniser found a stop text."""
    preemptions: int = 0
    paused_s: float = 0.0


class Ended(RequestControl, frozen=True):
    """Whoever held the request last (tokeniser, admission or scheduler) -> connection: no later step includes it.

    For `stop`, `stop_text`, `length`, `prefilled` and `deadline` the end itself follows the text through the slot, and
    this adds the figures. For `cancelled` and `failed` this is the end: the slot is closed.
    """

    reason: FinishReason
    stats: Stats
    error: WireError | None = None


class Released(RequestControl, frozen=True):
    """admission or scheduler -> connection, reaper (and admission): its memory is back.

    Exactly once for every request that got as far as admission, however it ended, after its `Ended`.
    """

    at: float
    cancelled_at: float | None = None
    computed_tokens: int = 0
    """Prompt tokens that were run for it, without those found in the cache. What was recomputed counts once."""
    output_tokens: int = 0


# --- scheduler <-> admission ------------------------------------------------------------------------------------------


class Credit(SingleControl, frozen=True):
    """scheduler -> admission: how many requests may have been handed over since the worker started, in all.

    Running totals, so that a newer one can replace an older one. A next request may come while fewer than `granted`
    requests and fewer than `tokens` prompt tokens have been handed over: the last one may go over in tokens. `tokens`
    below what has been handed over tells by how much what is unread exceeds what the policy wants: only who is small
    beside that may come (`WaitingRoom.next`).
    """

    granted: int
    tokens: int


class Unread(RequestControl, frozen=True):
    """scheduler -> admission: nobody reads a request that was let in (`unread`), or somebody does again."""

    unread: bool


class GiveWay(RequestControl, frozen=True):
    """admission -> scheduler: others of its key need the place of this one. If nobody reads it still, it fails."""


class CostsLearned(SingleControl, frozen=True):
    """scheduler -> admission: what steps cost now, to predict work and waits with (`actors/scheduling/costs.py`)."""

    coefficients: tuple[float, ...]
    """Seconds for each term of a step's cost, in the order of `costs.Costs`."""
    output_tokens: float
    """Of a usual answer, smoothed."""
    reserve_s: float = 0.0
    """From being let in to the first token, beyond what the prefill alone takes: enough for all but the slowest."""
