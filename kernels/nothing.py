"""A worker that computes nothing: every token is made up, at once. What is left is everything else, to be measured.

Knows the messages of a worker and what of a model's configuration they tell. Imports neither torch nor transformers.
"""

import json
import time
from collections.abc import Callable

from kernels import ModelError
from kernels.checkpoint import Checkpoint
from protocol.messages import LoadModel, ModelReady, SampledToken, Step, StepDone

COMPUTED_BY = "nothing: every token is made up"
BLOCKS = 1 << 16
CONTEXT = 4096
ORDINARY = range(1000, 1100)
"""Tokens that are text in any vocabulary as large as that. In a smaller one, the first half of it."""


class Nothing:
    """Answers each chunk that samples with the next of some ordinary tokens."""

    def __init__(self, vocabulary: int) -> None:
        tokens = ORDINARY if ORDINARY.stop <= vocabulary else range(vocabulary // 2)
        self._tokens = [SampledToken(it) for it in tokens]

    def serve(self, receive: Callable[[], Step | None], send: Callable[[StepDone], None]) -> None:
        """Run what comes until nothing does."""
        while (step := receive()) is not None:
            send(self.run(step))

    def run(self, step: Step) -> StepDone:
        began = time.perf_counter()
        known = self._tokens
        tokens = tuple(
            known[(step.step + index) % len(known)]
            for index, _ in enumerate(it for it in step.chunks if it.sampling is not None)
        )
        return StepDone(step.step, tokens, time.perf_counter() - began)


def load(files: Checkpoint, wish: LoadModel) -> tuple[ModelReady, Nothing]:
    """What serving.load gives, without a model. Raises ModelError when the configuration cannot be read."""
    try:
        config = json.loads((files.folder / "config.json").read_text())
        vocabulary = int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The configuration in {files.folder} cannot be used: {error}.") from error
    ready = ModelReady(
        name=files.name,
        folder=str(files.folder),
        device="none",
        dtype="none",
        block_size=wish.block_size,
        blocks=BLOCKS,
        max_context=wish.max_context or CONTEXT,
        vocabulary=vocabulary,
        end_tokens=(),
        weights_bytes=0,
        kv_bytes=0,
        working_bytes=0,
        first_step_s=0.0,
        kernels=COMPUTED_BY,
        steps_in_flight=wish.steps_in_flight or 1,
    )
    return ready, Nothing(vocabulary)
