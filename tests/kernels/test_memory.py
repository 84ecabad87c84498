from typing import Any

import pytest
import torch

from kernels import ModelError, memory
from kernels.memory import GIB, PeakMeter, plan

FACTS: dict[str, Any] = {
    "weights_bytes": GIB,
    "working_bytes": GIB // 2,
    "available_bytes": 10 * GIB,
    "block_bytes": 2**20,
    "block_size": 16,
    "max_context": 8192,
    "max_rows": 256,
    "kv_memory": None,
    "gpu_bytes": None,
}


def test_a_cpu_gets_four_gib_when_there_is_plenty() -> None:
    budget = plan(**FACTS)
    assert (budget.blocks, budget.kv_bytes) == (4096, 4 * GIB)
    assert (budget.weights_bytes, budget.working_bytes) == (GIB, GIB // 2)


def test_a_cpu_gets_half_of_what_is_free_when_that_is_less() -> None:
    assert plan(**FACTS | {"available_bytes": 4 * GIB}).kv_bytes == int(1.75 * GIB)


def test_a_gpu_gets_all_it_may_beside_what_a_step_needs() -> None:
    assert plan(**FACTS | {"gpu_bytes": 9 * GIB}).kv_bytes == int(8.5 * GIB)
    assert plan(**FACTS | {"gpu_bytes": 20 * GIB, "max_rows": 64}).kv_bytes == int(9.5 * GIB)


def test_a_gpu_that_others_have_filled_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ModelError, match="the KV blocks have 0 MiB"):
        plan(**FACTS | {"gpu_bytes": -GIB})


def test_there_is_no_gpu_memory_on_a_cpu() -> None:
    assert memory.gpu_bytes(torch.device("cpu"), 0.9) is None


def test_lack_of_memory_is_told_from_other_errors() -> None:
    assert memory.out_of_memory(MemoryError())
    assert memory.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert memory.out_of_memory(error.value)
    with pytest.raises(RuntimeError) as error:
        torch.ones(2) @ torch.ones(3)
    assert not memory.out_of_memory(error.value)


def test_no_more_than_could_be_used() -> None:
    assert plan(**FACTS | {"max_rows": 2}).blocks == 1024


def test_what_was_asked_for_is_given() -> None:
    assert plan(**FACTS | {"kv_memory": 600 * 2**20 + 5}).blocks == 600


def test_asking_for_more_than_is_there_is_refused() -> None:
    with pytest.raises(ModelError, match=r"20\.00 GiB was asked for.*10\.00 GiB is free.*to 9\.50 GiB at most"):
        plan(**FACTS | {"kv_memory": 20 * GIB})


def test_not_one_full_context_request_is_refused_with_the_arithmetic() -> None:
    arithmetic = r"8,192 tokens need 512 blocks of 16, 512 MiB, and the KV blocks have 256 MiB.*kv-memory to 512 MiB"
    with pytest.raises(ModelError, match=arithmetic):
        plan(**FACTS | {"available_bytes": GIB})
    with pytest.raises(ModelError, match=r"the KV blocks have 0 MiB"):
        plan(**FACTS | {"available_bytes": GIB // 4})
    with pytest.raises(ModelError, match="Not one request of the full context fits"):
        plan(**FACTS | {"kv_memory": 2**20})


def test_the_peak_is_seen_although_it_was_given_back() -> None:
    with PeakMeter(torch.device("cpu")) as meter:
        torch.ones(16 * 2**20)
    assert 60 * 2**20 < meter.bytes < 90 * 2**20
    with PeakMeter(torch.device("cpu")) as meter:
        pass
    assert meter.bytes < 8 * 2**20


def test_something_is_available_here() -> None:
    assert 2**20 < memory.available_bytes(torch.device("cpu")) < 2**62
