import pytest

from kernels.native.binding import Library
from tests.kernels.native.decoders import Decoders, Stacks


@pytest.fixture(scope="session")
def stacks(decoders: Decoders, cpu_kernels: Library) -> Stacks:
    return Stacks(decoders, cpu_kernels)
