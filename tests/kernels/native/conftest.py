from functools import cache

import pytest
import torch

from kernels.decoder import Decoder
from kernels.native.binding import Library
from tests.kernels.native.decoders import FAMILIES, Decoders, Stacks, make_decoder


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Decoders:
    root = tmp_path_factory.mktemp("decoders")

    @cache
    def made(family: str, dtype: torch.dtype) -> Decoder:
        return make_decoder(root / f"{family} {dtype}", dtype, **FAMILIES[family])

    return made


@pytest.fixture(scope="session")
def stacks(decoders: Decoders, cpu_kernels: Library) -> Stacks:
    return Stacks(decoders, cpu_kernels)
