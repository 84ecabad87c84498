"""Servers that a whole session shares, one a way of being configured; each starts when a test first asks for it."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kernels.default_model import DEFAULT_MODEL
from tests.end_to_end.client import Client, connected
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server, serving
from tests.models import make_small_model

CONTEXT = 8192
Start = Callable[..., Server]


@pytest.fixture(scope="session")
def legible_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model that writes ASCII only: then equal texts are equal tokens."""
    return legible_model(tmp_path_factory.mktemp("models") / "legible")


def legible_model(folder: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    from kernels.byte_tokeniser import END_ID

    make_small_model(folder, max_position_embeddings=CONTEXT)
    loaded: Any = AutoModelForCausalLM
    model = loaded.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        # A logit of zero never wins against the best of 128 random ones.
        model.lm_head.weight[128:END_ID] = 0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def noisy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model that writes any bytes: half characters, and bytes that are none."""
    return make_small_model(tmp_path_factory.mktemp("models") / "noisy", max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def legible(legible_folder: Path) -> Reference:
    return Reference(legible_folder)


@pytest.fixture(scope="session")
def noisy(noisy_folder: Path) -> Reference:
    return Reference(noisy_folder)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a server that lives until the session ends."""
    with ExitStack() as stack:
        yield lambda *arguments, **how: stack.enter_context(
            serving(tmp_path_factory.mktemp("server"), *arguments, **how)
        )


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Start]:
    """Starts a server for this test alone: one that is to come to harm."""
    with ExitStack() as stack:
        yield lambda *arguments, **how: stack.enter_context(serving(tmp_path / "server", *arguments, **how))


ONE_AT_A_TIME: Mapping[str, Any] = {}
OVERLAPPED: Mapping[str, Any] = {"module": "tests.end_to_end.slow_device"}
"""How a server is started: as usual, and on a device that takes time, where a step is planned while one runs."""


def most_tests_server(shared: Start, folder: Path, how: Mapping[str, Any]) -> Server:
    return shared("--model", str(folder), "--dtype", "float32", "--chunk-tokens", "64", **how)


def one_by_one_server(shared: Start, folder: Path, how: Mapping[str, Any]) -> Server:
    arguments = ("--model", str(folder), "--dtype", "float32", "--max-running", "1", "--chunk-tokens", "16")
    return shared(*arguments, **how)


@pytest.fixture(scope="session")
def plain_server(shared: Start, legible_folder: Path) -> Server:
    return most_tests_server(shared, legible_folder, ONE_AT_A_TIME)


@pytest.fixture(scope="session")
def server(plain_server: Server) -> Server:
    """The one for most tests: prefill in chunks of 64, room for everyone."""
    return plain_server


@pytest.fixture(scope="session")
def overlapped_server(shared: Start, legible_folder: Path) -> Server:
    """The same, two steps in flight."""
    return most_tests_server(shared, legible_folder, OVERLAPPED)


@pytest.fixture(scope="session")
def plain_narrow(shared: Start, noisy_folder: Path) -> Server:
    return one_by_one_server(shared, noisy_folder, ONE_AT_A_TIME)


@pytest.fixture(scope="session")
def narrow(plain_narrow: Server) -> Server:
    """One request at a time, in small chunks; the model writes any bytes."""
    return plain_narrow


@pytest.fixture(scope="session")
def overlapped_narrow(shared: Start, noisy_folder: Path) -> Server:
    """The same, two steps in flight."""
    return one_by_one_server(shared, noisy_folder, OVERLAPPED)


@pytest.fixture(scope="session")
def real(shared: Start) -> Server:
    """The default model, which the server fetches if this machine has never had it."""
    return shared("--dtype", "float32")


@pytest.fixture(scope="session")
def real_reference(real: Server) -> Reference:
    from kernels.checkpoint import resolve

    assert real.model == DEFAULT_MODEL
    return Reference(resolve(DEFAULT_MODEL).folder)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client
