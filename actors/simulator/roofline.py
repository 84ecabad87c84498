"""What a transformer's step takes on an accelerator, from the sizes of both: bytes to read and products to make.

Knows shapes, bandwidths and efficiencies, and says where each figure comes from. Nothing here is measured. Knows no
steps and no requests.

The roofline is that of Williams et al., "Roofline: An Insightful Visual Performance Model for Multicore Architectures"
(2009); here reading and computing are added up, as if neither hid behind the other, which errs on the slow side.
"""

from msgspec import Struct

BYTES = 2
"""Of a weight, a key or a value in bf16."""


class Decoder(Struct, frozen=True, kw_only=True):
    """The shape of a decoder-only transformer with gated feed-forward layers and grouped key-value heads."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    """Dimensions of a head."""
    intermediate: int
    vocabulary: int
    max_context: int

    @property
    def layer_weights(self) -> int:
        """Of all layers: queries and output, keys and values, and the three matrices of the feed-forward part."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        """What every step reads: all layers and the output head. Of the embedding it reads a row a token."""
        return BYTES * (self.layer_weights + self.hidden * self.vocabulary)

    @property
    def all_bytes(self) -> int:
        """What lies in memory: the embedding too."""
        return self.weight_bytes + BYTES * self.hidden * self.vocabulary

    @property
    def token_flops(self) -> int:
        """A token through all layers, attention to others aside: a product and a sum for every weight."""
        return 2 * self.layer_weights

    @property
    def head_flops(self) -> int:
        """To choose a token."""
        return 2 * self.hidden * self.vocabulary

    @property
    def pair_flops(self) -> int:
        """A query against one key, and its value: a product and a sum for each dimension of both, in every head."""
        return 4 * self.layers * self.heads * self.head

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of one token."""
        return 2 * BYTES * self.layers * self.kv_heads * self.head


class Accelerator(Struct, frozen=True, kw_only=True):
    """A device by its data sheet, and the share of it that real kernels get."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes a second."""
    flops: float
    """A second, dense, bf16."""
    bandwidth_share: float
    flops_share: float
    memory_share: float
    """For weights and KV blocks; the rest is working memory and whatever else is on the device."""

    def read_s(self, read_bytes: float) -> float:
        return read_bytes / (self.bandwidth * self.bandwidth_share)

    def compute_s(self, flops: float) -> float:
        return flops / (self.flops * self.flops_share)

    def room_bytes(self, weight_bytes: int) -> int:
        """For KV blocks, beside the weights."""
        return int(self.memory_bytes * self.memory_share) - weight_bytes


LLAMA_3_1_8B = Decoder(
    name="Llama-3.1-8B",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head=128,
    intermediate=14_336,
    vocabulary=128_256,
    max_context=131_072,
)
"""Grattafiori et al., "The Llama 3 Herd of Models" (2024), table 3."""

H200 = Accelerator(
    name="H200 SXM",
    memory_bytes=141e9,
    bandwidth=4.8e12,
    flops=989e12,
    bandwidth_share=0.6,
    flops_share=0.5,
    memory_share=0.85,
)
"""NVIDIA's data sheet (its 1,979 TFLOP/s are with sparsity: half of that is dense). The shares are assumptions, about
what good kernels reach on batches of serving size."""
