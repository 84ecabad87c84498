from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import ModelError
from kernels.choice import FAR_APART, TORCH, choose_forward, distance
from kernels.decoder import Decoder
from kernels.native import binding, build, stack
from kernels.native.binding import Failed, Library
from kernels.native.build import NotBuilt
from kernels.native.stack import NativeStack
from kernels.runner import TorchForward
from kernels.structure import rotations
from tests.kernels.native.decoders import FAMILIES, Part, apart, heads, make_decoder, new_cache, step

SLOWER = "It runs on plain torch, which is slower.\n"


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Decoder]:
    def decoder(dtype: torch.dtype = torch.float32, model_type: str = "llama", **settings: Any) -> Decoder:
        return make_decoder(tmp_path / "model", dtype, model_type, **{**heads(4, 2, 32), **settings})

    return decoder


@pytest.mark.parametrize("wish", ["auto", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_known_model_runs_on_our_kernels_which_take_its_weights(
    wish: str,
    dtype: torch.dtype,
    made: Callable[..., Decoder],
    cpu_kernels: Library,
    capsys: pytest.CaptureFixture[str],
) -> None:
    decoder, ids = made(dtype), list(range(40))
    plain = TorchForward(decoder)
    truth = step(plain, new_cache(plain, decoder, 2, 32), [Part(ids, 0, 40, [1, 0])])
    forward, computed_by, weights_bytes = choose_forward(wish, decoder, 2, 32)
    assert isinstance(forward, NativeStack)
    assert computed_by.startswith("our CPU kernels on ")
    assert computed_by.endswith(", 2 threads")
    assert weights_bytes == forward.bytes
    assert all(it.device.type == "meta" for it in decoder.model.parameters())
    found = step(forward, new_cache(forward, decoder, 2, 32), [Part(ids, 0, 40, [1, 0])])
    assert apart(found, truth).max() < FAR_APART[dtype]
    assert capsys.readouterr().err == ""


def test_torch_is_taken_when_it_is_wished_for(
    made: Callable[..., Decoder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(binding, "load", None)  # whoever asked for it would fail
    decoder = made()
    forward, computed_by, weights_bytes = choose_forward("torch", decoder, 2, 32)
    assert isinstance(forward, TorchForward)
    assert (computed_by, weights_bytes) == (TORCH, decoder.weights_bytes)
    assert capsys.readouterr().err == ""


def refused(decoder: Decoder, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`auto` says why in one line and leaves the model to torch, as it was; `native` raises it."""
    with pytest.raises(ModelError) as raised:
        choose_forward("native", decoder, 1, 32)
    assert str(raised.value) == why
    forward, computed_by, weights_bytes = choose_forward("auto", decoder, 1, 32)
    assert isinstance(forward, TorchForward)
    assert (computed_by, weights_bytes) == (TORCH, decoder.weights_bytes)
    assert capsys.readouterr().err == f"rota: {why} {SLOWER}"
    step(forward, new_cache(forward, decoder, 1, 32), [Part([1, 2, 3], 0, 3, [0])])


def test_an_unknown_model_runs_on_torch_and_the_log_says_why(
    made: Callable[..., Decoder], cpu_kernels: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "it is of type 'olmo2', and they know llama, mistral, qwen2, qwen3"
    refused(made(model_type="olmo2"), f"The CPU kernels cannot run this model: {why}.", capsys)


def test_an_unknown_number_format_runs_on_torch(
    made: Callable[..., Decoder], cpu_kernels: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(made(torch.float16), "The CPU kernels cannot run this model: it is in float16.", capsys)


def test_without_a_compiler_it_runs_on_torch_and_the_log_says_what_to_install(
    made: Callable[..., Decoder],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(binding, "load", Library)  # not the one of an earlier test
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    why = "The CPU kernels cannot be built, no compiler is there ($CXX, c++, g++, clang++): install g++."
    refused(made(), why, capsys)


def test_what_the_build_says_is_said(
    made: Callable[..., Decoder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Path:
        raise NotBuilt("The CPU kernels cannot be built with g++ 4.8 (no such flag): install a newer g++.")

    monkeypatch.setattr(binding, "load", Library)
    monkeypatch.setattr(build, "built_library", fail)
    refused(made(), "The CPU kernels cannot be built with g++ 4.8 (no such flag): install a newer g++.", capsys)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_whose_answers_are_wrong_are_refused(
    dtype: torch.dtype,
    made: Callable[..., Decoder],
    cpu_kernels: Library,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def turned_the_other_way(decoder: Decoder) -> tuple[Tensor, Tensor]:
        cosines, sines = rotations(decoder)
        return cosines, -sines + 0.5

    monkeypatch.setattr(stack, "rotations", turned_the_other_way)
    decoder = made(dtype)
    with pytest.raises(
        ModelError, match=r"24 tokens is \S+ away from torch's, which is a defect of theirs\.$"
    ) as raised:
        choose_forward("native", decoder, 1, 32)
    refused(decoder, str(raised.value), capsys)


def test_answers_that_are_no_numbers_are_refused(
    made: Callable[..., Decoder], cpu_kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(decoder: Decoder) -> tuple[Tensor, Tensor]:
        return rotations(decoder)[0] * float("nan"), rotations(decoder)[1]

    monkeypatch.setattr(stack, "rotations", none)
    with pytest.raises(ModelError, match="24 tokens is nan away"):
        choose_forward("native", made(), 1, 32)


def test_memory_that_is_not_there_leaves_it_to_torch(
    made: Callable[..., Decoder],
    cpu_kernels: Library,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise Failed("there is not enough memory")

    monkeypatch.setattr(cpu_kernels, "set_ends", fail)
    refused(made(), "The CPU kernels cannot run this model: there is not enough memory.", capsys)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_family_passes_the_check(family: str, dtype: torch.dtype, tmp_path: Path, cpu_kernels: Library) -> None:
    decoder = make_decoder(tmp_path, dtype, **FAMILIES[family])
    native = NativeStack(decoder, threads=1, block_size=32)
    assert distance(native, TorchForward(decoder), decoder, 32) < FAR_APART[dtype]
    assert distance(TorchForward(decoder), TorchForward(decoder), decoder, 32) == 0


def test_a_context_shorter_than_what_is_tried_is_tried_whole(tmp_path: Path, cpu_kernels: Library) -> None:
    for context in (1, 2, 23):
        settings = {**FAMILIES["qwen2"], "max_position_embeddings": context}
        decoder = make_decoder(tmp_path / str(context), torch.float32, **settings)
        native = NativeStack(decoder, threads=1, block_size=32)
        assert distance(native, TorchForward(decoder), decoder, 32) < FAR_APART[torch.float32]


def test_a_deep_model_whose_bfloat16_is_noisy_is_not_taken_for_a_wrong_answer(tmp_path: Path) -> None:
    from kernels.checkpoint import Checkpoint
    from kernels.decoder import load_decoder
    from tests.models import make_small_model

    folder = make_small_model(tmp_path / "deep", num_hidden_layers=24)
    decoder = load_decoder(Checkpoint("deep", folder), torch.device("cpu"), torch.bfloat16)
    ours = NativeStack(decoder, threads=1, block_size=32)
    assert distance(ours, TorchForward(decoder), decoder, 32) > FAR_APART[torch.bfloat16]
    assert isinstance(choose_forward("native", decoder, 1, 32).forward, NativeStack)
