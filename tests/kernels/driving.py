"""A scheduler of few lines for tests of the runner: blocks in a shuffled order, preempted at random."""

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
        self.known: dict[tuple[int, ...], int] = {}
        self.reused = 0
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
        reuse: bool = False,
    ) -> list[Request]:
        """All prompts together, prefilled in chunks of `chunk`; each step, one in 1/`preempt` loses its blocks.

        With `reuse` a full block is kept for good, and found again by whoever begins with the same tokens.
        """
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
                if reuse:
                    self._publish(request)
                if self.random.random() < preempt:
                    self._take_back(request)
        for request in requests:
            self._take_back(request)
        return requests

    def _publish(self, request: Request) -> None:
        size = self.runner.cache.block_size
        for end in range(size, request.computed + 1, size):
            self.known.setdefault(tuple(request.history[:end]), request.blocks[end // size - 1])

    def _adopt(self, request: Request) -> None:
        """Begin behind what is known already; one token at least is left to compute."""
        end = self.runner.cache.block_size
        while end < len(request.history) and (block := self.known.get(tuple(request.history[:end]))) is not None:
            request.blocks.append(block)
            request.computed = end
            self.reused += 1
            end += self.runner.cache.block_size

    def _chunk(self, request: Request, most: int) -> Chunk:
        if not request.blocks:
            self._adopt(request)
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
        kept = set(self.known.values())
        freed = [it for it in request.blocks if it not in kept]
        # What a block held must not matter any more.
        for layer in (*self.runner.cache.keys, *self.runner.cache.values):
            layer[freed] = 7.0
        self.free = freed + self.free
        request.blocks, request.computed = [], 0
