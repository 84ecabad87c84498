"""The place where transformers' decoders hand their attention to us.

Knows the calling convention of `transformers.AttentionInterface` (transformers 5: `integrations/sdpa_attention.py`
is its model) and which of a layer's wishes we cannot fulfil. Does not know how attention is computed: whoever runs a
forward pass gives it as `step=`, something that can `attend`.
"""

from typing import Protocol

from torch import Tensor, nn
from transformers import AttentionInterface

from kernels import ModelError
from kernels.kv_cache import LayerShape

NAME = "rota"
"""What a model is loaded with: `attn_implementation=NAME`."""


class Attends(Protocol):
    """One forward pass over one ragged batch, as the layers of a model see it."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention of one layer.

        `query` is `[tokens, heads, key_dim]`, `key` `[tokens, kv_heads, key_dim]`, `value`
        `[tokens, kv_heads, value_dim]`, strided as they come, already rotated. With `window` w a token at position p
        sees positions p - w + 1 .. p, else 0 .. p. Returns `[tokens, heads, value_dim]`.
        """
        ...


class LayerProbe:
    """Learns what each layer keeps by letting one forward pass go through it, instead of trusting a configuration.

    `layers` is complete after that pass. Its answers are zeros: the pass is for its shapes alone.
    """

    def __init__(self) -> None:
        self._shapes: dict[int, LayerShape] = {}

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        if layer in self._shapes:
            raise ModelError(f"The model runs attention twice in layer {layer}, which rota cannot cache.")
        self._shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        return query.new_zeros((*query.shape[:2], value.shape[2]))

    def layers(self) -> list[LayerShape]:
        """Shapes in layer order. Raises ModelError when layers are missing: they keep something else than K and V."""
        if not self._shapes or sorted(self._shapes) != list(range(len(self._shapes))):
            raise ModelError("The model has layers without attention of their own, which rota cannot run yet.")
        return [self._shapes[index] for index in range(len(self._shapes))]


def rota_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    step: Attends | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer.

    `query` `[1, heads, tokens, key_dim]`, `key` and `value` `[1, kv_heads, tokens, head_dim]`; returns
    `([1, tokens, heads, value_dim], None)`. Raises ModelError on a feature that, left out, would change the answer.
    """
    if step is None:
        raise ModelError("The model does not pass our arguments on to its attention layers, so rota cannot run it.")
    for name, wish in (
        ("softcap", softcap),
        ("attention sinks", s_aux),
        ("position bias", position_bias),
        ("attention mask", attention_mask),
    ):
        if wish is not None:
            raise ModelError(f"The model's attention uses a {name}, which rota does not have yet.")
    if not getattr(module, "is_causal", True):
        raise ModelError("The model's attention looks ahead (it is not causal), so it is not a decoder.")
    layer = module.layer_idx
    assert isinstance(layer, int)
    out = step.attend(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window,
    )
    return out[None], None


def register() -> None:
    """Make `attn_implementation="rota"` known to transformers. It has no mask function, so models build no mask."""
    AttentionInterface.register(NAME, rota_attention)
