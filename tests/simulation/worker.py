"""A worker process that is none: a cache of tokens instead of tensors, and answers that can be known beforehand.

It believes nothing but its own blocks: the history it continues is read back through the block table it was given.
So a block lost, shared or reused too early becomes a wrong answer.
"""

import asyncio
import struct
import zlib
from array import array
from collections.abc import Callable
from functools import lru_cache
from random import Random

import msgspec

from actors.scheduling.costs import Costs, work_of
from kernels.byte_tokeniser import END_ID, START_ID
from protocol.messages import (
    Chunk,
    FromWorker,
    LoadModel,
    Measured,
    ModelFound,
    ModelReady,
    SampledToken,
    Step,
    StepDone,
    Work,
)

LETTERS = "abcdefgh  .,é✓漢字🙂e\u0301👩‍💻"
COSTS = Costs(coefficients=(0.006, 2e-4, 1e-6, 1e-6, 5e-4, 1e-6))
"""What a step takes, give or take."""
CALIBRATION = tuple(
    Measured(work, COSTS.step_s(work))
    for work in (Work(0, 0, 0, 1, 8), Work(0, 0, 0, 8, 500), Work(16, 136, 0, 0, 0), Work(32, 1500, 40, 1, 8))
)
_PROMPT_ENDS = len("assistant\n") + 1


def answer_to(prompt: "array[int]") -> bytes:
    """What the model says to a prompt, in full: UTF-8, a letter or a character of up to four bytes at a time."""
    return _answer_to(prompt.tobytes())


@lru_cache(maxsize=256)  # asked for at every token, and always the same
def _answer_to(prompt: bytes) -> bytes:
    chance = Random(zlib.crc32(prompt))
    return "".join(chance.choice(LETTERS) for _ in range(chance.choice((0, 1, 5, 30, 60, 60)))).encode()


class FakeWorker:
    """Runs steps in virtual time, which take longer the more is in them. `calibrated`: it says so beforehand.

    `crash_in`, `hang_in` and `slow_in` count steps; None: never.
    """

    def __init__(
        self, chance: Random, blocks: int, block_size: int, max_context: int, *, calibrated: bool = False
    ) -> None:
        self._chance = chance
        self._blocks = blocks
        self._block_size = block_size
        self._max_context = max_context
        self._calibrated = calibrated
        self._decode = msgspec.msgpack.Decoder(Step | LoadModel).decode
        self._cache: dict[int, list[int]] = {}
        self._alive = False
        self._life = 0
        self._deliver: Callable[[FromWorker], None] | None = None
        self._gone: Callable[[str], None] | None = None
        self.crash_in: int | None = None
        self.hang_in: int | None = None
        self.slow_in: int | None = None
        self.steps = 0

    # --- actors.worker_process.Child ---

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        assert not self._alive, "one worker at a time"
        self._alive, self._deliver, self._gone = True, deliver, gone
        self._cache = {}
        self._later(0.1, ModelFound("m", "folder"))
        ready = ModelReady(
            name="m",
            folder="folder",
            device="none",
            dtype="none",
            block_size=self._block_size,
            blocks=self._blocks,
            max_context=self._max_context,
            vocabulary=258,
            end_tokens=(END_ID,),
            weights_bytes=0,
            kv_bytes=0,
            working_bytes=0,
            first_step_s=0.0,
            calibration=CALIBRATION if self._calibrated else (),
        )
        self._later(0.2, ready)

    def send(self, step: Step) -> None:
        if not self._alive:
            return
        self.steps += 1
        step_read = self._decode(msgspec.msgpack.encode(step))
        assert isinstance(step_read, Step)
        if self._counts_down("hang_in"):
            return
        if self._counts_down("crash_in"):
            self.kill()
            return
        tokens = tuple(
            SampledToken(self._next(chunk)) for chunk in map(self._run, step_read.chunks) if chunk.sampling is not None
        )
        usual_s = COSTS.step_s(work_of(step_read.chunks)) * self._chance.uniform(0.7, 1.5)
        took_s = 0.5 if self._counts_down("slow_in") else usual_s
        self._later(took_s, StepDone(step.step, tokens, took_s))

    def kill(self) -> None:
        if self._alive:
            self._alive = False
            self._life += 1
            life, gone = self._life, self._gone
            assert gone is not None

            def tell() -> None:
                if life == self._life:
                    gone("the worker was killed")

            asyncio.get_running_loop().call_later(0.01, tell)

    def abandon(self) -> None:
        self._alive = False
        self._life += 1

    async def close(self) -> None:
        self.abandon()

    # --- the model ---

    def _run(self, chunk: Chunk) -> Chunk:
        """Write the chunk's tokens where its table says."""
        tokens, blocks = _ints(chunk.tokens), _ints(chunk.blocks)
        for position, token in enumerate(tokens, chunk.start):
            block = self._cache.setdefault(blocks[position // self._block_size], [-1] * self._block_size)
            block[position % self._block_size] = token
        return chunk

    def _next(self, chunk: Chunk) -> int:
        end = chunk.start + len(chunk.tokens) // 4
        blocks = _ints(chunk.blocks)
        history = array("i")
        for block in blocks:
            history.extend(self._cache[block])
        history = history[:end]
        prompt = len(history) - history[::-1].index(START_ID) + _PROMPT_ENDS - 1
        answer = answer_to(history[:prompt])
        written = len(history) - prompt
        return answer[written] if written < len(answer) else END_ID

    def _counts_down(self, name: str) -> bool:
        left: int | None = getattr(self, name)
        if left is None:
            return False
        setattr(self, name, None if left == 0 else left - 1)
        return left == 0

    def _later(self, delay_s: float, message: FromWorker) -> None:
        life = self._life
        read: FromWorker = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromWorker)

        def deliver() -> None:
            if self._alive and life == self._life and self._deliver is not None:
                self._deliver(read)

        asyncio.get_running_loop().call_later(delay_s, deliver)


def _ints(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}i", packed)
