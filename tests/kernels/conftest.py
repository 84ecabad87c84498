from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.checkpoint import Checkpoint
from kernels.decoder import Decoder, load_decoder
from kernels.kv_cache import KVCache
from kernels.quiet import quiet_transformers
from kernels.runner import Runner
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


@pytest.fixture
def small_runner(small_decoder: Decoder) -> Runner:
    return Runner(small_decoder, KVCache(small_decoder.layers, 512, 16, torch.float32, CPU))
