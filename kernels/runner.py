"""Runs steps: one ragged batch through the decoder, and the next tokens out.

Knows how a `Step` becomes one row of tokens and how its logits become tokens again, and measures what the largest
step takes. Does not know why a step looks as it does (the scheduler decides), nor sockets.
"""

from collections.abc import Sequence
from typing import Protocol

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

    @torch.inference_mode()
    def run(self, chunks: tuple[Chunk, ...]) -> tuple[SampledToken, ...]:
        """One forward pass. Returns a token for each chunk with `sampling`, in order.

        Keys and values of every token are in the cache when it returns. Raises ValueError on a block table that does
        not cover its chunk.
        """
        if not chunks:
            return ()
        batch = batch_of(chunks, self.cache.block_size, self.cache.blocks)
        asked = [it.sampling for it in chunks if it.sampling is not None]
        rows = [end - 1 for it, end in zip(chunks, batch.ends.tolist(), strict=True) if it.sampling is not None]
        return self._forward.answer(self.cache, batch, rows, asked)


def make_runner(
    decoder: Decoder,
    *,
    kv_memory: int | None,
    block_size: int,
    max_step_tokens: int,
    max_step_rows: int,
    forward: Forward | None = None,
) -> tuple[Runner, memory.Budget]:
    """Measure the working memory, divide what is there, and allocate the KV blocks.

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
            on_gpu=device.type != "cpu",
        )

    plan(0)  # what cannot fit at all is refused before anything large is run
    working = measure_working_memory(decoder, block_size, max_step_tokens, max_step_rows, forward)
    budget = plan(working)
    cache = forward.new_cache(decoder.layers, budget.blocks, block_size, decoder.dtype, device)
    return Runner(decoder, cache, forward), budget


def measure_working_memory(
    decoder: Decoder, block_size: int, max_step_tokens: int, max_step_rows: int, forward: Forward | None = None
) -> int:
    """Bytes that the largest steps take beside weights and KV blocks.

    Two are run, on a cache of one full context that is given back afterwards: a chunk of `max_step_tokens` at the end
    of the context, and `max_step_rows` rows that sample in the costliest way. Raises ModelError when they do not fit.
    """
    context = decoder.max_context
    blocks = -(-context // block_size)
    forward = TorchForward(decoder) if forward is None else forward
    cache = forward.new_cache(decoder.layers, blocks, block_size, decoder.dtype, decoder.device)
    runner = Runner(decoder, cache, forward)
    table = np.arange(blocks, dtype="<i4").tobytes()
    count = min(max_step_tokens, context)
    chunk = Chunk("measure", context - count, bytes(4 * count), table)
    rows = min(max_step_rows, max_step_tokens)
    worst = rows_at_once(decoder.vocabulary)  # one slice of them takes as much as many do
    decodes = tuple(
        Chunk(
            "measure",
            row % min(context, 4 * block_size),
            bytes(4),
            table,
            WORST_SAMPLING if row < worst else Sampling(),
        )
        for row in range(rows)
    )
    try:
        with memory.PeakMeter(decoder.device) as meter:
            runner.run((chunk,))
            runner.run(decodes)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"A step of {max_step_tokens} tokens does not fit into the memory that the weights leave: "
            f"allow smaller steps or a shorter context."
        ) from error
    return meter.bytes


def _row(values: NDArray[np.signedinteger], device: torch.device) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))[None].to(device)
