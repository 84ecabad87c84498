"""What actors say to one another: one Struct a message, grouped by direction.

Knows the lanes a message travels in and the key under which a newer one replaces it. Knows nothing of mailboxes,
asyncio or tensors. Every message can be encoded and decoded (`tests/protocol/test_messages.py` round-trips them
all), so an actor can move to another process without changing a line of its own; the executor's already has.

Three base classes say how a message travels:

- `Data`: prompts, steps, tokens. Bounded and in order; a full lane is the sender's to answer for (`offer`).
- `Control`: never waits behind data and never blocks its sender (`tell`). Keyed by (type, `key`): the latest wins.
- `Merging`: joins the one of its kind that already waits under its key (`tell`), so text never waits for a socket.

Times are seconds on the engine's monotonic clock unless the name says `unix`. Token sequences and block tables
travel as little-endian int32 (`bytes`), which both sides read without a loop.
"""

import math
from typing import Literal

from msgspec import Struct

from protocol.errors import WireError
from protocol.responses import ResponseCreate

RequestId = str
ConnectionId = int

FinishReason = Literal["stop", "stop_text", "length", "prefilled", "cancelled", "deadline", "failed"]
"""How a request ended, in the words every part of rota uses (DESIGN, "Words for a request's life")."""


class Data(Struct, frozen=True, tag=True):
    """A message of the bounded, ordered lane."""


class Control(Struct, frozen=True, tag=True):
    """A message of the lane that overtakes. `key` names what it is about: a newer one replaces an older one."""

    @property
    def key(self) -> object:
        raise TypeError(f"{type(self).__name__} does not say what it is about")


class RequestControl(Control, frozen=True):
    """A control message about one request."""

    request: RequestId

    @property
    def key(self) -> object:
        return self.request


class ConnectionControl(Control, frozen=True):
    """A control message about one socket."""

    connection: ConnectionId

    @property
    def key(self) -> object:
        return self.connection


class SingleControl(Control, frozen=True):
    """A control message of which only the newest matters, whatever it is about."""

    @property
    def key(self) -> object:
        return None


# --- what a request asks for -----------------------------------------------------------------------------------------


class Sampling(Struct, frozen=True, array_like=True):
    """How a row's next token is chosen.

    `temperature` 0 is greedy; `top_k` 0 and `min_p` 0 are off. The draw depends on (`seed`, position) alone.
    `logprobs` is None when nobody asked, else how many alternatives to report beside the chosen token (0 to 20).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    logprobs: int | None = None


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


# --- connection -> tokeniser -> admission -> scheduler ---------------------------------------------------------------


class Ask(Data, frozen=True):
    """connection -> tokeniser: a valid `response.create`, to be turned into tokens."""

    request: RequestId
    connection: ConnectionId
    tenant: str
    """Whose conversations and cached prefixes it may see: the key's name, "" when the server has no keys."""
    create: ResponseCreate
    received_at: float


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
    """connection -> scheduler: the reader has fallen behind (`paused`), or caught up."""

    paused: bool
    at: float


class ConnectionClosed(ConnectionControl, frozen=True):
    """connection -> tokeniser, reaper: this socket is gone; forget what only it could use."""


# --- answers of tokeniser and admission to the connection ------------------------------------------------------------


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


# --- admission <-> scheduler -----------------------------------------------------------------------------------------


class Credit(SingleControl, frozen=True):
    """scheduler -> admission: how many requests may have been handed over since the worker started, in all.

    Running totals, so that a newer one can replace an older one. A next request may come while fewer than `granted`
    requests and fewer than `tokens` prompt tokens have been handed over: the last one may go over in tokens.
    """

    granted: int
    tokens: int


class CostsLearned(SingleControl, frozen=True):
    """scheduler -> admission: what steps cost now, to predict work and waits with (`actors/scheduling/costs.py`)."""

    coefficients: tuple[float, ...]
    """Seconds for each term of a step's cost, in the order of `costs.Costs`."""
    output_tokens: float
    """Of a usual answer, smoothed."""
    reserve_s: float = 0.0
    """From being let in to the first token, beyond what the prefill alone takes: enough for all but the slowest."""


# --- scheduler <-> executor <-> worker process -----------------------------------------------------------------------


