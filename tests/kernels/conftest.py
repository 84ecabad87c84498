from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.checkpoint import Checkpoint
from kernels.decoder import Decoder, load_decoder
from kernels.native import binding
from kernels.native.binding import Library
from kernels.native.build import NotBuilt
from kernels.native.stack import NativeStack
from kernels.quiet import quiet_transformers
from kernels.runner import Forward, Runner, TorchForward
from tests.kernels.native.decoders import FAMILIES, Decoders, make_decoder
from tests.models import make_small_model

CPU = torch.device("cpu")

# Small models gain nothing from a second thread, and on a busy machine two wait for one another for seconds. The
# worker's tests run it with the threads it chooses.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    quiet_transformers()
    return make_small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def small_decoder(small_folder: Path) -> Decoder:
    return load_decoder(Checkpoint("small", small_folder), CPU, torch.float32)


@pytest.fixture(scope="session")
def small_reference(small_folder: Path) -> Any:
    """The same model as transformers alone runs it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(small_folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def cpu_kernels() -> Library:
    """Our own, built if they are not yet. Whoever asks for them is skipped where they cannot be."""
    try:
        return binding.load()
    except NotBuilt as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=["torch", "native"])
def small_forward(request: pytest.FixtureRequest, small_decoder: Decoder) -> Forward:
    """Each set of kernels in turn, for blocks of 16: a claim about the runner holds for both."""
    if request.param == "torch":
        return TorchForward(small_decoder)
    request.getfixturevalue("cpu_kernels")
    return NativeStack(small_decoder, threads=1, block_size=16)


@pytest.fixture
def small_runner(small_decoder: Decoder, small_forward: Forward) -> Runner:
    cache = small_forward.new_cache(small_decoder.layers, 512, 16, torch.float32, CPU)
    return Runner(small_decoder, cache, small_forward)


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Decoders:
    root = tmp_path_factory.mktemp("decoders")

    @cache
    def made(family: str, dtype: torch.dtype) -> Decoder:
        return make_decoder(root / f"{family} {dtype}", dtype, **FAMILIES[family])

    return made
