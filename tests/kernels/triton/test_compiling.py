"""Every kernel compiles for sm_90, and the check that says so fails where it should.

The check runs in a process of its own: here kernels are interpreted.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEADING = """
import triton
import triton.language as tl

from kernels.triton.variants import Variant
"""
GOOD = f"""{HEADING}
@triton.jit
def doubled(x):
    return x + x


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, doubled(tl.load(x + at, at < n)), at < n)


def launch(x, y):
    double[(1,)](x, y, x.numel(), 128)


TYPES = {{"x": "*bf16", "y": "*bf16", "n": "i32", "BLOCK": "constexpr"}}
VARIANTS = (Variant(double, "blocks of 128", TYPES, {{"BLOCK": 128}}, {{"num_warps": 2, "num_stages": 1}}),)
"""
SPILLS = f"""{HEADING}
@triton.jit
def held(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + at)
    tl.store(y + at, row / tl.sum(row, 0))


TYPES = {{"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}}
VARIANTS = tuple(
    Variant(held, f"on {{warps}} warps", TYPES, {{"BLOCK": 16384}}, {{"num_warps": warps}}) for warps in (1, 8)
)
"""
TOO_LARGE = f"""{HEADING}
@triton.jit
def product(x, y, z, STEPS: tl.constexpr):
    rows, columns = tl.arange(0, 128)[:, None], tl.arange(0, 128)[None, :]
    tile = tl.zeros((128, 128), tl.float32)
    for _ in range(STEPS):
        tile = tl.dot(tl.load(x + rows * 128 + columns), tl.load(y + rows * 128 + columns), tile)
        x += 128 * 128
        y += 128 * 128
    tl.store(z + rows * 128 + columns, tile)


TYPES = {{"x": "*bf16", "y": "*bf16", "z": "*fp32", "STEPS": "constexpr"}}
VARIANTS = tuple(
    Variant(product, f"in {{stages}} stages", TYPES, {{"STEPS": 16}}, {{"num_warps": 8, "num_stages": stages}})
    for stages in (2, 6)
)
"""
WRONG = f"""{HEADING}
@triton.jit
def odd(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


VARIANTS = (
    Variant(odd, "of three", {{"x": "*fp32", "BLOCK": "constexpr"}}, {{"BLOCK": 3}}),
    Variant(odd, "of four", {{"x": "*fp32", "BLOCK": "constexpr"}}, {{"BLOCK": 4}}),
    Variant(odd, "with too little said", {{"BLOCK": "constexpr"}}, {{"BLOCK": 4}}),
)
"""
Check = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.triton.compiling", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Checks a package of these modules; nothing that was compiled before counts."""

    def written(*arguments: str, **modules: str) -> "subprocess.CompletedProcess[str]":
        folder = tmp_path / "tried"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(source))
        return run("tried", *arguments, PYTHONPATH=str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache"))

    return written


def test_every_kernel_compiles_for_sm_90_and_none_spills(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with each of its tiles once, since there is little time; `make kernels-check` tries all."""
    checked = run("--brief")
    with capsys.disabled():
        print(f"\n{checked.stdout}{checked.stderr}")
    assert checked.returncode == 0, checked.stderr


def test_a_kernel_that_compiles_is_a_row_of_the_table(check: Check) -> None:
    checked = check(good=GOOD)
    assert checked.returncode == 0, checked.stderr
    [row] = [line for line in checked.stdout.splitlines() if "blocks of 128" in line]
    module, kernel, _, registers, spilled, shared, warps, stages, *_ = (it.strip() for it in row.split("│")[1:])
    assert (module, kernel, spilled, shared, warps, stages) == ("good", "double", "0", "0", "2", "1")
    assert 4 <= int(registers) <= 255


def test_in_brief_the_likely_are_tried_in_one_of_the_two_16_bit_types_and_whatever_else_differs_is(
    check: Check,
) -> None:
    both = """
def variant(form, block):
    types = {"x": f"*{form}", "y": f"*{form}", "n": "i32", "BLOCK": "constexpr"}
    return Variant(double, f"{form}, blocks of {block}", types, {"BLOCK": block}, likely=block < 512)


VARIANTS = tuple(variant(form, block) for form in ("bf16", "fp16", "fp32") for block in (128, 256, 512))
"""
    checked = check("--brief", both=GOOD + both)
    assert checked.returncode == 0, checked.stderr
    rows = [line for line in checked.stdout.splitlines() if "blocks of" in line]
    assert [(form, block) for form in ("bf16", "fp16", "fp32") for block in ("128", "256", "512")
            if any(f"{form}, blocks of {block}" in row for row in rows)] == [
        ("bf16", "128"), ("bf16", "256"), ("fp32", "128"), ("fp32", "256"),
    ]  # fmt: skip


def test_a_kernel_that_spills_fails_the_check(check: Check) -> None:
    checked = check(good=GOOD, spills=SPILLS)
    assert checked.returncode == 1
    assert "spills.held, on 1 warps, spills " in checked.stderr
    assert "8 warps" not in checked.stderr
    assert "good" not in checked.stderr
    assert "good" in checked.stdout


def test_a_kernel_that_needs_too_much_shared_memory_fails_the_check(check: Check) -> None:
    checked = check(large=TOO_LARGE)
    assert checked.returncode == 1
    assert "large.product, in 6 stages, needs " in checked.stderr
    assert "2 stages" not in checked.stderr


def test_a_kernel_that_does_not_compile_fails_the_check_and_the_others_are_still_shown(check: Check) -> None:
    checked = check(wrong=WRONG)
    assert checked.returncode == 1
    assert "wrong.odd, of three, does not compile: " in checked.stderr
    assert "power of 2" in checked.stderr
    assert (
        "wrong.odd, with too little said, does not compile: its signature and the kernel differ in x" in checked.stderr
    )
    assert "of four" not in checked.stderr
    assert "of four" in checked.stdout


def test_a_kernel_that_is_launched_and_stands_in_no_variant_fails_the_check(check: Check) -> None:
    checked = check(forgotten=GOOD.replace("VARIANTS =", "OTHERS ="))
    assert checked.returncode == 1
    assert "tried.forgotten.double is launched, and no VARIANTS has it" in checked.stderr
    assert "doubled" not in checked.stderr


def test_a_launched_kernel_is_missed_although_another_calls_it(check: Check) -> None:
    also = "def launch_both(x, y):\n    launch(x, y)\n    doubled[(1,)](x)\n"
    checked = check(both=GOOD + also)
    assert checked.returncode == 1
    assert "tried.both.doubled is launched, and no VARIANTS has it" in checked.stderr


def test_what_is_interpreted_is_refused_in_a_sentence() -> None:
    checked = run(TRITON_INTERPRET="1")
    assert (checked.returncode, checked.stdout) == (2, "")
    assert checked.stderr == "TRITON_INTERPRET is set, and what is interpreted is not compiled: unset it.\n"
