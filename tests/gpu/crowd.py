"""What `sockets` and `rivals` ask for, so that both are asked for the same."""

import json
from pathlib import Path
from typing import Any

from loadgen.prompts import prompt
from tests.gpu.findings import Conditions

STREAMS = (64, 256)
PROMPT_TOKENS = 60
"""As `rota load` counts, in words of English; the byte tokeniser makes some five times as many of them."""
OUTPUT_TOKENS = 256
SEED = 20261130


def streams(conditions: Conditions) -> tuple[int, ...]:
    return (3,) if conditions.smoke else STREAMS


def output_tokens(conditions: Conditions) -> int:
    return 6 if conditions.smoke else OUTPUT_TOKENS


def prompts(folder: Path, count: int) -> list[list[int]]:
    """As the server makes them: each text as a user's message in the model's template."""
    from transformers import AutoTokenizer

    tokeniser: Any = AutoTokenizer.from_pretrained(folder)
    return [
        tokeniser.apply_chat_template(
            [{"role": "user", "content": prompt(SEED, index, PROMPT_TOKENS)}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for index in range(count)
    ]


def told_file(conditions: Conditions) -> Path:
    """Where `sockets` leaves its tokens a second, for `rivals` to set its own beside."""
    return conditions.folder / "sockets-per-s.json"


def tell(conditions: Conditions, per_s: dict[int, float]) -> None:
    told_file(conditions).write_text(json.dumps(per_s))


def told(conditions: Conditions) -> dict[int, float]:
    file = told_file(conditions)
    return {int(count): value for count, value in json.loads(file.read_text()).items()} if file.exists() else {}
