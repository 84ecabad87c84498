"""A model's vocabulary: messages to the tokens of a prompt, and tokens back to text.

Knows the files that `transformers` keeps beside a model: `tokenizer.json`, `tokenizer_config.json`,
`chat_template.jinja`. Never changes once it is made, so the tokeniser, its thread and the detokeniser share one.
Knows nothing of requests, and not of the model's weights.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer

from actors.chat_template import PLAIN, ChatTemplate
from actors.control_tokens import ControlTokens
from actors.text_decoder import ByteDecoder, TextDecoder, WindowDecoder
from actors.token_bytes import longest_token, token_bytes
from protocol.input_items import Message


class Vocabulary:
    """Text a client sends is text: a control token spelled out in it (`<|im_end|>`) does not act as one."""

    def __init__(
        self, tokenizer: Tokenizer, chat_template: str | None, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        """`chat_template` None: the model is no chat model, and messages are strung together."""
        self._tokenizer = tokenizer
        self._template = ChatTemplate(chat_template or PLAIN, special_tokens)
        self._adds_special = chat_template is None
        self._bytes = token_bytes(tokenizer)
        self.longest_token = longest_token(tokenizer, self._bytes)
        self._special = {n: t.content for n, t in tokenizer.get_added_tokens_decoder().items() if t.special}
        self._controls = ControlTokens(tokenizer)
        # A model says the same few thousand tokens over and over.
        self.token_text = lru_cache(maxsize=65_536)(self._token_text)

    @classmethod
    def load(cls, folder: Path | str) -> "Vocabulary":
        """Reads the files, for about a fifth of a second. Raises `FileNotFoundError` when there is no tokeniser."""
        folder = Path(folder)
        file = folder / "tokenizer.json"
        if not file.exists():
            raise FileNotFoundError(f"{folder} holds no tokenizer.json; save the model's tokeniser there in that form")
        config = _read_json(folder / "tokenizer_config.json")
        special_tokens = {
            name: text
            for name, value in (_read_json(folder / "special_tokens_map.json") | config).items()
            if name.endswith("_token") and (text := _token_content(value)) is not None
        }
        return cls(Tokenizer.from_file(str(file)), _chat_template(folder, config), special_tokens)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens up to where the answer begins. May take long: about 0.6 ms for 1,000 characters.

        Raises `PromptRefused`.
        """
        skeleton = self._template.skeleton(messages)
        return self._controls.tokens(self._template.render(messages), skeleton, special=self._adds_special)

    def decoder(self) -> TextDecoder:
        """For one answer."""
        return WindowDecoder(self._tokenizer) if self._bytes is None else ByteDecoder(self._bytes)

    def _token_text(self, token: int) -> str:
        """One token by itself; U+FFFD stands for the half of a character, a special token for itself."""
        if token in self._special:
            return self._special[token]
        if self._bytes is None:
            return self._tokenizer.decode([token])
        return self._bytes.shown[token].decode(errors="replace") if token < len(self._bytes.shown) else ""


def _read_json(file: Path) -> dict[str, object]:
    return cast(dict[str, object], json.loads(file.read_text("utf-8"))) if file.exists() else {}


def _token_content(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _chat_template(folder: Path, config: Mapping[str, object]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text("utf-8")
    given = config.get("chat_template")
    if isinstance(given, list):
        given = next((one["template"] for one in given if one.get("name") == "default"), None)
    return given if isinstance(given, str) else None
