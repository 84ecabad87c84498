"""Which way a decoder is run on a GPU.

Knows what our attention asks of a model. Does not know whether it computes the same: whoever chooses tries that.
"""

import torch

from kernels.decoder import Decoder
from kernels.structure import Unknown
from kernels.triton.forward import TritonForward
from kernels.triton.hosted import HostedModel
from kernels.triton.layers import Body, OwnLayers
from kernels.triton.products import INTERPRETED
from kernels.triton.sampling import LARGEST_VOCABULARY

HEAD_DIMS = (16, 32, 64, 96, 128, 256)
MOST_GROUP = 16
KNOWN_GPUS = (9, 10)
"""Compute capabilities, as far as the point: Hopper's, and Blackwell's for data centres. Programs have up to 227 KiB of
shared memory there, and the largest of ours take 192."""


def triton_forward(
    decoder: Decoder, block_size: int, max_step_tokens: int, max_step_rows: int
) -> tuple[TritonForward, str]:
    """What runs the decoder, and what computes then, in words. Raises Unknown, as a clause."""
    if decoder.device.type == "cpu" and not INTERPRETED.value:
        raise Unknown("it is on the CPU, where they run only in Triton's interpreter (TRITON_INTERPRET=1), for tests")
    shape = decoder.layers[0]
    if len(set(decoder.layers)) > 1:
        raise Unknown("its layers keep keys and values of different shapes")
    if shape.key_dim != shape.value_dim or shape.key_dim not in HEAD_DIMS:
        raise Unknown(f"it has heads of {shape.key_dim}, and they know {', '.join(map(str, HEAD_DIMS))}")
    group, left = divmod(query_heads(decoder), shape.kv_heads)
    if left or group > MOST_GROUP:
        raise Unknown(f"{group} of its query heads share a key head, and they know up to {MOST_GROUP}")
    if block_size % 16 or not 16 <= block_size <= 64:
        raise Unknown(f"its cache has blocks of {block_size} tokens, and they know 16, 32, 48 and 64")
    if decoder.vocabulary > LARGEST_VOCABULARY:
        raise Unknown(f"it has {decoder.vocabulary:,} tokens, and they know up to {LARGEST_VOCABULARY:,}")
    if decoder.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(decoder.device)
        if major not in KNOWN_GPUS:
            raise Unknown(
                f"the GPU is of compute capability {major}.{minor}, and they are made for the shared memory of 9.0 "
                f"and 10.0"
            )
    rows = min(max_step_rows, max_step_tokens)
    body: Body
    try:
        body, words = OwnLayers(decoder, max_step_tokens, rows), "our Triton kernels"
    except Unknown as error:
        body, words = HostedModel(decoder, rows), f"transformers with our Triton attention ({error})"
    forward = TritonForward(
        decoder,
        body,
        group=group,
        block_size=block_size,
        max_step_tokens=max_step_tokens,
        max_step_rows=max_step_rows,
    )
    return forward, words


def query_heads(decoder: Decoder) -> int:
    """Query heads of each layer, found out by letting one token go through it, as with the keys."""
    probe = _HeadProbe()
    one = torch.zeros((1, 1), dtype=torch.long, device=decoder.device)
    with torch.inference_mode():
        decoder.body(input_ids=one, position_ids=one, use_cache=False, step=probe)
    if len(probe.heads) > 1:
        raise Unknown("its layers have different numbers of heads")
    return probe.heads.pop()


class _HeadProbe:
    """An `Attends` that only counts heads."""

    def __init__(self) -> None:
        self.heads: set[int] = set()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        self.heads.add(query.shape[1])
        return query.new_zeros((*query.shape[:2], value.shape[2]))
