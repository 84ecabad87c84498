"""`transformers`' continuous batching on the same model, the same prompts, as many tokens each, in the same run.

In process, with no sockets and no text. Once as it chooses by itself (in a plain image: PyTorch's `sdpa` over its
pages, without CUDA graphs) and once with CUDA graphs; the better counts. Knows its `generate_batch` of 5.17 to 5.24,
which differs in one thing: the later ones may be told not to look for flash attention on the hub.
"""

import gc
import importlib.util
import time
from collections.abc import Iterator
from typing import Any

import torch

from tests.gpu import crowd, model
from tests.gpu.findings import Conditions, Finding

LEAST = 3.0
"""Times its tokens a second, at the most streams."""
WARM_UP_TOKENS = 8


def measure(conditions: Conditions) -> Iterator[Finding]:
    from transformers import AutoModelForCausalLM

    folder = model.folder(conditions)
    loaded: Any = AutoModelForCausalLM
    its = loaded.from_pretrained(folder, dtype=torch.bfloat16).to(conditions.device).eval()
    prompts, ours = crowd.prompts(folder, max(crowd.streams(conditions))), crowd.told(conditions)
    for count in crowd.streams(conditions):
        best = 0.0
        for graphs in (None, True) if conditions.device == "cuda" else (None,):
            how = "as it chooses" if graphs is None else "with CUDA graphs"
            name = f"transformers, {count} streams, {how}"
            try:
                room = {"num_blocks": 16, "max_batch_tokens": 256} if conditions.smoke else {}
                per_s, note = _per_s(its, prompts[:count], crowd.output_tokens(conditions), graphs, room)
            except Exception as failed:  # noqa: BLE001  whatever it cannot do is told beside what it can
                yield Finding(name, 0.0, "tokens/s", note=f"{type(failed).__name__}: {failed}"[:120])
                continue
            best = max(best, per_s)
            yield Finding(name, per_s, "tokens/s", note=note)
        if best and count in ours:
            least = LEAST if count >= max(crowd.STREAMS) else None
            name = f"rota through sockets, {count} streams, as a multiple"
            yield Finding(name, ours[count] / best, "times", least=least, timed=True)


def _per_s(
    its: Any, prompts: list[list[int]], tokens: int, graphs: bool | None, room: dict[str, int]
) -> tuple[float, str]:
    """Tokens a second from when all are handed over to the last token, and what that was. Raises what it raises.

    `room`: what it is not to choose by itself, as it takes all memory that there is.
    """
    import transformers

    library: Any = transformers
    config = library.ContinuousBatchingConfig(use_cuda_graph=graphs, allow_block_sharing=False, **room)
    installed = any(importlib.util.find_spec(name) for name in ("flash_attn", "flash_attn_interface"))
    if not installed and hasattr(config, "auto_switch_to_flash"):
        config.auto_switch_to_flash = False  # it would look for kernels on the hub
    generation = library.GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    given = {"generation_config": generation, "continuous_batching_config": config, "persistent_manager": True}
    try:
        # Once before, for all that is made or captured only once.
        its.generate_batch(prompts, max_new_tokens=min(WARM_UP_TOKENS, tokens), **given)
        began_s = time.perf_counter()
        answers = its.generate_batch(prompts, max_new_tokens=tokens, record_timestamps=True, **given)
        ended_s = time.perf_counter()
    finally:
        its.destroy_cached_continuous_batching_manager()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    made = sum(len(it.generated_tokens) for it in answers.values())
    if made != len(prompts) * tokens:
        raise RuntimeError(f"it made {made} tokens of {len(prompts) * tokens}")
    stamps = [at_s for it in answers.values() for at_s in it.timestamps or ()]
    # What it takes to stop its thread is not of the answers.
    wall_s = (max(stamps) if stamps and began_s < max(stamps) < ended_s else ended_s) - began_s
    return made / wall_s, f"{made / len(prompts):,.0f} tokens each in {wall_s:.2f} s"
