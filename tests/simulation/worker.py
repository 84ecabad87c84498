"""A worker process that is none: a cache of tokens instead of tensors, and answers that can be known beforehand.

It believes nothing but its own blocks: the history it continues is read back through the block table it was given.
So a block lost, shared or reused too early becomes a wrong answer.
"""

import asyncio
import struct
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from random import Random

import msgspec
from msgspec import structs

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
    StepFailed,
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

    One step runs at a time, and begins when the one before has ended; `steps_in_flight` may be here. `crash_in`,
    `hang_in` and `slow_in` count steps; None: never. Of the next `short_for` steps, those of more than `short_tokens`
    tokens find no memory.
    """

    def __init__(
        self,
        chance: Random,
        blocks: int,
        block_size: int,
        max_context: int,
        *,
        calibrated: bool = False,
        steps_in_flight: int = 1,
    ) -> None:
        self._chance = chance
        self._blocks = blocks
        self._block_size = block_size
        self._max_context = max_context
        self._calibrated = calibrated
        self._steps_in_flight = steps_in_flight
        self._decode = msgspec.msgpack.Decoder(Step | LoadModel).decode
        self._cache: dict[int, list[int]] = {}
        self._alive = False
        self._life = 0
        self._deliver: Callable[[FromWorker], None] | None = None
        self._gone: Callable[[str], None] | None = None
        self.crash_in: int | None = None
        self.hang_in: int | None = None
        self.slow_in: int | None = None
        self.short_for = 0
        self.short_tokens = 0
        self.steps = 0
        self.followed = 0
        """Rows whose tokens were not known yet when they were planned."""
        self.refused = 0
        self._forget()

    def _forget(self) -> None:
        self._here: deque[Step] = deque()
        """The one that runs, and those planned behind it."""
        self._newest = 0
        self._refused = 0
        self._chosen: tuple[int, list[int]] = (0, [])
        """The last step that was run, and the tokens that it chose."""

    # --- actors.worker_process.Child ---

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        assert not self._alive, "one worker at a time"
        self._alive, self._deliver, self._gone = True, deliver, gone
        self._cache = {}
        self._forget()
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
            steps_in_flight=self._steps_in_flight,
        )
        self._later(0.2, ready)

    def send(self, step: Step) -> None:
        if not self._alive:
            return
        read = self._decode(msgspec.msgpack.encode(step))
        assert isinstance(read, Step)
        if not read.chunks:
            assert not self._here, "asked whether it is there while it works"
            if self.hang_in != 0:
                self._later(0.001, StepDone(read.step, (), 0.0))
            return
        self.steps += 1
        if read.behind:
            assert read.behind == self._newest, "planned behind a step that was not the newest"
        else:
            assert not self._here, "planned behind nothing while a step runs"
        self._newest = read.step
        self._here.append(read)
        assert len(self._here) <= self._steps_in_flight, "more steps than were asked for"
        if len(self._here) == 1:
            self._begin()

    def _begin(self) -> None:
        """The oldest of those here."""
        step = self._here[0]
        if self._counts_down("hang_in"):
            return
        if self._counts_down("crash_in"):
            self.kill()
            return
        if self._has_no_memory(step) or (step.behind and step.behind == self._refused):
            self._refused = step.step
            self.refused += 1
            self._over(0.001, StepFailed(step.step, "no memory for it"))
            return
        chunks = [self._run(self._filled_in(chunk, step.behind)) for chunk in step.chunks]
        chosen = [self._next(chunk) for chunk in chunks if chunk.sampling is not None]
        self._chosen = step.step, chosen
        usual_s = COSTS.step_s(work_of(chunks)) * self._chance.uniform(0.7, 1.5)
        took_s = 0.5 if self._counts_down("slow_in") else usual_s
        self._over(took_s, StepDone(step.step, tuple(map(SampledToken, chosen)), took_s))

    def _has_no_memory(self, step: Step) -> bool:
        if not self.short_for:
            return False
        self.short_for -= 1
        return sum(len(chunk.tokens) // 4 for chunk in step.chunks) > self.short_tokens

    def _over(self, in_s: float, result: StepDone | StepFailed) -> None:
        """The step that runs is over then, and the next one begins."""
        life = self._life

        def end() -> None:
            if self._alive and life == self._life:
                self._later(0.0, result)
                self._here.popleft()
                if self._here:
                    self._begin()

        asyncio.get_running_loop().call_later(in_s, end)

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

    def signs_of_life(self) -> None:
        return None

    def abandon(self) -> None:
        self._alive = False
        self._life += 1

    async def close(self) -> None:
        self.abandon()

    # --- the model ---

    def _filled_in(self, chunk: Chunk, behind: int) -> Chunk:
        """With the token that the step before has chosen, if it was not known yet."""
        if chunk.follows < 0:
            return chunk
        assert chunk.tokens == bytes(4), "a row that follows has one token, which is not known"
        number, chosen = self._chosen
        assert number == behind, "the tokens that it follows are not those of the step before"
        self.followed += 1
        return structs.replace(chunk, tokens=struct.pack("<i", chosen[chunk.follows]))

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
