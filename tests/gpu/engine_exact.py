"""Whether the answers of small random models are the same in any company, and the same as `transformers` gives.

Alone, in a crowd, prompts in chunks, preempted again and again, each step planned behind one that still runs: tokens
must be equal, in bfloat16 and float32. In float32 they must be those of `transformers`' `generate` too; in bfloat16,
where both round differently, it is told how many are.
"""

import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernels.checkpoint import Checkpoint
from kernels.serving import Serving, load
from protocol.messages import LoadModel
from tests.gpu.findings import Conditions, Finding
from tests.gpu.rows import Blocks, Row, Steps
from tests.models import make_small_model

MODEL: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.1,
}
LENGTHS = (1, 3, 16, 17, 40, 64, 65, 130, 200, 257, 300, 700)
ANSWER = 48
CHUNK = 37
"""Of a prompt that comes in pieces: no block ends where one of these does."""
NEAR = 1e-3
"""Two logits as near as this are as good as equal: sums in another order may choose either."""


def measure(conditions: Conditions) -> Iterator[Finding]:
    seed = secrets.randbelow(2**31)
    yield Finding("seed of the prompts", seed, "")
    draw = random.Random(seed)
    lengths, answer = (LENGTHS[:5], 4) if conditions.smoke else (LENGTHS, ANSWER)
    prompts = [[draw.randrange(256) for _ in range(length)] for length in lengths]
    shape = {} if conditions.smoke else MODEL
    folder = make_small_model(conditions.folder / "small", **shape)
    for dtype in ("float32",) if conditions.smoke else ("bfloat16", "float32"):
        wish = LoadModel(
            str(folder),
            device=conditions.device,
            dtype=dtype,
            kernels=conditions.kernels,
            kv_memory=2**24 if conditions.smoke else 2**30,
            max_context=1024,
            max_step_tokens=256 if conditions.smoke else 2048,
            max_step_rows=16,
        )
        serving = load(Checkpoint("small", folder), wish)
        alone = [_answers(serving, [prompt], answer)[0] for prompt in prompts]
        for how, given in (
            ("in a crowd", {}),
            ("in chunks", {"chunk": CHUNK}),
            ("preempted", {"chunk": CHUNK, "preempt": 0.15}),
        ):
            together = _answers(serving, prompts, answer, seed=seed, **given)
            name = f"{dtype}: answers that are others {how} than alone"
            yield Finding(name, _differ(alone, together), "answers", most=0, note=f"of {len(prompts)}")
        behind = _planned_behind(serving, prompts, answer)
        name = f"{dtype}: answers that are others with steps in flight"
        yield Finding(name, _differ(alone, behind), "answers", most=0, note=f"of {len(prompts)}")
        apart = _other_than_transformers(folder, prompts, alone, dtype, conditions)
        name = f"{dtype}: answers that are others than those of generate"
        note = f"of {len(prompts)}; where two logits are within {NEAR:g} of their spread, either will do"
        yield Finding(name, apart, "answers", most=0 if dtype == "float32" else None, note=note)
        del serving


def _differ(some: list[list[int]], others: list[list[int]]) -> int:
    return sum(one != other for one, other in zip(some, others, strict=True))


def _answers(
    serving: Serving, prompts: list[list[int]], tokens: int, *, chunk: int = 1024, preempt: float = 0.0, seed: int = 0
) -> list[list[int]]:
    """All prompts together, their rows in a new order each step."""
    draw, blocks, steps = random.Random(seed), Blocks(serving, seed), Steps(serving)
    rows = [Row(f"{seed} {index}", list(prompt), len(prompt)) for index, prompt in enumerate(prompts)]
    while running := [row for row in rows if len(row.answer) < tokens]:
        draw.shuffle(running)
        room, step = 256, []
        for row in running:
            if room:
                step.append((row, blocks.chunk(row, min(chunk, room))))
                room -= len(step[-1][1].tokens) // 4
        steps.run(step)
        for row, _ in step:
            if draw.random() < preempt:
                blocks.take_back(row)
    return [row.answer for row in rows]


def _planned_behind(serving: Serving, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Each step but the first of an answer is launched before the one is waited for that chooses its tokens."""
    blocks, steps = Blocks(serving, 1), Steps(serving)
    rows = [Row(f"behind {index}", list(prompt), len(prompt)) for index, prompt in enumerate(prompts)]
    for row in rows:
        while len(row.history) - row.computed > 1:  # all but the last token, which all begin with together
            piece = min(128, len(row.history) - row.computed - 1)
            chunk = blocks.chunk(row, piece)
            steps.run([(row, chunk)])
    flying = [(row, blocks.chunk(row, 1)) for row in rows]
    launched = serving.runner.launch(tuple(chunk for _, chunk in flying))
    for number in range(tokens):
        waited, step = launched, flying
        for row, _ in step:
            row.computed += 1
        if number + 1 < tokens:
            flying = [(row, blocks.chunk(row, 1, follows=place)) for place, row in enumerate(rows)]
            launched = serving.runner.launch(tuple(chunk for _, chunk in flying))
        for (row, _), token in zip(step, waited.wait().tokens, strict=True):
            row.history.append(token.token)
    return [row.answer for row in rows]


@torch.inference_mode()
def _other_than_transformers(
    folder: Path, prompts: list[list[int]], answers: list[list[int]], dtype: str, conditions: Conditions
) -> int:
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM
    model = loaded.from_pretrained(folder, dtype=getattr(torch, dtype)).to(conditions.device)
    others = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        made = model.generate(
            torch.tensor([prompt], device=conditions.device),
            attention_mask=torch.ones((1, len(prompt)), device=conditions.device, dtype=torch.long),
            max_new_tokens=len(answer),
            min_new_tokens=len(answer) if model.generation_config.eos_token_id is None else None,
            eos_token_id=-1,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        if made == answer:
            continue
        first = next(place for place, (one, other) in enumerate(zip(made, answer, strict=True)) if one != other)
        history = torch.tensor([prompt + answer[:first]], device=conditions.device)
        logits = model(history).logits[0, -1].float()
        gap = abs(float(logits[made[first]] - logits[answer[first]]))
        others += gap > NEAR * float(logits.max() - logits.min())
    return others
