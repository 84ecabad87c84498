"""Runs steps: one ragged batch through the decoder, and the next tokens out.

Knows how a `Step` becomes one row of tokens and how its logits become tokens again, and measures what the largest
step takes. Does not know why a step looks as it does (the scheduler decides), nor sockets.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels import ModelError, memory
from kernels.attention.interface import Attends
from kernels.attention.reference import PagedBatch, Span
from kernels.decoder import Decoder
from kernels.kv_cache import KVCache, block_bytes
from kernels.sampling import rows_at_once, sample
from protocol.messages import Chunk, SampledToken, Sampling

MakeBatch = Callable[[KVCache, list[Span], torch.device], Attends]
"""How a step's spans become something the layers can attend with: which attention is used."""

WORST_SAMPLING = Sampling(temperature=1.0, top_p=1 - 1e-9, seed=1, logprobs=20)
"""Sorts the whole vocabulary and reports as many alternatives as can be asked for."""


class Runner:
    """A decoder, its cache, and the attention between them."""

    def __init__(self, decoder: Decoder, cache: KVCache, make_batch: MakeBatch = PagedBatch) -> None:
        self.decoder = decoder
        self.cache = cache
        self._make_batch = make_batch

    @torch.inference_mode()
    def run(self, chunks: tuple[Chunk, ...]) -> tuple[SampledToken, ...]:
        """One forward pass. Returns a token for each chunk with `sampling`, in order.

        Keys and values of every token are in the cache when it returns. Raises ValueError on a block table that does
        not cover its chunk.
        """
        if not chunks:
            return ()
        device = self.decoder.device
        tokens = [np.frombuffer(it.tokens, "<i4") for it in chunks]
        counts = [len(it) for it in tokens]
        spans = [
            Span(it.start, count, np.frombuffer(it.blocks, "<i4")) for it, count in zip(chunks, counts, strict=True)
        ]
        batch = self._make_batch(self.cache, spans, device)
        ids = _row(np.concatenate(tokens), device)
        positions = _row(np.concatenate([np.arange(it.start, it.start + it.count) for it in spans]), device)
        ends = np.cumsum(counts)
        sampled = [index for index, it in enumerate(chunks) if it.sampling is not None]
        if not sampled:
            self.decoder.body(input_ids=ids, position_ids=positions, use_cache=False, step=batch)
            return ()
        keep = torch.from_numpy(ends[sampled] - 1).to(device)
        logits: Tensor = self.decoder.model(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep, step=batch
        ).logits[0]
        asked = [it.sampling for it in chunks if it.sampling is not None]
        return sample(logits, asked, [spans[index].start + counts[index] for index in sampled])


def make_runner(
    decoder: Decoder, *, kv_memory: int | None, block_size: int, max_step_tokens: int, max_step_rows: int
) -> tuple[Runner, memory.Budget]:
    """Measure the working memory, divide what is there, and allocate the KV blocks.

    Raises ModelError, with the arithmetic, when not one full-context request fits.
    """
    device = decoder.device
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
    working = measure_working_memory(decoder, block_size, max_step_tokens, max_step_rows)
    budget = plan(working)
    cache = KVCache(decoder.layers, budget.blocks, block_size, decoder.dtype, device)
    return Runner(decoder, cache), budget


def measure_working_memory(decoder: Decoder, block_size: int, max_step_tokens: int, max_step_rows: int) -> int:
    """Bytes that the largest steps take beside weights and KV blocks.

    Two are run, on a cache of one full context that is given back afterwards: a chunk of `max_step_tokens` at the end
    of the context, and `max_step_rows` rows that sample in the costliest way. Raises ModelError when they do not fit.
    """
    context = decoder.max_context
    blocks = -(-context // block_size)
    runner = Runner(decoder, KVCache(decoder.layers, blocks, block_size, decoder.dtype, decoder.device))
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
