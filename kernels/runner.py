"""Runs steps: one ragged batch through the decoder, and the next tokens out.

Knows how a `Step` becomes one row of tokens and how its logits become tokens again, and measures what the largest
step takes. Does not know why a step looks as it does (the scheduler decides), nor sockets.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels import ModelError, memory
from kernels.attention.reference import PagedBatch, Span
from kernels.batch import Batch, batch_of
from kernels.decoder import Decoder
from kernels.kv_cache import KVCache, LayerShape, block_bytes
from kernels.sampling import rows_at_once, sample
from protocol.messages import Chunk, SampledToken, Sampling

RECORDED_BYTES = 512 * 2**20
"""For decode steps that are recorded once the KV blocks are there: a graph's kernels, and libraries' own memory."""
CPU_SHARE, CPU_LEAST = 8, 64
"""On a CPU the working memory is that of a chunk of so small a part of the largest, as many times over; not of fewer
tokens than these."""
WORST_SAMPLING = Sampling(temperature=1.0, top_p=1 - 1e-9, seed=1, logprobs=20)
"""Sorts the whole vocabulary and reports as many alternatives as can be asked for."""


class Forward(Protocol):
    """A way to compute a decoder, and the cache it reads and writes."""

    def new_cache(
        self, layers: Sequence[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """An empty cache, as `KVCache` makes one."""
        ...

    def logits(self, cache: KVCache, batch: Batch, rows: Sequence[int]) -> Tensor:
        """One forward pass. Returns the logits `[rows, vocabulary]` of these flat rows. Keys and values of every token
        are in the cache when it returns."""
        ...

    def answer(
        self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]
    ) -> tuple[SampledToken, ...]:
        """The same, and from each row's logits the next token, as it is asked for."""
        ...


class Ran(NamedTuple):
    """A step's tokens, one for each row that was asked, and how long it was on the device, in seconds: without what the
    host did before, where the device runs beside it."""

    tokens: tuple[SampledToken, ...]
    took_s: float


class Launched(Protocol):
    """A step that is on its way."""

    def wait(self) -> Ran:
        """What it came to, when it has. May be called in another thread than the one that launches steps."""
        ...


@runtime_checkable
class RunsBeside(Protocol):
    """A `Forward` on a device that runs beside its host: steps are launched, and waited for later.

    `fixed_bytes`: what it has taken of the device already, for steps to work in.
    """

    @property
    def fixed_bytes(self) -> int: ...

    def launch(self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]) -> Launched:
        """Begin what `answer` does, behind the steps on their way. `batch.follows` is followed on the device."""
        ...

    def record(self, cache: KVCache, shown: Callable[[list[int]], Iterable[int]]) -> None:
        """Record decode steps of some sizes on this cache, to be replayed. `shown` shows how far it is."""
        ...


@dataclass(frozen=True)
class _Done:
    """A step that had ended before it was waited for."""

    ran: Ran

    def wait(self) -> Ran:
        return self.ran


class TorchForward:
    """The transformers model itself, with paged attention in plain torch."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def new_cache(
        self, layers: Sequence[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        return KVCache(layers, blocks, block_size, dtype, device)

    def logits(self, cache: KVCache, batch: Batch, rows: Sequence[int]) -> Tensor:
        device = self._decoder.device
        spans = [
            Span(start, count, batch.table(index))
            for index, (start, count) in enumerate(zip(batch.starts.tolist(), batch.counts.tolist(), strict=True))
        ]
        step = PagedBatch(cache, spans, device)
        ids, positions = _row(batch.ids, device), _row(batch.positions, device)
        if not rows:
            self._decoder.body(input_ids=ids, position_ids=positions, use_cache=False, step=step)
            return torch.empty((0, self._decoder.vocabulary), device=device)
        keep = torch.tensor(rows, device=device)
        found: Tensor = self._decoder.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep, step=step
        ).logits[0]
        return found

    def answer(
        self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]
    ) -> tuple[SampledToken, ...]:
        positions = [int(batch.positions[row]) + 1 for row in rows]
        return sample(self.logits(cache, batch, rows), asked, positions)


class Runner:
    """A decoder, its cache, and what computes it."""

    def __init__(self, decoder: Decoder, cache: KVCache, forward: Forward | None = None) -> None:
        self.decoder = decoder
        self.cache = cache
        self._forward = TorchForward(decoder) if forward is None else forward
        self._beside = self._forward if isinstance(self._forward, RunsBeside) else None
        self._chosen: list[int] = []
        """The last step's tokens, for those that follow them."""

    @property
    def runs_beside(self) -> bool:
        """Whether `launch` returns before the step has run."""
        return self._beside is not None

    def run(self, chunks: tuple[Chunk, ...]) -> tuple[SampledToken, ...]:
        """One forward pass. Returns a token for each chunk with `sampling`, in order.

        Keys and values of every token are in the cache when it returns. Raises ValueError on a block table that does
        not cover its chunk.
        """
        return self.launch(chunks).wait().tokens

    @torch.inference_mode()
    def launch(self, chunks: tuple[Chunk, ...]) -> Launched:
        """Begin `run`. A chunk may follow a token that the step launched before chooses, whether that has ended or not.

        Raises what `memory.out_of_memory` knows when there is none for this step: then it has not run.
        """
        began = time.perf_counter()
        if not chunks:
            return _Done(Ran((), 0.0))
        batch = batch_of(chunks, self.cache.block_size, self.cache.blocks)
        asked = [it.sampling for it in chunks if it.sampling is not None]
        rows = [end - 1 for it, end in zip(chunks, batch.ends.tolist(), strict=True) if it.sampling is not None]
        if self._beside is not None:
            return self._beside.launch(self.cache, batch, rows, asked)
        tokens = self._forward.answer(self.cache, self._filled_in(batch), rows, asked)
        self._chosen = [it.token for it in tokens]
        # Sampled tokens are back on the host, so the device is done too.
        return _Done(Ran(tokens, time.perf_counter() - began))

    def _filled_in(self, batch: Batch) -> Batch:
        """The batch with the tokens that follow the step before, which has ended."""
        followers = np.flatnonzero(batch.follows >= 0)
        if not followers.size:
            return batch
        ids = batch.ids.copy()
        ids[followers] = [self._chosen[place] for place in batch.follows[followers].tolist()]
        return replace(batch, ids=ids)


