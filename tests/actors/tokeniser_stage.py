"""A tokeniser alone, between recorders, with its thread in the test's hands."""

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import numpy as np

from actors.actor import Mailbox
from actors.prompt import Prompts
from actors.tokeniser import Tokeniser, TokeniserInbox
from protocol.messages import (
    Ask,
    Enqueue,
    ModelReady,
    Refused,
    Remember,
)
from protocol.responses import ResponseCreate
from tests.actors.vocabularies import END, Recorder, byte_level, chat_vocabulary, directory_of, send

T = TypeVar("T")
LONG = "A long story of whose turn it is. " * 100


def model(max_context: int = 4_096) -> ModelReady:
    return ModelReady("rota-test", "/m", "cpu", "float32", 16, 64, max_context, 520, (END,), 1, 1, 1, 0.1)


class Stage:
    """A tokeniser between recorders, whose long work is done when the test says so."""

    def __init__(self, prompts: Prompts | None = None, ready: ModelReady | None = None, **options: Any) -> None:
        self.now = 100.0
        self.admission, self.detokeniser = Recorder(), Recorder()
        self.readers = [Recorder(), Recorder()]
        self.work: list[Callable[[], None]] = []
        mailbox: Mailbox[TokeniserInbox] = Mailbox(lambda: self.now, 64)
        self.actor = Tokeniser(
            mailbox,
            vocabulary=prompts or chat_vocabulary(),
            admission=self.admission.address(),
            detokeniser=self.detokeniser.address(),
            directory=directory_of(*self.readers),
            clock=lambda: self.now,
            offload=self._offload,
            random=Random(1),
            **options,
        )
        mailbox.tell(ready or model())

    def _offload(self, work: Callable[[], T], done: Callable[[T | Exception], None], whose: str = "") -> None:
        def job() -> None:
            try:
                done(work())
            except Exception as error:  # noqa: BLE001  handed over
                done(error)

        self.work.append(job)

    async def send(self, *messages: object) -> None:
        await send(self.actor, *messages)

    async def ask(self, request: str = "r", connection: int = 1, tenant: str = "t", **fields: Any) -> None:
        await self.send(ask(request, connection, tenant, **fields))

    async def answered(self, request: str, text: str | None, **fields: Any) -> None:
        """A whole request that was answered with `text`."""
        await self.ask(request, **fields)
        await self.send(Remember(request, text))

    def refusal(self, connection: int = 1) -> str | None:
        refused = self.readers[connection - 1].of(Refused)
        return refused[-1].error.code if refused else None

    def prompt(self) -> str:
        """The newest prompt that was passed on, as text."""
        tokens = np.frombuffer(self.admission.of(Enqueue)[-1].tokens, "<i4").tolist()
        return byte_level().decode(tokens, skip_special_tokens=False)


def ask(request: str = "r", connection: int = 1, tenant: str = "t", **fields: Any) -> Ask:
    return Ask(request, connection, tenant, ResponseCreate(**{"input": "Hi", **fields}), 50.0)


def chat(*turns: tuple[str, str]) -> str:
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{said}<|im_start|>assistant\n"
