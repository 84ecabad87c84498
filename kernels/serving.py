"""From a checkpoint to a runner that has run: what happens between ModelFound and the first Step.

Knows the order of things at start (device, threads, weights, memory, one real step, calibration) and what ModelReady
tells. Knows nothing of the socket.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from kernels.calibration import calibrate
from kernels.checkpoint import Checkpoint
from kernels.choice import choose_forward
from kernels.decoder import load_decoder
from kernels.device import choose_device, choose_dtype, choose_threads, dtype_name
from kernels.quiet import quiet_transformers
from kernels.runner import Runner, make_runner
from protocol.messages import Chunk, LoadModel, ModelReady, Sampling, Step, StepDone


@dataclass(frozen=True)
class Serving:
    """What is known of the loaded model, and what runs a step on it."""

    ready: ModelReady
    run: Callable[[Step], StepDone]


def load(files: Checkpoint, wish: LoadModel) -> Serving:
    """Load, measure and try the model. Raises ModelError when it cannot be served as wished."""
    quiet_transformers()
    device = choose_device(wish.device)
    dtype = choose_dtype(wish.dtype, device)
    threads = choose_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    decoder = load_decoder(files, device, dtype, wish.max_context)
    forward, computed_by, weights_bytes = choose_forward(
        wish.kernels, decoder, torch.get_num_threads(), wish.block_size
    )
    decoder = replace(decoder, weights_bytes=weights_bytes)
    runner, budget = make_runner(
        decoder,
        forward=forward,
        kv_memory=wish.kv_memory,
        block_size=wish.block_size,
        max_step_tokens=wish.max_step_tokens,
        max_step_rows=wish.max_step_rows,
    )

    def run(step: Step) -> StepDone:
        began = time.perf_counter()
        tokens = runner.run(step.chunks)  # sampled tokens are back on the host, so the device is done too
        return StepDone(step.step, tokens, time.perf_counter() - began)

    first_step_s = run(_first_step(runner)).took_s
    # What is loaded stays: the collector need not walk through it again and again while steps run.
    gc.collect()
    gc.freeze()
    calibration = calibrate(runner, wish.max_step_tokens, wish.max_step_rows)
    ready = ModelReady(
        name=files.name,
        folder=str(files.folder),
        device=str(device),
        dtype=dtype_name(dtype),
        kernels=computed_by,
        block_size=wish.block_size,
        blocks=budget.blocks,
        max_context=decoder.max_context,
        vocabulary=decoder.vocabulary,
        end_tokens=decoder.end_tokens,
        weights_bytes=budget.weights_bytes,
        kv_bytes=budget.kv_bytes,
        working_bytes=budget.working_bytes,
        first_step_s=first_step_s,
        rope=decoder.rope,
        calibration=calibration,
    )
    return Serving(ready, run)


def _first_step(runner: Runner) -> Step:
    """One block of prompt and a decode row: everything a real step has. What it leaves in block 0 is overwritten."""
    count = min(runner.cache.block_size, runner.decoder.max_context)
    table = np.zeros(1, "<i4").tobytes()
    return Step(
        0,
        (
            Chunk("first", 0, bytes(4 * count), table, Sampling()),
            Chunk("second", 0, bytes(4), table, Sampling(temperature=1.0, top_p=0.9)),
        ),
    )
