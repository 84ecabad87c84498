"""A tokeniser for models that have none: one token a byte, and ChatML's two marks.

Knows how to write tokeniser files that transformers and `tokenizers` read. Needs no training, no network, and can
encode any text.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

START, END = "<|im_start|>", "<|im_end|>"
START_ID, END_ID = 256, 257
VOCABULARY = 258

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, as SmolLM2 and Qwen use it, without a system message of its own."""


def write_byte_tokeniser(folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; token n is byte n for n < 256."""
    tokeniser = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(_letters())}, merges=[]))
    tokeniser.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokeniser.decoder = decoders.ByteLevel()
    tokeniser.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    assert tokeniser.token_to_id(END) == END_ID
    tokeniser.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _letters() -> list[str]:
    """The printable letter that stands for each byte in byte-level BPE (GPT-2's `bytes_to_unicode`)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
