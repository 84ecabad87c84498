"""Small random models for tests: a whole model folder in a second, the same on every machine.

    folder = make_small_model(tmp_path / "small")              # two Llama layers, grouped queries, byte tokeniser
    folder = make_small_model(tmp_path / "short", max_position_embeddings=128)

Callers cache it themselves (a session fixture). Its text is noise, but deterministic noise: greedy answers to
different prompts differ, and do not fall into one repeated token.
"""

from pathlib import Path
from typing import Any

from kernels.byte_tokeniser import END_ID, START_ID, VOCABULARY, write_byte_tokeniser

SEED = 20261129


def make_small_model(folder: Path, **overrides: Any) -> Path:
    """Save a `LlamaForCausalLM` in float32 with `LlamaConfig(**overrides)` to `folder`, and return it.

    The vocabulary is the byte tokeniser's: token n is byte n, then `<|im_start|>` and `<|im_end|>` (the end token).
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "initializer_range": 0.3,  # large enough that the answer depends on the prompt
        "tie_word_embeddings": False,
        "bos_token_id": START_ID,
        "eos_token_id": END_ID,
        "pad_token_id": END_ID,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: Any = LlamaForCausalLM(LlamaConfig(**{**settings, **overrides}))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_byte_tokeniser(folder)
    return folder
