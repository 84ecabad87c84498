import os

import pytest
import torch

from kernels import ModelError
from kernels.device import choose_device, choose_dtype, choose_threads, dtype_name

CPU = torch.device("cpu")


def test_auto_is_the_gpu_if_there_is_one() -> None:
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize("wish", ["tpu-v5", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(wish: str) -> None:
    with pytest.raises(ModelError):
        choose_device(wish)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({"avx512_bf16": True}, torch.bfloat16), ({"amx_bf16": True}, torch.bfloat16), ({}, torch.float32)],
)
def test_auto_is_bfloat16_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, bool], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)
    assert choose_dtype("auto", CPU) == expected
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16


def test_named_formats_are_taken_by_name() -> None:
    assert dtype_name(choose_dtype("float32", CPU)) == "float32"
    with pytest.raises(ModelError, match="int3"):
        choose_dtype("int3", CPU)


def test_threads_are_at_most_the_cores_we_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert 1 <= (choose_threads() or 1) <= (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert choose_threads() is None