class Chunk(Struct, frozen=True, array_like=True):
    """One request's part of a step: `tokens` [n] at positions `start` .. `start + n - 1`. A decode row has n = 1.

    `blocks` is the block table that covers positions 0 .. `start + n - 1`. `sampling` is given when the last of
    these tokens is the newest of its sequence, so that the next one is to be chosen.
    """

    request: RequestId
    start: int
    tokens: bytes
    blocks: bytes
    sampling: Sampling | None = None


class Step(Data, frozen=True):
    """scheduler -> executor -> worker: one forward pass over a ragged batch."""

    step: int
    chunks: tuple[Chunk, ...]


class SampledToken(Struct, frozen=True, array_like=True):
    """A chosen token; log-probabilities (natural) only when the chunk's `Sampling` asked for them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Work(Struct, frozen=True, array_like=True):
    """What is in a step, counted: what its time is predicted from."""

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    """Query-key pairs of the prefill chunks: `n * start + n * (n + 1) / 2` for n tokens from position `start`."""
    prefill_context: int = 0
    """Tokens in the cache that the chunks read, `start` each."""
    decode_rows: int = 0
    decode_context: int = 0
    """Tokens in the cache that the decode rows read, summed over the rows."""


class Measured(Struct, frozen=True, array_like=True):
    """A step that was run, and how long it took on the device, in seconds."""

    work: Work
    took_s: float


class StepDone(Control, frozen=True):
    """worker -> executor -> scheduler: `tokens` holds one entry for each chunk that had `sampling`, in its order."""

    step: int
    tokens: tuple[SampledToken, ...]
    took_s: float
    """Time on the device, as the worker measured it."""

    @property
    def key(self) -> object:
        return self.step


class LoadModel(Data, frozen=True):
    """executor -> worker: the first message of its life."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    kv_memory: int | None = None
    """Bytes for the KV blocks; None: the worker chooses from what is free."""
    max_context: int | None = None
    block_size: int = 16
    max_step_tokens: int = 512
    """Most tokens in one step, prefill and decode together: what working memory is measured with."""
    max_step_rows: int = 256


class ModelFound(Control, frozen=True):
    """worker -> executor: the files are in `folder` (tokeniser and configuration among them); loading begins."""

    name: str
    folder: str

    @property
    def key(self) -> object:
        return None


class ModelReady(Control, frozen=True):
    """worker -> executor -> engine, scheduler, admission, tokeniser: loaded, measured, and one real step has run."""

    name: str
    """The name the model is served under."""
    folder: str
    device: str
    dtype: str
    block_size: int
    blocks: int
    max_context: int
    vocabulary: int
    end_tokens: tuple[int, ...]
    weights_bytes: int
    kv_bytes: int
    working_bytes: int
    first_step_s: float
    rope: str = ""
    """Its RoPE settings, spelled out: what was computed with others is not the same."""
    calibration: tuple[Measured, ...] = ()
    """Steps of several kinds, run to learn what this device takes."""

    @property
    def key(self) -> object:
        return None


class ModelRefused(Control, frozen=True):
    """worker -> executor: it cannot serve. `message` is one sentence for the person who started it."""

    message: str

    @property
    def key(self) -> object:
        return None


class WorkerLost(SingleControl, frozen=True):
    """executor -> scheduler, engine: the worker process ended or hung; what ran in it is gone.

    engine -> reaper, connections: admission, scheduler and executor have started anew; all they held is gone.
    """

    message: str
    at: float


class WorkerGone(SingleControl, frozen=True):
    """A worker's pipe -> executor: the child process has ended. `worker` counts those started so far."""

    worker: int
    why: str


FromWorker = ModelFound | ModelReady | ModelRefused | StepDone
"""What the worker process writes to the pipe."""
ToWorker = LoadModel | Step
"""What the executor writes to the pipe."""


# --- tokens on their way to text -------------------------------------------------------------------------------------


class OpenStream(RequestControl, frozen=True):
    """tokeniser -> detokeniser: tokens of this request will come; told before its `Enqueue` is offered.

    A control message, so that the detokeniser's data lane is the scheduler's alone and never full.
    """

    connection: ConnectionId
    end_tokens: tuple[int, ...]
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    max_output_tokens: int = 0


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


