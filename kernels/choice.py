"""Which kernels compute a model: our own for CPUs, our own for GPUs, or plain torch.

Knows the wishes (auto, native, triton, torch), tries our own on a few tokens before it trusts them, and says in a
sentence why it does without. Does not know what they do.
"""

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from kernels import ModelError
from kernels.batch import batch_of
from kernels.checkpoint import say
from kernels.decoder import Decoder
from kernels.native.binding import Failed, Unit
from kernels.native.build import NotBuilt
from kernels.native.stack import NativeStack
from kernels.runner import Forward, TorchForward
from kernels.structure import Unknown
from protocol.messages import Chunk

TORCH = "plain torch"
TRIED = 24
"""Tokens that both are given."""
FAR_APART = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Logits further apart, as a share of their norm, are not the same model's. bfloat16 itself makes 0.01 to 0.03."""


class Choice(NamedTuple):
    forward: Forward
    computed_by: str
    weights_bytes: int


def choose_forward(
    wish: str,
    decoder: Decoder,
    threads: int,
    block_size: int,
    max_step_tokens: int = 512,
    max_step_rows: int = 256,
) -> Choice:
    """Pack the decoder for our own kernels if that is wished for and can be, else leave it to torch.

    Where our own for CPUs are chosen the decoder's modules are empty afterwards: their weights are held once. Raises
    ModelError when our own are wished for and cannot be had.
    """
    torch_only = Choice(TorchForward(decoder), TORCH, decoder.weights_bytes)
    if wish == "torch":
        return torch_only
    if wish == "triton" or (wish == "auto" and decoder.device.type == "cuda"):
        return _for_gpus(wish, decoder, block_size, max_step_tokens, max_step_rows) or torch_only
    try:
        stack = _native(decoder, threads, block_size)
    except (NotBuilt, Unknown, Failed) as error:
        why = str(error) if isinstance(error, NotBuilt) else f"The CPU kernels cannot run this model: {error}."
        if wish == "native":
            raise ModelError(why) from error
        say(f"{why} It runs on plain torch, which is slower.")
        return torch_only
    decoder.model.to("meta")
    words = {Unit.TILES: "tiles (AMX)", Unit.VECTORS: "vectors"}[stack.unit]
    return Choice(stack, f"our CPU kernels on {words}, {threads} thread{'s' if threads > 1 else ''}", stack.bytes)


def _for_gpus(wish: str, decoder: Decoder, block_size: int, max_step_tokens: int, max_step_rows: int) -> Choice | None:
    """Our own layers where we know the model's, else the model itself with our attention; None: neither."""
    try:
        from kernels.triton.choice import triton_forward

        forward, words = triton_forward(decoder, block_size, max(max_step_tokens, TRIED), max_step_rows)
        apart = distance(forward, TorchForward(decoder), decoder, block_size)
        if not apart <= FAR_APART[decoder.dtype] and not _as_near_as_torch(forward, decoder, block_size):
            raise Unknown(
                f"their answer to {TRIED} tokens is {apart:.2g} away from torch's, which is a defect of theirs"
            )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            "The weights leave too little memory to try the Triton kernels: choose a smaller model or --kernels torch."
        ) from error
    except Exception as error:
        why = f"The Triton kernels cannot run this model: {str(error).strip().split(chr(10))[0].rstrip('.')}."
        if wish == "triton":
            raise ModelError(why) from error
        say(f"{why} It runs on plain torch, which is slower.")
        return None
    return Choice(forward, words, decoder.weights_bytes)


def _native(decoder: Decoder, threads: int, block_size: int) -> NativeStack:
    if decoder.device.type != "cpu":
        raise Unknown(f"it is on {decoder.device}")
    if decoder.dtype not in (torch.float32, torch.bfloat16):
        raise Unknown(f"it is in {str(decoder.dtype).removeprefix('torch.')}")
    stack = NativeStack(decoder, threads=threads, block_size=block_size)
    apart = distance(stack, TorchForward(decoder), decoder, block_size)
    if not apart <= FAR_APART[decoder.dtype] and not _as_near_as_torch(stack, decoder, block_size):
        raise Failed(f"their answer to {TRIED} tokens is {apart:.2g} away from torch's, which is a defect of theirs")
    return stack


def _as_near_as_torch(stack: Forward, decoder: Decoder, block_size: int) -> bool:
    """Whether what is far from torch's bfloat16 is no further from float32 than that: a deep model's own noise."""
    if decoder.dtype is torch.float32:
        return False
    model: Any = copy.deepcopy(decoder.model).float()
    whole = replace(decoder, model=model, body=model.base_model, dtype=torch.float32)
    precise = TorchForward(whole)
    ours = distance(stack, precise, decoder, block_size, whole)
    torchs = distance(TorchForward(decoder), precise, decoder, block_size, whole)
    return ours <= 1.5 * torchs


@torch.inference_mode()
def distance(one: Forward, other: Forward, decoder: Decoder, block_size: int, of_other: Decoder | None = None) -> float:
    """How far apart the logits of two are after some tokens, as a share of the other's norm. `of_other`: its decoder,
    where that is another."""
    count = min(TRIED, decoder.max_context)
    ids = np.random.default_rng(0).integers(0, decoder.vocabulary, count).astype("<i4")
    blocks = -(-count // block_size)
    table = np.arange(blocks, dtype="<i4").tobytes()
    # In two pieces, so that the second reads what the first has written.
    first = count // 2
    found = []
    for forward, its in ((one, decoder), (other, of_other or decoder)):
        cache = forward.new_cache(its.layers, blocks, block_size, its.dtype, its.device)
        for start, end in ((0, first), (first, count)):
            if start < end:
                chunk = Chunk("tried", start, ids[start:end].tobytes(), table)
                logits = forward.logits(cache, batch_of((chunk,), block_size, blocks), [end - start - 1])
        found.append(logits[0].float().clone())
    return float((found[0] - found[1]).norm() / found[1].norm())
