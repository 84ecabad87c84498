"""What is said of steps and of the worker that runs them: between scheduler and executor, and over the worker's pipe.

Token sequences and block tables travel as little-endian int32 (`bytes`), which both sides read without a loop. Knows no
tensors and no device.
"""

from msgspec import Struct

from protocol.kinds import Control, Data, RequestId, SingleControl

# --- scheduler -> executor -> worker ----------------------------------------------------------------------------------


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


class Chunk(Struct, frozen=True, array_like=True):
    """One request's part of a step: `tokens` [n] at positions `start` .. `start + n - 1`. A decode row has n = 1.

    `blocks` is the block table that covers positions 0 .. `start + n - 1`. `sampling` is given when the last of
    these tokens is the newest of its sequence, so that the next one is to be chosen.

    A row can be planned before its token is known, while the step that chooses it still runs. `follows` is then that
    token's place among those which the step before chooses, and `tokens` holds a single 0 in its stead.
    """

    request: RequestId
    start: int
    tokens: bytes
    blocks: bytes
    sampling: Sampling | None = None
    follows: int = -1


class Step(Data, frozen=True):
    """scheduler -> executor -> worker: one forward pass over a ragged batch.

    `behind` is the step that was the newest in flight when this one was planned, 0 when none was. Where that one is
    not run, this one is not either: its rows may follow tokens that were never chosen, or read what was not written.
    """

    step: int
    chunks: tuple[Chunk, ...]
    behind: int = 0


# --- worker -> executor -> scheduler ----------------------------------------------------------------------------------


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


class StepFailed(Control, frozen=True):
    """worker -> executor -> scheduler: the step was not run, for lack of memory or because the one it was planned
    behind was not. Nothing that was in the cache before has changed; what it was to write counts as not written."""

    step: int
    message: str

    @property
    def key(self) -> object:
        return self.step


# --- the worker's life ------------------------------------------------------------------------------------------------


class LoadModel(Data, frozen=True):
    """executor -> worker: the first message of its life."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    kernels: str = "auto"
    """auto; native or torch on a CPU; triton or torch on a GPU. none: nothing computes, every token is made up."""
    kv_memory: int | None = None
    """Bytes for the KV blocks; None: the worker chooses from what is free."""
    max_context: int | None = None
    block_size: int = 32
    max_step_tokens: int = 512
    """Most tokens in one step, prefill and decode together: what working memory is measured with."""
    max_step_rows: int = 256
    gpu_memory_fraction: float = 0.92
    """Of a GPU's memory, how much may be taken in all, by other programs too, when the KV blocks are allocated."""
    steps_in_flight: int | None = None
    """1, or 2 for the next step to be planned while one runs. None: 2 on a GPU, which runs beside its host, else 1."""


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
    kernels: str = "plain torch"
    """What computes, in words."""
    calibration: tuple[Measured, ...] = ()
    """Steps of several kinds, run to learn what this device takes."""
    steps_in_flight: int = 1
    """How many steps it is to be given at a time."""

    @property
    def key(self) -> object:
        return None


class ModelRefused(Control, frozen=True):
    """worker -> executor: it cannot serve. `message` is one sentence for the person who started it."""

    message: str

    @property
    def key(self) -> object:
        return None


FromWorker = ModelFound | ModelReady | ModelRefused | StepDone | StepFailed
"""What the worker process writes to the pipe."""
ToWorker = LoadModel | Step
"""What the executor writes to the pipe."""


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
