"""OpenVINO GenAI's continuous batching, asked in lines of JSON. Run by a Python that has `openvino_genai`, not by ours.

Imports nothing of ours. Started with the folder of an exported model, it says `{"ready": true}`; then it answers each
line on its standard input, `{"prompts": [[...], ...], "output_tokens": N}`, with one on its standard output. A list of
prompts is one stream: its prompts are asked one after another, the streams side by side. The answer holds, for each
stream and prompt, the seconds (of one clock) at which it was added, at which each step brought it tokens, and at which
it ended, and its numbers of tokens. No text is made of the tokens, and no socket is passed: what a server adds to that
is not in these times.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, TextIO

CACHE_GB = 2


def main(folder: str, requests: TextIO, answers: TextIO) -> None:
    genai: Any = importlib.import_module("openvino_genai")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU")
    numbers = count()
    say(answers, {"ready": True})
    for line in requests:
        asked = json.loads(line)
        config = genai.GenerationConfig()
        config.max_new_tokens = asked["output_tokens"]
        config.ignore_eos = True
        config.do_sample = False
        say(answers, {"streams": answer(genai, pipeline, asked["prompts"], config, numbers)})


def answer(
    genai: Any, pipeline: Any, prompts: list[list[str]], config: Any, numbers: Iterator[int]
) -> list[list[dict[str, Any]]]:
    """What became of each prompt of each stream. `numbers` are the requests' names: none twice."""
    tokenizer = pipeline.get_tokenizer()
    now = time.perf_counter
    done: list[list[dict[str, Any]]] = [[] for _ in prompts]
    running: dict[int, tuple[Any, dict[str, Any]]] = {}
    """By stream."""

    def add(stream: int) -> None:
        history = [{"role": "user", "content": prompts[stream][len(done[stream])]}]
        record: dict[str, Any] = {"sent_s": now(), "texts_s": [], "output_tokens": 0}
        text = tokenizer.apply_chat_template(history, add_generation_prompt=True)
        tokens = tokenizer.encode(text, add_special_tokens=False).input_ids
        record["input_tokens"] = tokens.shape[1]
        running[stream] = pipeline.add_request(next(numbers), tokens, config), record

    for stream in range(len(prompts)):
        add(stream)
    while running:
        pipeline.step()
        at_s = now()
        for stream, (handle, record) in list(running.items()):
            if handle.can_read():
                for output in handle.read().values():
                    record["output_tokens"] += len(output.generated_ids)
                record["texts_s"].append(at_s)
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                record["ended_s"] = at_s
                record["finished"] = handle.get_status() == genai.GenerationStatus.FINISHED
                del running[stream]
                done[stream].append(record)
                if len(done[stream]) < len(prompts[stream]):
                    add(stream)
    return done


def say(answers: TextIO, what: dict[str, Any]) -> None:
    print(json.dumps(what), file=answers, flush=True)


if __name__ == "__main__":
    own_output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints shall not garble the answers
    main(sys.argv[1], sys.stdin, own_output)
