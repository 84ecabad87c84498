"""`python -m tests.kernels.native.default_model`: thirty prompts to the real model in bfloat16, in every company.

Each is answered alone; then all together, in chunks of 16 to 512, preempted at random, and with the blocks of equal
beginnings shared; greedy ones and seeded ones. Prints how many answers are the same tokens as alone, and exits with 1
unless all are. Takes some minutes, which is why CI runs the same on small models (`test_same_tokens.py`).
"""

import random
import sys

import torch
from transformers import AutoTokenizer

from kernels.checkpoint import resolve
from kernels.decoder import load_decoder
from kernels.default_model import DEFAULT_MODEL
from kernels.device import choose_threads
from kernels.native.stack import NativeStack
from kernels.quiet import quiet_transformers
from kernels.runner import Runner
from loadgen.prompts import prompt
from protocol.messages import Sampling
from tests.kernels.driving import Driver

NEW = 32
LENGTHS = (1, 20, 100, 140, 255, 256, 257, 500, 1000, 2000)
WAYS: tuple[tuple[str, int, float, bool], ...] = (
    *((f"together, chunks of {chunk}", chunk, 0.0, False) for chunk in (16, 32, 100, 256, 512)),
    ("preempted, chunks of 64", 64, 0.02, False),
    ("preempted, chunks of 512", 512, 0.02, False),
    ("blocks shared, chunks of 128", 128, 0.0, True),
)


def main() -> int:
    quiet_transformers()
    checkpoint = resolve(DEFAULT_MODEL)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder)
    decoder = load_decoder(checkpoint, torch.device("cpu"), torch.bfloat16)
    stack = NativeStack(decoder, threads=choose_threads() or torch.get_num_threads(), block_size=32)
    cache = stack.new_cache(decoder.layers, 1200, 32, torch.bfloat16, decoder.device)
    runner = Runner(decoder, cache, stack)
    prompts: list[list[int]] = [tokenizer(prompt(1, i, LENGTHS[i % len(LENGTHS)])).input_ids for i in range(30)]
    shared = prompts[9][:300]
    for place in range(2, 30, 3):
        prompts[place] = shared[: random.Random(place).choice((32, 64, 100, 300))] + prompts[place]
    wishes = [Sampling(temperature=0.8, top_p=0.95, seed=i) if i % 2 else Sampling() for i in range(30)]
    alone = [
        Driver(runner, seed).generate([one], NEW, sampling=[wish])[0].answer
        for seed, (one, wish) in enumerate(zip(prompts, wishes, strict=True))
    ]
    print(f"{DEFAULT_MODEL}, bfloat16 by {stack.unit.name.lower()}: 30 prompts, {NEW} tokens each, as alone:")
    good = True
    for words, chunk, preempt, reuse in WAYS:
        found = Driver(runner, chunk).generate(prompts, NEW, chunk=chunk, preempt=preempt, reuse=reuse, sampling=wishes)
        same = sum(it.answer == one for it, one in zip(found, alone, strict=True))
        print(f"  {words:30} {same} of 30", flush=True)
        good = good and same == 30
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
