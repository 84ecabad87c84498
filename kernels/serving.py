"""From a checkpoint to a runner that has run: what happens between ModelFound and the first Step.

Knows the order of things at start (device, threads, weights, memory, one real step, calibration) and what ModelReady
tells. Knows nothing of the socket.
"""

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from kernels.calibration import calibrate
from kernels.checkpoint import Checkpoint
from kernels.choice import choose_forward
from kernels.decoder import load_decoder
from kernels.device import choose_device, choose_dtype, choose_threads, dtype_name
from kernels.quiet import quiet_transformers
from kernels.runner import Runner, RunsBeside, make_runner
from protocol.messages import Chunk, LoadModel, ModelReady, Sampling, Step, StepDone


@dataclass(frozen=True)
class Serving:
    """What is known of the loaded model, and what runs its steps."""

    ready: ModelReady
    runner: Runner

    def run(self, step: Step) -> StepDone:
        """Run a step from end to end."""
        tokens, took_s = self.runner.launch(step.chunks).wait()
        return StepDone(step.step, tokens, took_s)


def load(files: Checkpoint, wish: LoadModel) -> Serving:
    """Load, measure and try the model. Raises ModelError when it cannot be served as wished."""
    quiet_transformers()
    device = choose_device(wish.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # where kernels are launched
    dtype = choose_dtype(wish.dtype, device)
    threads = choose_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    decoder = load_decoder(files, device, dtype, wish.max_context)
    forward, computed_by, weights_bytes = choose_forward(
        wish.kernels, decoder, torch.get_num_threads(), wish.block_size, wish.max_step_tokens, wish.max_step_rows
    )
    decoder = replace(decoder, weights_bytes=weights_bytes)
    runner, budget = make_runner(
        decoder,
        forward=forward,
        kv_memory=wish.kv_memory,
        block_size=wish.block_size,
        max_step_tokens=wish.max_step_tokens,
        max_step_rows=wish.max_step_rows,
        gpu_memory_fraction=wish.gpu_memory_fraction,
    )
    if isinstance(forward, RunsBeside):
        with torch.inference_mode():
            forward.record(runner.cache, _shown)
    first_step_s = runner.launch(_first_step(runner, wish)).wait().took_s
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
        steps_in_flight=wish.steps_in_flight or (2 if runner.runs_beside else 1),
    )
    return Serving(ready, runner)


def _shown(sizes: list[int]) -> Iterable[int]:
    """A bar on a terminal: a graph takes a good part of a second."""
    shown: Iterable[int] = tqdm(
        sizes, desc="Recording decode steps", unit="graph", leave=False, disable=not sys.stderr.isatty()
    )
    return shown


def _first_step(runner: Runner, wish: LoadModel) -> tuple[Chunk, ...]:
    """One block of prompt and a decode row: everything a real step has. What it leaves in block 0 is overwritten."""
    both = wish.max_step_rows > 1 and wish.max_step_tokens > 1
    count = min(runner.cache.block_size, runner.decoder.max_context, wish.max_step_tokens - both)
    table = np.zeros(1, "<i4").tobytes()
    prompt = Chunk("first", 0, bytes(4 * count), table, Sampling())
    row = Chunk("second", 0, bytes(4), table, Sampling(temperature=1.0, top_p=0.9))
    return (prompt, row) if both else (prompt,)
