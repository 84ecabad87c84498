"""What `transformers` itself would have answered: the model's own `generate`, greedy, one prompt at a time.

Knows nothing of rota but the folder it serves, and which text of a prompt is the user's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Expected:
    """`tokens` are the answer's, without the end token; `ended`: with an end token, not at the limit."""

    input_tokens: int
    tokens: tuple[int, ...]
    ended: bool
    text: str

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) + self.ended


class Reference:
    """A model and its tokeniser in float32, on the CPU."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from kernels.quiet import quiet_transformers

        quiet_transformers()
        # More of them would fight with the server's for the same processors.
        torch.set_num_threads(1)
        loaded: Any = AutoModelForCausalLM
        tokeniser: Any = AutoTokenizer
        self._model = loaded.from_pretrained(folder, dtype="float32")
        self._end = self._model.generation_config.eos_token_id
        self._model.generation_config = type(self._model.generation_config)()
        self.tokeniser = tokeniser.from_pretrained(folder)
        self._known: dict[tuple[str, int, bool], Expected] = {}

    def prompt(self, text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        shown: str = self.tokeniser.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self.tokeniser.encode(shown, add_special_tokens=False))

    def answer(self, text: str, tokens: int, ignore_eos: bool = False) -> Expected:
        """The greedy answer, of at most so many tokens."""
        key = (text, tokens, ignore_eos)
        if key not in self._known:
            self._known[key] = self._generate(self.prompt(text), tokens, ignore_eos)
        return self._known[key]

    def _generate(self, prompt: list[int], tokens: int, ignore_eos: bool) -> Expected:
        import torch

        ids = torch.tensor([prompt])
        # All ones: where pad and end token are the same, `generate` would mask end tokens within the answer.
        row = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=None if ignore_eos else self._end,
            pad_token_id=0,
        )[0][len(prompt) :].tolist()
        ends = self._end if isinstance(self._end, list) else [self._end]
        ended = not ignore_eos and row[-1] in ends
        kept = row[:-1] if ended else row
        text = self.tokeniser.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return Expected(len(prompt), tuple(kept), ended, text)
