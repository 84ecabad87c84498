"""A transformers decoder, loaded once and looked over.

Knows which models rota can run, says in one sentence why it cannot run another, and finds out what each layer keeps.
Does not know batches, blocks or sampling.
"""

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from kernels import ModelError
from kernels.attention import interface
from kernels.checkpoint import Checkpoint, say
from kernels.kv_cache import LayerShape

RANDOM_SEED = 0
"""What the weights of `dummy:` models are made from: the same on every machine."""
ROPE_BY_BATCH = ("dynamic", "longrope")
"""RoPE types that choose by the largest position of the whole batch: one request would change another's answer."""


@dataclass(frozen=True)
class Decoder:
    """A model ready to run. `model` is `[1, tokens]` ids in, `[1, kept, vocabulary]` logits out."""

    model: nn.Module
    body: nn.Module
    """The model without its head, for steps that sample nothing."""
    device: torch.device
    dtype: torch.dtype
    layers: list[LayerShape]
    vocabulary: int
    max_context: int
    end_tokens: tuple[int, ...]
    weights_bytes: int
    rope: str
    """The RoPE settings as JSON."""


def load_decoder(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, max_context: int | None = None
) -> Decoder:
    """Load the checkpoint for `interface.rota_attention`. Raises ModelError when rota cannot run it."""
    folder = checkpoint.folder
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"The configuration in {folder} cannot be used: {_first_line(error)}.") from error
    model_class = _check(checkpoint.name, config)
    context = _context(checkpoint.name, config, max_context)
    interface.register()
    try:
        if checkpoint.random_weights:
            torch.manual_seed(RANDOM_SEED)
            model = model_class._from_config(config, attn_implementation=interface.NAME, dtype=dtype).to(device)
        else:
            model = model_class.from_pretrained(
                folder,
                config=config,
                attn_implementation=interface.NAME,
                dtype=dtype,
                use_safetensors=True,
                **({} if device.type == "cpu" else {"device_map": {"": device}}),
            )
    except Exception as error:
        raise ModelError(f"{checkpoint.name} could not be loaded: {_first_line(error)}.") from error
    model.eval()
    model.requires_grad_(False)
    return Decoder(
        model=model,
        body=model.base_model,
        device=device,
        dtype=dtype,
        layers=_probe(checkpoint.name, model, device),
        vocabulary=config.get_text_config().vocab_size,
        max_context=context,
        end_tokens=_end_tokens(folder, config),
        weights_bytes=_bytes(model),
        rope=json.dumps(_rope_of(config), sort_keys=True, default=str),
    )


def _rope_of(config: transformers.PreTrainedConfig) -> dict[str, Any]:
    return getattr(config.get_text_config(), "rope_parameters", None) or {}


def _check(name: str, config: transformers.PreTrainedConfig) -> Any:
    """The model's class. Raises ModelError when the configuration alone says that rota cannot run it."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    model_class: Any = found[0] if isinstance(found, tuple) else found
    stated = list(config.architectures or [])
    if model_class is None or config.is_encoder_decoder or (stated and model_class.__name__ not in stated):
        raise ModelError(
            f"{name} is not a decoder that rota can serve: it is {', '.join(stated) or config.model_type}."
        )
    if model_class._is_stateful or not model_class._supports_attention_backend:
        raise ModelError(
            f"{name} cannot be served: {model_class.__name__} keeps a state of its own or brings its own attention, "
            f"and rota runs attention through transformers' interface."
        )
    if "logits_to_keep" not in inspect.signature(model_class.forward).parameters:
        raise ModelError(f"{name} cannot be served: {model_class.__name__} cannot choose rows before its head.")
    rope = _rope_of(config)
    by_layer = [it for it in rope.values() if isinstance(it, dict)]
    for one in by_layer or [rope]:
        if one.get("rope_type") in ROPE_BY_BATCH:
            raise ModelError(
                f"{name} cannot be served: its RoPE type {one['rope_type']!r} depends on the longest request of a "
                f"batch, so that one request would change another's answer."
            )
    return model_class


def _context(name: str, config: transformers.PreTrainedConfig, asked: int | None) -> int:
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    if own is None:
        if asked is None:
            raise ModelError(
                f"{name} does not say how long a context it was made for: say how long with --max-context."
            )
        return asked
    if asked is not None and asked > own:
        _stretch(name, config, int(own), asked)
    return int(own if asked is None else asked)


def _stretch(name: str, config: transformers.PreTrainedConfig, own: int, asked: int) -> None:
    """Have RoPE reach `asked` positions, by YaRN (Peng et al., "YaRN: Efficient Context Window Extension of Large
    Language Models", 2023). Raises ModelError for a model whose RoPE is not the plain one."""
    rope = _rope_of(config)
    if rope.get("rope_type") != "default":
        raise ModelError(
            f"A context of {asked:,} tokens was asked for, and {name} was made for {own:,}; only a model with plain "
            f"RoPE can be stretched beyond its own."
        )
    text = config.get_text_config()
    text.rope_parameters = {
        **rope,
        "rope_type": "yarn",
        "factor": asked / own,
        "original_max_position_embeddings": own,
        # YaRN's own (1 + 0.1 ln factor) is for models trained further with it. The default model, which was not, loses
        # its short answers with it ("The capital of France is" no longer Paris) and gains nothing on long ones
        # (cross-entropy at positions 9,000 to 10,239: 0.544 with, 0.541 without; 0.594 unstretched).
        "attention_factor": 1.0,
    }
    text.max_position_embeddings = asked
    say(
        f"{name} was made for {own:,} tokens: its RoPE is stretched to {asked:,} by YaRN, which may change any answer "
        "a little, the short ones too"
    )


def _probe(name: str, model: Any, device: torch.device) -> list[LayerShape]:
    probe = interface.LayerProbe()
    one = torch.zeros((1, 1), dtype=torch.long, device=device)
    try:
        with torch.inference_mode():
            model.base_model(input_ids=one, position_ids=one, use_cache=False, step=probe)
    except ModelError as error:
        raise ModelError(f"{name} cannot be served. {error}") from error
    except Exception as error:
        raise ModelError(f"{name} cannot be run: {_first_line(error)}.") from error
    return probe.layers()


def _end_tokens(folder: Path, config: transformers.PreTrainedConfig) -> tuple[int, ...]:
    """Tokens that end an answer: those of generation_config.json, else the configuration's."""
    try:
        found = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
    except FileNotFoundError:
        found = None
    if found is None:
        found = getattr(config.get_text_config(), "eos_token_id", None)
    if found is None:
        return ()
    return tuple(int(it) for it in (found if isinstance(found, list) else [found]))


def _bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers, those that share memory (tied embeddings) counted once."""
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    storages = {it.untyped_storage().data_ptr(): it.untyped_storage().nbytes() for it in tensors}
    return sum(storages.values())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
