"""Which models our own kernels know, and what of a model they need.

Knows the decoder layers of transformers' Llama, Mistral, Qwen2 and Qwen3 by name and by structure, and says in a
sentence why another is not one of them. Does not know how they are run.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernels.decoder import Decoder
from kernels.kv_cache import LayerShape
from kernels.native.binding import LAYER_WEIGHTS

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""SmolLM is of type llama."""
MOST_HEAD_DIM = 256


class Unknown(Exception):
    """The model is not one that our own kernels know; its text says why, as a clause."""


@dataclass(frozen=True)
class Layer:
    """One layer's tensors by their names in LAYER_WEIGHTS, without those it does not have."""

    tensors: dict[str, Tensor]
    window: int | None


@dataclass(frozen=True)
class Structure:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    scale: float
    layers: list[Layer]
    embedding: Tensor
    norm: Tensor
    head: Tensor


def structure_of(decoder: Decoder) -> Structure:
    """Look the model over from end to end. Raises Unknown."""
    model: Any = decoder.model
    kind = getattr(model.config, "model_type", "")
    if kind not in MODEL_TYPES:
        raise Unknown(f"it is of type {kind!r}, and they know {', '.join(MODEL_TYPES)}")
    _only(model, "model", "lm_head")
    body = model.model
    _only(body, "embed_tokens", "layers", "norm", "rotary_emb")
    if type(body.embed_tokens) is not nn.Embedding or _linear(model.lm_head, "lm_head", bias=False) is None:
        raise Unknown("it has an embedding or a head of another kind")
    wishes = _wishes(decoder)
    scales = {scale for scale, _ in wishes}
    found = [Layer(_tensors(layer), window) for layer, (_, window) in zip(body.layers, wishes, strict=True)]
    epsilons = {it.variance_epsilon for it in body.modules() if hasattr(it, "variance_epsilon")}
    if len(scales) > 1 or len(epsilons) > 1 or len(set(decoder.layers)) > 1:
        raise Unknown("it has layers that differ from one another")
    shape: LayerShape = decoder.layers[0]
    first = found[0].tensors
    hidden, intermediate = body.embed_tokens.weight.shape[1], first["gate"].shape[0]
    head_dim = shape.key_dim
    if shape.value_dim != head_dim or not (head_dim == 16 or head_dim % 32 == 0) or head_dim > MOST_HEAD_DIM:
        raise Unknown(f"it has heads of {head_dim}, and they know 16 and the multiples of 32 up to {MOST_HEAD_DIM}")
    if hidden % 16 or intermediate % 16:
        raise Unknown(f"it is {hidden} and {intermediate} wide, and they know multiples of 16")
    return Structure(
        hidden=hidden,
        intermediate=intermediate,
        heads=first["query"].shape[0] // head_dim,
        kv_heads=shape.kv_heads,
        head_dim=head_dim,
        epsilon=epsilons.pop(),
        scale=scales.pop(),
        layers=found,
        embedding=body.embed_tokens.weight,
        norm=_norm(body.norm, "norm"),
        head=model.lm_head.weight,
    )


def _tensors(layer: nn.Module) -> dict[str, Tensor]:
    _only(layer, "self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
    attention: Any = layer.self_attn
    mlp: Any = layer.mlp
    _only(attention, "q_proj", "k_proj", "v_proj", "o_proj", optional=("q_norm", "k_norm"))
    _only(mlp, "gate_proj", "up_proj", "down_proj", "act_fn")
    if type(mlp.act_fn).__name__ not in ("SiLUActivation", "SiLU"):
        raise Unknown(f"it has {type(mlp.act_fn).__name__} between its products, and they know SiLU")
    found: dict[str, Tensor | None] = {
        "attention_norm": _norm(layer.input_layernorm, "input_layernorm"),
        "mlp_norm": _norm(layer.post_attention_layernorm, "post_attention_layernorm"),
        "query_norm": _norm(attention.q_norm, "q_norm") if hasattr(attention, "q_norm") else None,
        "key_norm": _norm(attention.k_norm, "k_norm") if hasattr(attention, "k_norm") else None,
    }
    for name, module in (
        ("query", attention.q_proj),
        ("key", attention.k_proj),
        ("value", attention.v_proj),
        ("out", attention.o_proj),
    ):
        found[name], found[f"{name}_bias"] = _linear(module, name), module.bias
    for name, module in (("gate", mlp.gate_proj), ("up", mlp.up_proj), ("down", mlp.down_proj)):
        found[name] = _linear(module, name, bias=False)
    assert set(found) == set(LAYER_WEIGHTS)
    if len({found[f"{name}_bias"] is None for name in ("query", "key", "value")}) > 1:
        raise Unknown("it has biases on some of query, key and value")
    return {name: it for name, it in found.items() if it is not None}


def _only(module: nn.Module, *names: str, optional: tuple[str, ...] = ()) -> None:
    found = {name for name, _ in module.named_children()}
    if not set(names) <= found <= {*names, *optional}:
        odd = sorted(found ^ set(names) - set(optional))
        raise Unknown(f"it has a {type(module).__name__} built otherwise ({', '.join(odd)})")


def _linear(module: object, name: str, *, bias: bool = True) -> Tensor:
    if type(module) is not nn.Linear or (module.bias is not None and not bias):
        raise Unknown(f"its {name} is of another kind")
    return module.weight


def _norm(module: object, name: str) -> Tensor:
    weight = getattr(module, "weight", None)
    if not (type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")):
        raise Unknown(f"its {name} is no RMS norm")
    assert isinstance(weight, Tensor)
    return weight


class _WishProbe:
    """Learns with what scale and window each layer attends by letting one forward pass go through it."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[float, int | None]] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        self.found[layer] = (scaling, window)
        return query.new_zeros((*query.shape[:2], value.shape[2]))


def _wishes(decoder: Decoder) -> list[tuple[float, int | None]]:
    probe = _WishProbe()
    one = torch.zeros((1, 1), dtype=torch.long, device=decoder.device)
    with torch.inference_mode():
        decoder.body(input_ids=one, position_ids=one, use_cache=False, step=probe)
    return [probe.found[layer] for layer in sorted(probe.found)]


def rotations(decoder: Decoder) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[max_context, head_dim / 2]` in float32, as the model's own rotary embedding gives them.

    Raises Unknown when it does not turn the whole head.
    """
    model: Any = decoder.model
    positions = torch.arange(decoder.max_context)[None]
    with torch.inference_mode():
        cosines, sines = model.model.rotary_emb(torch.zeros(1, 1, 1), positions)
    half = decoder.layers[0].key_dim // 2
    if cosines.shape[-1] != 2 * half or not torch.equal(cosines[..., :half], cosines[..., half:]):
        raise Unknown("it turns only a part of its heads by position")
    return cosines[0, :, :half].float().contiguous(), sines[0, :, :half].float().contiguous()
