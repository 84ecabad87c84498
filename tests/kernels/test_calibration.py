import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels import calibration
from kernels.calibration import calibrate, measure, steps_to_run, work_of
from kernels.checkpoint import Checkpoint
from kernels.decoder import Decoder
from kernels.kv_cache import KVCache
from kernels.runner import Runner
from kernels.serving import load
from protocol.messages import Chunk, LoadModel, Measured, Sampling, Work

CPU = torch.device("cpu")

# block_size, blocks, max_context, max_step_tokens, max_step_rows
DEFAULT = (16, 11650, 8192, 1024, 64)
TINY = (16, 4, 64, 512, 256)
BOUNDS = [
    DEFAULT,
    TINY,
    (16, 4, 50, 512, 256),
    (16, 100_000, 131_072, 8192, 1024),
    (1, 3, 3, 2, 2),
    (16, 1, 1, 1, 1),
    (16, 512, 2048, 1, 8),
    (16, 512, 2048, 2, 8),
    (16, 512, 2048, 3, 1),
    (7, 30, 300, 10, 4),
]


class FakeDevice:
    """Whose steps take what they are said to, and no other time passes."""

    def __init__(self, *took_s: float) -> None:
        self.now = 100.0
        self.ran: list[tuple[Chunk, ...]] = []
        self._took_s = iter(took_s)

    def clock(self) -> float:
        return self.now

    def run(self, chunks: tuple[Chunk, ...]) -> None:
        self.ran.append(chunks)
        self.now += next(self._took_s)


def chunk(start: int, count: int) -> Chunk:
    return Chunk("r", start, bytes(4 * count), b"")


def some_steps(count: int) -> list[tuple[Chunk, ...]]:
    return [(chunk(number, 1),) for number in range(count)]


def terms(works: Sequence[Work]) -> NDArray[np.float64]:
    """A row for each step, scaled to 1 at most."""
    found = np.array([(1, *msgspec.structs.astuple(it)) for it in works], np.float64)
    largest: NDArray[np.float64] = found.max(0)
    return found / largest


def test_work_counts_what_every_query_sees_and_what_is_read_from_the_cache() -> None:
    chunks = (chunk(40, 1), chunk(0, 4), chunk(10, 3), chunk(0, 1))
    seen = [start + place + 1 for start, count in ((0, 4), (10, 3)) for place in range(count)]
    assert work_of(chunks) == Work(
        prefill_tokens=7, prefill_pairs=sum(seen), prefill_context=10, decode_rows=2, decode_context=40
    )
    assert work_of(()) == Work()