class CloseStream(RequestControl, frozen=True):
    """tokeniser, admission, scheduler -> detokeniser: cancelled, refused or failed. Nothing more of it is wanted, nor
    its end. (An answer that ends well closes its stream itself, in order with its tokens.)"""


class Forget(RequestControl, frozen=True):
    """admission, scheduler, detokeniser -> tokeniser: refused or failed; there is no answer to continue from.

    So every request that passed the tokeniser comes back to it once: as `Remember`, `Cancel` or this.
    """


class Remember(RequestControl, frozen=True):
    """detokeniser -> tokeniser: the answer ended here; keep the conversation, so that it can be continued.

    `text` None: its client was shown no answer, not even an empty one.
    """

    text: str | None


class TokenLogprob(Struct, frozen=True, array_like=True):
    """A token's log-probability as text; `top` are the alternatives, likeliest first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class Merging(Struct, frozen=True, tag=True):
    """A message that joins the waiting one of its key instead of queueing behind it."""

    request: RequestId

    @property
    def key(self) -> object:
        return self.request


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


# --- the reaper's clocks ---------------------------------------------------------------------------------------------


class Watch(RequestControl, frozen=True):
    """admission -> reaper: this request exists and will be `Released`; say when its time is up.

    `wait_until` is how long it may wait for its first step, `deadline_at` the request's own bound; None: no bound.
    """

    wait_until: float
    deadline_at: float | None


class Expire(RequestControl, frozen=True):
    """reaper -> admission -> scheduler: a clock ran out. `waiting`: it concerns only a request that no step ran yet."""

    at: float
    waiting: bool

    @property
    def key(self) -> object:
        # The patience of the waiting room must not replace a deadline, which also ends a request that runs.
        return self.request, self.waiting


class WatchConnection(ConnectionControl, frozen=True):
    """connection -> reaper: it is open since `opened_at`, and was last `active_at`.

    `busy`: it waits for something of ours, so it is not idle. `stalled_since`: its reader takes nothing since then.
    """

    opened_at: float
    active_at: float
    busy: bool
    stalled_since: float | None = None


class CloseConnection(ConnectionControl, frozen=True):
    """reaper -> connection: close the socket with this code and reason, every response ended first."""

    code: int
    reason: str
    error: WireError | None = None
    """Given when running answers are to be told that they failed and why; None: they are cancelled."""


class Sweep(SingleControl, frozen=True):
    """reaper -> tokeniser, admission, scheduler, executor: drop what was kept too long, look for what hangs."""

    at: float


class Drain(SingleControl, frozen=True):
    """engine -> reaper, admission, connections: accept nothing new; what runs may end until `until`."""

    until: float


class AuditRequest(SingleControl, frozen=True):
    """reaper -> scheduler: count your blocks."""

    at: float


class AuditReport(SingleControl, frozen=True):
    """scheduler -> reaper: `free + cached + used == total`, or something has leaked. `requests`: all it still holds."""

    at: float
    free: int
    cached: int
    used: int
    total: int
    requests: tuple[RequestId, ...]


class Drained(SingleControl, frozen=True):
    """reaper -> engine: nothing is running any more, or the grace time is over."""

    at: float


# --- inside the reaper -----------------------------------------------------------------------------------------------


class Tick(SingleControl, frozen=True):
    """The reaper's timer -> the reaper."""

    at: float


# --- inside a connection ---------------------------------------------------------------------------------------------


class FrameReceived(Data, frozen=True):
    """A connection's reader -> its handler: one frame as it came. A `binary` one is no request, but has its place."""

    frame: bytes
    at: float
    binary: bool = False


class SocketLost(SingleControl, frozen=True):
    """A connection's reader or writer -> its handler: the socket is closed, by whatever cause."""

    code: int
    at: float


class WriterIdle(SingleControl, frozen=True):
    """A connection's writer -> its handler: everything has been handed to the socket; there is room for text."""


# --- inside the tokeniser --------------------------------------------------------------------------------------------


class Tokenised(RequestControl, frozen=True):
    """The tokeniser's thread -> the tokeniser: the work it put off the event loop is done.

    `error`: these messages make no prompt, and why; `tokens` is then empty.
    """

    tokens: bytes
    error: WireError | None = None
