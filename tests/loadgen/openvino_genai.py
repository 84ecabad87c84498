"""In place of the package of that name, as far as `openvino_lines` uses it: every step brings every answer a token."""

from types import SimpleNamespace
from typing import Any


class GenerationStatus:
    RUNNING, FINISHED = "running", "finished"


class SchedulerConfig:
    cache_size = 0


class GenerationConfig:
    max_new_tokens = 0
    ignore_eos = False
    do_sample = True


class _Tokenizer:
    def apply_chat_template(self, history: list[dict[str, str]], add_generation_prompt: bool) -> str:
        assert add_generation_prompt
        return history[0]["content"]

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        return SimpleNamespace(input_ids=SimpleNamespace(shape=(1, len(text.split()))))


class _Handle:
    def __init__(self, most: int) -> None:
        self.left, self.unread = most, 0

    def can_read(self) -> bool:
        return self.unread > 0

    def read(self) -> dict[int, Any]:
        tokens, self.unread = self.unread, 0
        return {0: SimpleNamespace(generated_ids=[7] * tokens)}

    def get_status(self) -> str:
        return GenerationStatus.RUNNING if self.left else GenerationStatus.FINISHED


class ContinuousBatchingPipeline:
    def __init__(self, folder: str, scheduler: SchedulerConfig, device: str) -> None:
        print("A library that prints.")
        assert (scheduler.cache_size > 0, device) == (True, "CPU")
        self._handles: list[_Handle] = []

    def get_tokenizer(self) -> _Tokenizer:
        return _Tokenizer()

    def add_request(self, number: int, tokens: Any, config: GenerationConfig) -> _Handle:
        assert (number, config.ignore_eos, config.do_sample) == (len(self._handles), True, False)
        self._handles.append(_Handle(config.max_new_tokens))
        return self._handles[-1]

    def step(self) -> None:
        for handle in self._handles:
            if handle.left:
                handle.left -= 1
                handle.unread += 1
