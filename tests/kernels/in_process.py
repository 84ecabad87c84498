"""rota's kernels without its actors, asked in lines of JSON as `loadgen/openvino_lines.py` is: for `make bench-peers`.

`python -m tests.kernels.in_process FOLDER`. What a server adds to this (sockets, messages between actors, text) is the
difference between its row and rota's own.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from transformers import AutoTokenizer

from kernels.checkpoint import Checkpoint
from kernels.serving import Serving, load
from protocol.messages import Chunk, LoadModel, Sampling, Step

CHUNK_TOKENS = 512
"""Most prompt tokens in a step, as `--chunk-tokens`."""


class Stream:
    """Prompts asked one after another; the one at work now is `history`, of which `computed` is in the cache."""

    def __init__(self, prompts: list[list[int]]) -> None:
        self.waiting = prompts
        self.done: list[dict[str, Any]] = []
        self.blocks: list[int] = []
        self.next()

    def next(self) -> None:
        self.history = self.waiting.pop(0)
        self.computed = 0
        self.record: dict[str, Any] = {
            "sent_s": time.perf_counter(),
            "texts_s": [],
            "input_tokens": len(self.history),
            "output_tokens": 0,
            "finished": True,
        }


def main(folder: str, requests: TextIO, answers: TextIO) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    serving = load(Checkpoint("model", Path(folder)), LoadModel(folder, dtype="bfloat16", kernels="native"))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in requests:
        asked = json.loads(line)
        prompts = [
            [
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
                )
                for text in stream
            ]
            for stream in asked["prompts"]
        ]
        streams = [Stream(its) for its in prompts]
        run(serving, streams, asked["output_tokens"])
        print(json.dumps({"streams": [stream.done for stream in streams]}), file=answers, flush=True)


def run(serving: Serving, streams: list[Stream], output_tokens: int) -> None:
    """Answer everything: every step holds a row of each stream that writes, and prompts as far as they fit."""
    free = list(range(serving.ready.blocks))
    running = list(streams)
    number = 1
    while running:
        room, step = CHUNK_TOKENS, []
        for stream in running:
            left = len(stream.history) - stream.computed
            count = 1 if left == 1 else min(left, room)
            if count == 0:
                continue
            room -= count if left > 1 else 0
            step.append((stream, chunk(stream, count, serving.ready.block_size, free)))
        number += 1
        sampled = iter(serving.run(Step(number, tuple(it for _, it in step))).tokens)
        at_s = time.perf_counter()
        for stream, its in step:
            stream.computed += len(its.tokens) // 4
            if its.sampling is None:
                continue
            stream.history.append(next(sampled).token)
            stream.record["texts_s"].append(at_s)
            stream.record["output_tokens"] += 1
            if stream.record["output_tokens"] == output_tokens:
                stream.record["ended_s"] = at_s
                stream.done.append(stream.record)
                free += stream.blocks
                stream.blocks = []
                if stream.waiting:
                    stream.next()
                else:
                    running.remove(stream)


def chunk(stream: Stream, count: int, block_size: int, free: list[int]) -> Chunk:
    end = stream.computed + count
    while len(stream.blocks) * block_size < end:
        stream.blocks.append(free.pop())
    return Chunk(
        "stream",
        stream.computed,
        np.array(stream.history[stream.computed : end], "<i4").tobytes(),
        np.array(stream.blocks, "<i4").tobytes(),
        Sampling() if end == len(stream.history) else None,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin, sys.stdout)
