"""`python -m tests.kernels.native.timing`: what steps of the default model take on the CPU kernels, on this machine.

Decode rows at several contexts, each row's blocks scattered over the pool, with the bytes a step reads (weights and
cache) a second; and chunks of a prompt at several places. The shortest of some runs, since whatever else the machine
does only makes them longer. `--threads N`, `--dtype`.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from kernels.checkpoint import resolve
from kernels.decoder import load_decoder
from kernels.default_model import DEFAULT_MODEL
from kernels.device import choose_threads
from kernels.kv_cache import block_bytes
from kernels.native.stack import NativeStack
from kernels.quiet import quiet_transformers
from kernels.runner import Runner
from protocol.messages import Chunk, Sampling

BLOCK_SIZE = 32
BLOCKS = 2400
RUNS = 12
DECODES = ((1, 128), (16, 128), (64, 128), (8, 128), (8, 512), (8, 1024), (8, 2048), (8, 4096), (8, 8000), (1, 8000))
PREFILLS = ((16, 0), (64, 0), (256, 0), (512, 0), (2000, 0), (512, 2000), (512, 7000))


def main() -> None:
    parser = argparse.ArgumentParser(prog="timing", description=__doc__)
    parser.add_argument("--threads", type=int, default=choose_threads() or torch.get_num_threads())
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    args = parser.parse_args()
    quiet_transformers()
    dtype = getattr(torch, args.dtype)
    decoder = load_decoder(resolve(DEFAULT_MODEL), torch.device("cpu"), dtype)
    stack = NativeStack(decoder, threads=args.threads, block_size=BLOCK_SIZE)
    cache = stack.new_cache(decoder.layers, BLOCKS, BLOCK_SIZE, dtype, decoder.device)
    for pages in (*cache.keys, *cache.values):
        pages.normal_()  # every page is there, and none is zeros
    runner = Runner(decoder, cache, stack)
    scattered = np.random.default_rng(1).permutation(BLOCKS).astype("<i4")

    def chunk(start: int, count: int, turn: int) -> Chunk:
        table = np.roll(scattered, -turn)[: -(-(start + count) // BLOCK_SIZE)]
        return Chunk("timing", start, bytes(4 * count), table.tobytes(), Sampling())

    weights = stack.bytes - decoder.vocabulary * 576 * dtype.itemsize
    of_token = block_bytes(decoder.layers, BLOCK_SIZE, dtype) / BLOCK_SIZE
    print(f"{DEFAULT_MODEL} in {args.dtype} by {stack.unit.name.lower()}, {args.threads} threads, best of {RUNS}")
    print("\n  rows  context        ms  cache read   GB/s of weights and cache")
    for rows, context in DECODES:
        step = tuple(chunk(context, 1, row * BLOCKS // rows) for row in range(rows))
        took_s = best(partial(runner.run, step))
        read = rows * context * of_token
        print(
            f"{rows:6}  {context:7,}  {took_s * 1e3:8.1f}  {read / 1e6:7.0f} MB  {(weights + read) / took_s / 1e9:6.1f}"
        )
    print("\n  tokens  after        ms   tokens/s")
    for count, start in PREFILLS:
        took_s = best(partial(runner.run, (chunk(start, count, 0),)))
        print(f"{count:8,}  {start:5,}  {took_s * 1e3:8.1f}  {count / took_s:9,.0f}")


def best(run: Callable[[], object]) -> float:
    """Seconds of the shortest."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
