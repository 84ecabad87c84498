"""What stands around an actor under test: a clock turned by hand, addresses that remember what was sent to them, and
requests made of a few numbers."""

import math
from array import array
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from actors.actor import Address, Mailbox
from protocol.messages import Control, Data, Enqueue, Measured, Merging, ModelReady, Sampling

Kind = TypeVar("Kind")


class HandClock:
    """Seconds that pass only when told to."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> float:
        self.now += seconds
        return self.now


class Recorder(Mailbox[Any]):
    """A mailbox nobody takes from: every message is kept, in the order in which it was sent, none replaced."""

    def __init__(self, capacity: int = 1_000_000) -> None:
        super().__init__(lambda: 0.0, capacity)
        self.heard: list[Any] = []
        self.waiting_data = 0
        self.most_waiting_data = 0

    @property
    def address(self) -> Address[Any]:
        return Address(cast(Mailbox[object], self))

    def offer(self, message: Data) -> bool:
        if self.waiting_data >= self.capacity:
            return False
        self.waiting_data += 1
        self.most_waiting_data = max(self.most_waiting_data, self.waiting_data)
        self.heard.append(message)
        return True

    def tell(self, message: Control | Merging) -> None:
        self.heard.append(message)

    def take_all(self) -> list[Any]:
        """Everything heard since the last time."""
        heard, self.heard = self.heard, []
        self.waiting_data = 0
        return heard

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Those of one kind, left where they are."""
        return [message for message in self.heard if isinstance(message, kind)]


def token_bytes(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()


def tokens_in(encoded: bytes) -> list[int]:
    return array("i", encoded).tolist()


def enqueue(
    request: str = "r1",
    prompt: Iterable[int] | int = 4,
    *,
    connection: int = 1,
    tenant: str = "",
    max_output_tokens: int = 4,
    end_tokens: tuple[int, ...] = (),
    received_at: float = 100.0,
    accepted_at: float | None = None,
    deadline_at: float | None = None,
    ttft_target_s: float = math.inf,
    itl_target_s: float = math.inf,
) -> Enqueue:
    """A request with the given prompt, or with one of so many tokens."""
    return Enqueue(
        request,
        connection=connection,
        tenant=tenant,
        tokens=token_bytes(range(10, 10 + prompt) if isinstance(prompt, int) else prompt),
        sampling=Sampling(),
        max_output_tokens=max_output_tokens,
        end_tokens=end_tokens,
        received_at=received_at,
        accepted_at=accepted_at,
        deadline_at=deadline_at,
        ttft_target_s=ttft_target_s,
        itl_target_s=itl_target_s,
    )


def model_ready(
    blocks: int = 64, block_size: int = 4, calibration: tuple[Measured, ...] = (), steps_in_flight: int = 1
) -> ModelReady:
    return ModelReady(
        name="tiny",
        folder="/nowhere",
        device="cpu",
        dtype="float32",
        block_size=block_size,
        blocks=blocks,
        max_context=blocks * block_size,
        vocabulary=100,
        end_tokens=(0,),
        weights_bytes=1,
        kv_bytes=1,
        working_bytes=1,
        first_step_s=0.001,
        calibration=calibration,
        steps_in_flight=steps_in_flight,
    )
