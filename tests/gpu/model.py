"""The model that all parts run: a Llama of the shape of the 1B class, with random weights, saved once.

Knows its shape, what a step has to read of it, and a tokeniser with a word for every token, so that every token that
is sampled is text on its way to a reader.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernels.byte_tokeniser import END_ID, VOCABULARY, write_byte_tokeniser
from tests.gpu.findings import Conditions, Finding

LARGE: dict[str, int] = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}
"""That of Llama 3.2 1B."""
TINY: dict[str, int] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}
SEED = 20261130


def shape(conditions: Conditions) -> dict[str, int]:
    return TINY if conditions.smoke else LARGE


def folder(conditions: Conditions) -> Path:
    return conditions.folder / "model"


def measure(conditions: Conditions) -> Iterator[Finding]:
    """Make it, in bfloat16, with the embedding as its head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    its = shape(conditions)
    marks: dict[str, Any] = {
        "bos_token_id": END_ID,
        "eos_token_id": END_ID,
        "pad_token_id": END_ID,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(SEED)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(conditions.device):
        model: Any = LlamaForCausalLM(LlamaConfig(**{**its, **marks}, dtype="bfloat16"))
    model.save_pretrained(folder(conditions))
    write_tokeniser(folder(conditions), its["vocab_size"])
    millions = sum(it.numel() for it in model.parameters()) / 1e6
    yield Finding("parameters of the model", millions, "million", note="random, bfloat16, tied embedding")


def write_tokeniser(to: Path, vocabulary: int) -> None:
    """The byte tokeniser, with a word for each further token. No text becomes those, but they become text."""
    write_byte_tokeniser(to)
    file = to / "tokenizer.json"
    written = json.loads(file.read_text())
    written["model"]["vocab"] |= {f"Ġ{_word(token)}": token for token in range(VOCABULARY, vocabulary)}
    file.write_text(json.dumps(written))


def _word(number: int) -> str:
    letters = ""
    while number:
        number, last = divmod(number, 26)
        letters += chr(ord("a") + last)
    return letters


def step_bytes(conditions: Conditions, rows: int, context: int) -> int:
    """Bytes that a decode step cannot do without: every weight once, what `rows` rows have in the cache, of `context`
    tokens each, and what they add to it. Two bytes a number."""
    its = shape(conditions)
    hidden, kv = its["hidden_size"], its["num_key_value_heads"] * its["head_dim"]
    attention = 2 * hidden * its["num_attention_heads"] * its["head_dim"] + 2 * hidden * kv
    layer = attention + 3 * hidden * its["intermediate_size"] + 2 * hidden
    weights = its["num_hidden_layers"] * layer + its["vocab_size"] * hidden + hidden
    cache = its["num_hidden_layers"] * 2 * kv * rows * (context + 1)
    return 2 * (weights + cache)