def make_runner(
    decoder: Decoder,
    *,
    kv_memory: int | None,
    block_size: int,
    max_step_tokens: int,
    max_step_rows: int,
    forward: Forward | None = None,
    gpu_memory_fraction: float = 0.92,
) -> tuple[Runner, memory.Budget]:
    """Measure the working memory, divide what is there, and allocate the KV blocks.

    `gpu_memory_fraction`: how much of a GPU's memory may be taken in all, by others too.

    Raises ModelError, with the arithmetic, when not one full-context request fits.
    """
    device = decoder.device
    forward = TorchForward(decoder) if forward is None else forward
    one_block = block_bytes(decoder.layers, block_size, decoder.dtype)

    def plan(working_bytes: int) -> memory.Budget:
        return memory.plan(
            weights_bytes=decoder.weights_bytes,
            working_bytes=working_bytes,
            available_bytes=memory.available_bytes(device),
            block_bytes=one_block,
            block_size=block_size,
            max_context=decoder.max_context,
            max_rows=max_step_rows,
            kv_memory=kv_memory,
            gpu_bytes=memory.gpu_bytes(device, gpu_memory_fraction),
        )

    plan(0)  # what cannot fit at all is refused before anything large is run
    working = measure_working_memory(decoder, block_size, max_step_tokens, max_step_rows, forward)
    if device.type == "cuda" and isinstance(forward, RunsBeside):
        # What is recorded afterwards, and the block that nobody has.
        working += RECORDED_BYTES + one_block
    budget = plan(working)
    cache = forward.new_cache(decoder.layers, budget.blocks, block_size, decoder.dtype, device)
    if isinstance(forward, RunsBeside):
        budget = replace(budget, working_bytes=budget.working_bytes + forward.fixed_bytes)
    return Runner(decoder, cache, forward), budget


def measure_working_memory(
    decoder: Decoder, block_size: int, max_step_tokens: int, max_step_rows: int, forward: Forward | None = None
) -> int:
    """Bytes that the largest steps take beside weights and KV blocks.

    Two are run, on a cache of one full context that is given back afterwards: a chunk of `max_step_tokens` at the end
    of the context, and `max_step_rows` rows that sample in the costliest way. On a CPU, where such a chunk takes
    seconds of everybody's start, an eighth of it is run: what a chunk takes grows with its tokens, and what does not
    is counted eight times over. Raises ModelError when they do not fit.
    """
    context = decoder.max_context
    blocks = -(-context // block_size)
    forward = TorchForward(decoder) if forward is None else forward
    cache = forward.new_cache(decoder.layers, blocks, block_size, decoder.dtype, decoder.device)
    runner = Runner(decoder, cache, forward)
    table = np.arange(blocks, dtype="<i4").tobytes()
    most = min(max_step_tokens, context)
    count = most if decoder.device.type == "cuda" else min(most, max(CPU_LEAST, most // CPU_SHARE))
    chunk = Chunk("measure", context - count, bytes(4 * count), table)
    rows = min(max_step_rows, max_step_tokens)
    worst = rows_at_once(decoder.vocabulary)  # one slice of them takes as much as many do
    decodes = tuple(
        Chunk(
            f"measure {row}",
            row % min(context, 4 * block_size),
            bytes(4),
            table,
            WORST_SAMPLING if row < worst else Sampling(),
        )
        for row in range(rows)
    )
    try:
        with memory.PeakMeter(decoder.device) as of_chunk:
            runner.run((chunk,))
        with memory.PeakMeter(decoder.device) as of_rows:
            runner.run(decodes)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"A step of {max_step_tokens} tokens does not fit into the memory that the weights leave: "
            f"allow smaller steps or a shorter context."
        ) from error
    return max(of_chunk.bytes * most // count, of_rows.bytes)


def _row(values: NDArray[np.signedinteger], device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))[None].to(device)
