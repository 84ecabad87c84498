"""A scheduler of twenty lines for tests of the runner: blocks in a shuffled order, preempted at random."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kernels.runner import Runner
from protocol.messages import Chunk, SampledToken, Sampling


@dataclass
class Request:
    """`history` is prompt and answer so far; the first `computed` of its tokens are in the cache, under `blocks`."""

    name: str
    history: list[int]
    prompt: int
    sampling: Sampling
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    sampled: list[SampledToken] = field(default_factory=list)

    @property
    def answer(self) -> list[int]:
        return self.history[self.prompt :]


class Driver:
    """Runs requests on a runner until each has `new_tokens`. Deterministic in `seed`."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self.random = random.Random(seed)
        self.free = list(range(runner.cache.blocks))
        self.random.shuffle(self.free)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        chunk: int = 512,
        preempt: float = 0.0,
        sampling: Sequence[Sampling] | None = None,
    ) -> list[Request]:
        """All prompts together, prefilled in chunks of `chunk`; each step, one in 1/`preempt` loses its blocks."""
        wishes = sampling or [Sampling()] * len(prompts)
        requests = [
            Request(str(index), list(prompt), len(prompt), wish)
            for index, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True))
        ]
        while running := [it for it in requests if len(it.answer) < new_tokens]:
            self.random.shuffle(running)
            chunks = tuple(self._chunk(it, chunk) for it in running)
            tokens = iter(self.runner.run(chunks))
            for request, part in zip(running, chunks, strict=True):
                request.computed += len(part.tokens) // 4
                if part.sampling is not None:
                    token = next(tokens)
                    request.history.append(token.token)
                    request.sampled.append(token)
                if self.random.random() < preempt:
                    self._take_back(request)
        for request in requests:
            self._take_back(request)
        return requests

    def _chunk(self, request: Request, most: int) -> Chunk:
        end = min(len(request.history), request.computed + most)
        while len(request.blocks) * self.runner.cache.block_size < end:
            request.blocks.append(self.free.pop())
        return Chunk(
            request.name,
            request.computed,
            np.array(request.history[request.computed : end], "<i4").tobytes(),
            np.array(request.blocks, "<i4").tobytes(),
            request.sampling if end == len(request.history) else None,
        )

    def _take_back(self, request: Request) -> None:
        # What a block held must not matter any more.
        for layer in (*self.runner.cache.keys, *self.runner.cache.values):
            layer[request.blocks] = 7.0
        self.free = request.blocks + self.free
        request.blocks, request.computed = [], 0
