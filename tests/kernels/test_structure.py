from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kernels.decoder import Decoder
from kernels.structure import Unknown, rotations, structure_of
from tests.kernels.native.decoders import FAMILIES, Decoders, heads, make_decoder


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_known_with_its_shape(family: str, decoders: Decoders) -> None:
    settings = FAMILIES[family]
    found = structure_of(decoders(family, torch.bfloat16))
    shape = (found.hidden, found.intermediate, found.heads, found.kv_heads, found.head_dim)
    names = ("num_attention_heads", "num_key_value_heads", "head_dim")
    assert shape == (settings["hidden_size"], 96, *(settings[it] for it in names))
    assert found.scale == settings["head_dim"] ** -0.5
    assert found.epsilon == 1e-6
    assert (found.head is found.embedding) == settings.get("tie_word_embeddings", False)


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("llama, heads of 64", [None, None]),
        ("mistral, window of 20", [20, 20]),
        ("mistral, no window", [None, None]),
        ("qwen2", [None, None]),
        ("qwen2, windows on some layers", [None, 50, 50]),
    ],
)
def test_the_window_of_each_layer_is_the_one_it_attends_with(
    family: str, windows: list[int | None], decoders: Decoders
) -> None:
    assert [it.window for it in structure_of(decoders(family, torch.float32)).layers] == windows


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama, heads of 64", set()),
        ("llama, heads of 96", {"query_bias", "key_bias", "value_bias", "out_bias"}),
        ("qwen2", {"query_bias", "key_bias", "value_bias"}),
        ("qwen3", {"query_norm", "key_norm"}),
    ],
)
def test_a_layer_has_the_tensors_that_its_family_has(family: str, more: set[str], decoders: Decoders) -> None:
    always = {"query", "key", "value", "out", "gate", "up", "down", "attention_norm", "mlp_norm"}
    for layer in structure_of(decoders(family, torch.float32)).layers:
        assert set(layer.tensors) == always | more


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model_type": "olmo2"}, "of type 'olmo2', and they know llama, mistral, qwen2, qwen3$"),
        ({"model_type": "granite"}, "of type 'granite'"),
        ({"model_type": "gemma3_text"}, "of type 'gemma3_text'"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "GELUActivation between its products, and they know SiLU"),
        ({"model_type": "llama", "mlp_bias": True}, "its gate is of another kind"),
        ({"model_type": "llama", "head_dim": 8}, "heads of 8, and they know 16 and the multiples of 32 up to 256"),
        ({"model_type": "llama", "head_dim": 48}, "heads of 48"),
        ({"model_type": "llama", "head_dim": 288}, "heads of 288"),
        ({"model_type": "llama", "hidden_size": 72}, "72 and 96 wide, and they know multiples of 16"),
        ({"model_type": "llama", "intermediate_size": 100}, "64 and 100 wide"),
    ],
)
def test_what_they_do_not_know_is_refused_in_a_clause(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    decoder = make_decoder(tmp_path, torch.float32, **{**heads(4, 2, 16), **settings})
    with pytest.raises(Unknown, match=f"^(it (is|has) .*)?{why}"):
        structure_of(decoder)


def part(decoder: Decoder, name: str) -> Any:
    return decoder.model.get_submodule(name)


def extra_child(decoder: Decoder) -> None:
    part(decoder, "model.layers.1.self_attn").sinks = nn.Identity()


def extra_layer_part(decoder: Decoder) -> None:
    part(decoder, "model.layers.0").post_feedforward_layernorm = nn.Identity()


def other_linear(decoder: Decoder) -> None:
    class Scaled(nn.Linear):
        pass

    part(decoder, "model.layers.0.self_attn").o_proj = Scaled(64, 64)


def other_norm(decoder: Decoder) -> None:
    part(decoder, "model.layers.0").input_layernorm = nn.LayerNorm(64)


def last_norm(decoder: Decoder) -> None:
    part(decoder, "model").norm = nn.LayerNorm(64)


def other_embedding(decoder: Decoder) -> None:
    class Scaled(nn.Embedding):
        pass

    part(decoder, "model").embed_tokens = Scaled(301, 64)


def head_with_bias(decoder: Decoder) -> None:
    part(decoder, "").lm_head = nn.Linear(64, 301)


def bias_on_the_key_alone(decoder: Decoder) -> None:
    part(decoder, "model.layers.1.self_attn").k_proj = nn.Linear(64, 32)


def other_epsilon(decoder: Decoder) -> None:
    part(decoder, "model.layers.1.input_layernorm").variance_epsilon = 1e-3


def other_scale(decoder: Decoder) -> None:
    part(decoder, "model.layers.1.self_attn").scaling = 0.5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (extra_child, r"a LlamaAttention built otherwise \(sinks\)$"),
        (extra_layer_part, r"a LlamaDecoderLayer built otherwise \(post_feedforward_layernorm\)$"),
        (other_linear, "its out is of another kind"),
        (other_norm, "its input_layernorm is no RMS norm"),
        (last_norm, "its norm is no RMS norm"),
        (other_embedding, "an embedding or a head of another kind"),
        (head_with_bias, "its lm_head is of another kind"),
        (bias_on_the_key_alone, "biases on some of query, key and value"),
        (other_epsilon, "layers that differ from one another"),
        (other_scale, "layers that differ from one another"),
    ],
)
def test_a_model_of_a_known_type_that_is_built_otherwise_is_refused(
    change: Callable[[Decoder], None], why: str, tmp_path: Path
) -> None:
    decoder = make_decoder(tmp_path, torch.float32, "llama", **heads(4, 2, 16))
    structure_of(decoder)
    change(decoder)
    with pytest.raises(Unknown, match=f"^(it has )?{why}"):
        structure_of(decoder)


def test_a_head_that_is_turned_in_part_is_refused(tmp_path: Path) -> None:
    decoder = make_decoder(tmp_path, torch.float32, "llama", **heads(4, 2, 32))
    rotary = part(decoder, "model.rotary_emb")
    rotary.inv_freq = rotary.inv_freq[:8]
    with pytest.raises(Unknown, match=r"^it turns only a part of its heads by position$"):
        rotations(decoder)


def test_rotations_are_the_models_own_for_every_position_in_float32(decoders: Decoders) -> None:
    decoder = decoders("llama, heads of 64", torch.bfloat16)
    short = replace(decoder, max_context=100)
    cosines, sines = rotations(short)
    assert cosines.shape == sines.shape == (100, 32)
    assert cosines.dtype == sines.dtype == torch.float32
    torch.testing.assert_close(cosines**2 + sines**2, torch.ones(100, 32))
    assert torch.equal(cosines[0], torch.ones(32))
    torch.testing.assert_close(cosines[:, 0], torch.arange(100.0).cos())


def test_stretched_rope_turns_as_far_as_the_model_says(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e4}
    decoder = make_decoder(tmp_path, torch.float32, "llama", rope_parameters=rope, **heads(4, 2, 32))
    cosines, sines = rotations(decoder)
    # YaRN also makes queries and keys longer: 1 + 0.1 ln 4.
    torch.testing.assert_close((cosines**2 + sines**2).sqrt(), torch.full((1024, 16), 1.1386294))
