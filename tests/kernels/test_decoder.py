import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from kernels import ModelError
from kernels.checkpoint import Checkpoint, resolve
from kernels.decoder import Decoder, load_decoder
from kernels.kv_cache import KVCache, LayerShape
from kernels.runner import Runner
from tests.kernels.driving import Driver
from tests.kernels.test_runner import expected

CPU = torch.device("cpu")

TINY: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def made_up(tmp_path: Path, **settings: Any) -> Checkpoint:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return Checkpoint("made-up", tmp_path, random_weights=True)


def test_what_a_layer_keeps_is_found_out(small_decoder: Decoder) -> None:
    assert small_decoder.layers == [LayerShape(2, 16, 16)] * 2
    assert (small_decoder.vocabulary, small_decoder.max_context, small_decoder.end_tokens) == (258, 2048, (257,))


def test_a_shorter_context_may_be_asked_for(small_folder: Path) -> None:
    decoder = load_decoder(Checkpoint("small", small_folder), CPU, torch.float32, 100)
    assert decoder.max_context == 100
    assert json.loads(decoder.rope)["rope_type"] == "default"


def test_a_longer_context_than_the_models_own_stretches_its_rope_and_says_so(
    small_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = load_decoder(Checkpoint("small", small_folder), CPU, torch.float32, 3072)
    assert decoder.max_context == 3072
    rope = json.loads(decoder.rope)
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 1.5, 2048)
    said = capsys.readouterr().err
    assert "2,048" in said
    assert "3,072" in said


def test_only_plain_rope_can_be_stretched(tmp_path: Path) -> None:
    llama3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 128}
    llama3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    other = made_up(tmp_path, model_type="llama", rope_parameters=llama3, **TINY)
    with pytest.raises(ModelError, match="512 tokens was asked for, and made-up was made for 256; only a model with"):
        load_decoder(other, CPU, torch.float32, 512)


def test_a_stretched_model_gives_the_tokens_of_generate_beyond_its_own_context(small_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    decoder = load_decoder(Checkpoint("small", small_folder), CPU, torch.float32, 4096)
    untyped: Any = AutoModelForCausalLM
    plain = untyped.from_pretrained(small_folder, config=cast(Any, decoder.model).config, dtype=torch.float32).eval()
    plain.set_attn_implementation("sdpa")
    prompts = [[5, 6, 7], [token % 250 for token in range(2200)]]
    runner = Runner(decoder, KVCache(decoder.layers, 300, 16, torch.float32, CPU))
    found = Driver(runner).generate(prompts, 8, chunk=512, preempt=0.0)
    assert [it.answer for it in found] == expected(plain, prompts, 8)


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_batch_is_refused(tmp_path: Path, rope: str) -> None:
    parameters = {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 128}
    parameters |= {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4} if rope == "longrope" else {}
    with pytest.raises(ModelError, match=f"RoPE type '{rope}'"):
        load_decoder(made_up(tmp_path, model_type="llama", rope_parameters=parameters, **TINY), CPU, torch.float32)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "not a decoder .* BertForMaskedLM"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "not a decoder"),
        ({"model_type": "clip"}, "not a decoder"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "state of its own"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0, **TINY}, "softcap"),
        ({"model_type": "no-such-type"}, "configuration in"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_sentence(tmp_path: Path, settings: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        load_decoder(made_up(tmp_path, **settings), CPU, torch.float32)


def test_missing_weights_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TINY}))
    with pytest.raises(ModelError, match="made-up could not be loaded"):
        load_decoder(Checkpoint("made-up", tmp_path), CPU, torch.float32)


def test_random_weights_are_the_same_every_time(tmp_path: Path) -> None:
    checkpoint = made_up(tmp_path, model_type="llama", **TINY)
    one, two = (load_decoder(checkpoint, CPU, torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "mistral with a window": {"sliding_window": 20},
    "gemma3_text": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "granite": {},
    "olmo2": {},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 128,
            "rope_theta": 1e4,
        }
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_decoders_give_the_tokens_of_generate_too(tmp_path: Path, family: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type = {"mistral with a window": "mistral", "yarn": "llama"}.get(family, family)
    sizes = {"vocab_size": 300} if model_type == "gpt2" else TINY
    torch.manual_seed(3)
    config = AutoConfig.for_model(model_type, initializer_range=0.3, **(sizes | FAMILIES[family]))
    untyped: Any = AutoModelForCausalLM
    plain = untyped.from_config(config, dtype=torch.float32).eval()
    plain.save_pretrained(tmp_path)
    decoder = load_decoder(Checkpoint(family, tmp_path), CPU, torch.float32)
    runner = Runner(decoder, KVCache(decoder.layers, 64, 8, torch.float32, CPU))
    prompts = [[5], [7, 8, 9], list(range(60)), list(range(100, 133))]
    found = Driver(runner).generate(prompts, 12, chunk=16, preempt=0.05)
    assert [it.answer for it in found] == expected(plain, prompts, 12)


def test_a_dummy_model_is_loaded_from_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2, **TINY}))
    decoder = load_decoder(resolve(f"dummy:{tmp_path}"), CPU, torch.float32)
    assert decoder.end_tokens == (257,)