@pytest.mark.parametrize("bounds", BOUNDS)
def test_every_step_keeps_to_the_bounds_and_its_tables_cover_it(bounds: tuple[int, int, int, int, int]) -> None:
    block_size, blocks, max_context, max_step_tokens, max_step_rows = bounds
    steps = steps_to_run(*bounds)
    assert steps
    for chunks in steps:
        assert 0 < len(chunks) <= max_step_rows
        assert sum(len(it.tokens) // 4 for it in chunks) <= max_step_tokens
        for it in chunks:
            end = it.start + len(it.tokens) // 4
            assert it.start < end <= max_context
            table = np.frombuffer(it.blocks, "<i4")
            assert len(table) == -(-end // block_size)
            assert len(set(table.tolist())) == len(table)
            assert 0 <= table.min() <= table.max() < blocks
            assert it.sampling == Sampling()


@pytest.mark.parametrize("bounds", BOUNDS)
def test_no_step_is_run_as_two_kinds(bounds: tuple[int, int, int, int, int]) -> None:
    steps = steps_to_run(*bounds)
    assert len(set(steps)) == len(steps)


@pytest.mark.parametrize("bounds", [DEFAULT, TINY, (16, 4, 50, 512, 256), (16, 512, 2048, 32, 1)])
def test_the_first_six_steps_tell_the_six_parts_of_a_cost_apart(bounds: tuple[int, int, int, int, int]) -> None:
    found = terms([work_of(it) for it in steps_to_run(*bounds)[:6]])
    assert np.linalg.matrix_rank(found, tol=1e-3) == 6


def test_the_kinds_are_one_some_and_all_rows_chunks_from_the_start_and_later_and_both_together() -> None:
    works = [work_of(it) for it in steps_to_run(*DEFAULT)]
    alone = [it for it in works if not it.prefill_tokens]
    assert {it.decode_rows for it in alone} == {1, 8, 64}
    for rows in (1, 8, 64):
        few, many = sorted(it.decode_context // rows for it in alone if it.decode_rows == rows)
        assert few < 32 <= 128 <= many <= 4096
    chunks = [it for it in works if not it.decode_rows]
    assert {it.prefill_tokens for it in chunks if it.prefill_context == 0} == {16, 128}
    assert {it.prefill_tokens for it in chunks if it.prefill_context == 4096} == {16, 128}
    assert any(it.prefill_tokens and it.decode_rows for it in works)


def test_the_rows_of_a_step_read_different_blocks_and_different_lengths() -> None:
    many = max(steps_to_run(*DEFAULT), key=len)
    assert len({it.blocks for it in many}) == len(many)
    longest = max(steps_to_run(*DEFAULT), key=lambda chunks: work_of(chunks).decode_context)
    starts = [it.start for it in longest]
    assert min(starts) < sum(starts) / len(starts) < max(starts)


def test_every_kind_is_timed_once_before_any_is_timed_twice_and_the_shorter_time_counts() -> None:
    device = FakeDevice(0.25, 0.125, 0.0625, 0.125, 0.25, 0.03125)
    steps = some_steps(3)
    assert measure(device.run, steps, device.clock) == (
        Measured(Work(decode_rows=1, decode_context=0), 0.125),
        Measured(Work(decode_rows=1, decode_context=1), 0.125),
        Measured(Work(decode_rows=1, decode_context=2), 0.03125),
    )
    assert device.ran == steps + steps


def test_nothing_is_run_again_when_the_time_for_that_is_over() -> None:
    half = calibration.REPEAT_S / 2
    device = FakeDevice(half / 2, half / 2, half, half / 4)
    steps = some_steps(3)
    measured = measure(device.run, steps, device.clock)
    assert [it.took_s for it in measured] == [half / 2, half / 2, half]
    assert device.ran == steps

    device = FakeDevice(half, half / 2, half / 4, half / 4)
    steps = some_steps(2)
    assert [it.took_s for it in measure(device.run, steps, device.clock)] == [half / 4, half / 4]


def test_a_slow_device_runs_the_first_kinds_only() -> None:
    half = calibration.BUDGET_S / 2
    device = FakeDevice(half, half)
    steps = some_steps(4)
    assert [it.work.decode_context for it in measure(device.run, steps, device.clock)] == [0, 1]

    device = FakeDevice(60.0)
    assert [it.took_s for it in measure(device.run, steps, device.clock)] == [60.0]


def test_a_step_that_fails_is_an_error() -> None:
    def fail(chunks: tuple[Chunk, ...]) -> None:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        measure(fail, some_steps(2), lambda: 0.0)


def test_a_real_model_runs_every_kind_and_works_on_as_before(small_runner: Runner) -> None:
    prompt = Chunk("r", 0, np.arange(40, dtype="<i4").tobytes(), np.array([2, 0, 5], "<i4").tobytes(), Sampling())
    before = small_runner.run((prompt,))
    ticks = iter(range(1000))
    found = calibrate(small_runner, 512, 64, clock=lambda: next(ticks) / 1024)
    assert [it.work for it in found] == [work_of(it) for it in steps_to_run(16, 512, 2048, 512, 64)]
    assert {it.took_s for it in found} == {1 / 1024}
    assert small_runner.run((prompt,)) == before


def test_a_tiny_model_with_four_blocks_is_calibrated_too(small_decoder: Decoder) -> None:
    tiny = dataclasses.replace(small_decoder, max_context=64)
    runner = Runner(tiny, KVCache(tiny.layers, 4, 16, torch.float32, CPU))
    found = calibrate(runner, 512, 256, clock=lambda: 0.0)
    assert [it.work for it in found] == [work_of(it) for it in steps_to_run(*TINY)]


def test_what_is_measured_is_told_with_model_ready(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # load() then leaves the number of threads as it is
    wish = LoadModel("small", device="cpu", dtype="float32", kv_memory=2**22)
    ready = load(Checkpoint("small", small_folder), wish).ready
    steps = steps_to_run(ready.block_size, ready.blocks, ready.max_context, wish.max_step_tokens, wish.max_step_rows)
    assert ready.calibration
    assert [it.work for it in ready.calibration] == [work_of(it) for it in steps][: len(ready.calibration)]
    assert all(it.took_s > 0 for it in ready.calibration)
