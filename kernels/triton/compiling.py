"""Compiles every kernel for sm_90 (an H100 or H200), without one, and says what each way of launching it takes.

    python -m kernels.triton.compiling            # every module of kernels.triton
    python -m kernels.triton.compiling PACKAGE    # of another package
    python -m kernels.triton.compiling --brief    # each kernel with each tile once, in one 16-bit type

Prints a table, and ends with 1 and a sentence for each fault: a variant that does not compile, spills registers, or
needs more shared memory than a program can have, and a kernel that is launched but stands in no `VARIANTS`.

Knows how Triton compiles ahead of time and what a multiprocessor of sm_90 has. Knows no kernel: modules are found by
walking the package. Registers and stack are read from the cubin by the `cuobjdump` that Triton brings (3.6 to 3.9, the
same words in all of them); a stack is where spilled registers go, and our kernels have no other use for one. Shared
memory is what Triton asks for at launch.
"""

import argparse
import ast
import importlib
import inspect
import multiprocessing
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import triton
from rich.console import Console
from rich.table import Table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton.variants import Variant

TARGET = GPUTarget("cuda", 90, 32)
MOST_SHARED = 227 * 1024
"""Bytes of shared memory that one program can have (CUDA C++ Programming Guide, table of compute capabilities, 9.0)."""
SHARED_OF_ALL = 228 * 1024
"""Bytes of a multiprocessor, of which the system keeps 1 KiB for each program."""
REGISTERS_OF_ALL = 65536
REGISTERS_AT_A_TIME = 256
"""A warp is given registers in pieces of so many."""
MOST_WARPS = 64
MOST_PROGRAMS = 32
WIDE = 150
"""Columns of the table where nobody can say how wide the paper is."""


@dataclass(frozen=True)
class Compiled:
    """One variant. `registers` and `stack` (bytes in local memory) are a thread's, `shared` (bytes) is a program's."""

    module: str
    kernel: str
    name: str
    warps: int
    stages: int
    took_s: float
    registers: int = 0
    stack: int = 0
    shared: int = 0
    error: str = ""
    """Why it did not compile; empty when it did."""

    @property
    def at_once(self) -> int:
        """How many programs fit on a multiprocessor, by registers, shared memory and warps."""
        a_warp = -(-self.registers * 32 // REGISTERS_AT_A_TIME) * REGISTERS_AT_A_TIME
        return min(
            MOST_PROGRAMS,
            MOST_WARPS // self.warps,
            REGISTERS_OF_ALL // max(1, a_warp * self.warps),
            SHARED_OF_ALL // (self.shared + 1024),
        )

    @property
    def fault(self) -> str:
        """A sentence, or nothing."""
        which = f"{self.module}.{self.kernel}, {self.name},"
        if self.error:
            return f"{which} does not compile: {self.error}"
        if self.shared > MOST_SHARED:
            return (
                f"{which} needs {self.shared:,} bytes of shared memory, and a program has {MOST_SHARED:,} at most: "
                "make its tiles smaller or num_stages lower."
            )
        if self.stack:
            return (
                f"{which} spills {self.stack:,} bytes a thread at {self.registers} registers: make its tiles smaller "
                "or num_warps higher."
            )
        return ""


def modules_of(package: str) -> list[ModuleType]:
    """Every module of the package, imported, but for this one."""
    root = importlib.import_module(package)
    names = [it.name for it in pkgutil.walk_packages(root.__path__, f"{package}.")]
    own = "kernels.triton.compiling"
    return [importlib.import_module(name) for name in names if name != own]


def variants_of(module: ModuleType) -> tuple[Variant, ...]:
    return tuple(getattr(module, "VARIANTS", ()))


def left_out(modules: Sequence[ModuleType]) -> list[str]:
    """A sentence for each kernel that is in no variant, though a module launches it (`kernel[grid](...)`), or no
    other kernel calls it, which leaves nothing else that it could be for."""
    kernels: dict[str, Any] = {}
    launched: set[str] = set()
    called: set[str] = set()
    for module in modules:
        here = {name: it for name, it in vars(module).items() if isinstance(it, triton.JITFunction)}
        kernels |= {_name(it): it for it in here.values()}
        launched |= {_name(here[name]) for name in _launches(inspect.getsource(module)) if name in here}
    for kernel in kernels.values():
        # A kernel may call itself by no name but its own, which says nothing of who launches it.
        called |= _calls(inspect.getsource(kernel.fn)) - {kernel.fn.__name__}
    given = {_name(it.kernel) for module in modules for it in variants_of(module)}
    return [
        f"{name} is launched, and no VARIANTS has it: what it takes on a GPU is not known."
        for name, kernel in sorted(kernels.items())
        if name not in given and (name in launched or kernel.fn.__name__ not in called)
    ]


def _name(kernel: Any) -> str:
    return f"{kernel.fn.__module__}.{kernel.fn.__name__}"


def _launches(source: str) -> Iterator[str]:
    """Names in calls such as `name[grid](...)` and `module.name[grid](...)`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name))):
                yield str(name)


def _calls(source: str) -> set[str]:
    calls = [node.func for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Call)]
    return {it.attr if isinstance(it, ast.Attribute) else getattr(it, "id", "") for it in calls}


def places_of(package: str, *, brief: bool = False) -> list[tuple[str, int]]:
    """Each variant by its module and its index there. `brief`: of the likely ones, and one of those that differ in
    nothing but which 16-bit type they take, since bf16 and fp16 fill the same registers."""
    places: dict[object, tuple[str, int]] = {}
    for module in modules_of(package):
        for index, variant in enumerate(variants_of(module)):
            place = (module.__name__, index)
            if brief and not variant.likely:
                continue
            places.setdefault(_but_for_16_bits(variant) if brief else place, place)
    return list(places.values())


def _but_for_16_bits(variant: Variant) -> str:
    said = repr((_name(variant.kernel), variant.signature, variant.constexprs, variant.options))
    return re.sub(r"bfloat16|float16|bf16|fp16", "16 bits", said)


def compile_all(package: str, *, brief: bool = False) -> Iterator[Compiled]:
    """The variants of the package, in processes side by side, as they are done."""
    places = places_of(package, brief=brief)
    workers = min(len(os.sched_getaffinity(0)), len(places))
    if not workers:
        return
    # Not forked: threads of numpy's and torch's run already.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(compile_one, *place) for place in places]):
            yield done.result()


def compile_one(module: str, index: int) -> Compiled:
    """Compile the variant at `index` of the module's `VARIANTS`."""
    variant = variants_of(importlib.import_module(module))[index]
    began_s = time.perf_counter()
    facts: dict[str, Any] = {
        "module": module.rpartition(".")[2],
        "kernel": variant.kernel.fn.__name__,
        "name": variant.name,
        "warps": int(variant.options.get("num_warps", 4)),
        "stages": int(variant.options.get("num_stages", 3)),
    }
    try:
        types, attributes = _as_launched(variant)
        source = ASTSource(variant.kernel, types, variant.constexprs, attributes)
        compiled = triton.compile(source, target=TARGET, options=dict(variant.options))
        registers, stack = resources(compiled.asm["cubin"])
        facts |= {"registers": registers, "stack": stack, "shared": int(compiled.metadata.shared)}
    except Exception as error:  # noqa: BLE001 - Triton raises what its passes and the kernel's own code do
        facts["error"] = _in_a_line(error)
    return Compiled(**facts, took_s=time.perf_counter() - began_s)


def _as_launched(variant: Variant) -> tuple[dict[str, str], dict[tuple[int, ...], list[list[object]]]]:
    """Types, and what a launch would see of the values: pointers from torch are multiples of 16 bytes. An integer
    that is one of 16 says so itself, as `i32:16`, the way Triton's ahead-of-time compiler has it written."""
    names = [parameter.name for parameter in variant.kernel.params]
    if unlike := set(names) ^ set(variant.signature):
        raise ValueError(f"its signature and the kernel differ in {', '.join(sorted(unlike))}")
    types: dict[str, str] = {}
    attributes: dict[tuple[int, ...], list[list[object]]] = {}
    for place, parameter in enumerate(variant.kernel.params):
        kind, _, multiple = variant.signature[parameter.name].partition(":")
        types[parameter.name] = kind
        told = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
        if told and (multiple == "16" or kind.startswith("*")):
            attributes[(place,)] = [["tt.divisibility", 16]]
    return types, attributes


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack that a thread of the cubin's one kernel takes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    if found is None:
        raise ValueError(f"cuobjdump does not say what it takes: {said.strip()!r}")
    return int(found[1]), int(found[2])


def _in_a_line(error: Exception) -> str:
    """What went wrong, and in which line of a kernel."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    innermost = error.__cause__ if isinstance(error.__cause__, Exception) else error
    reason = str(innermost).strip().splitlines()[-1:] or lines[-1:] or [type(error).__name__]
    where = re.match(r"at (\d+):\d+", lines[0]) if lines else None
    line = f" (in line {where[1]} of its kernel)" if where else ""
    if isinstance(error, AssertionError | KeyError):  # its words alone say little
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = f" ({type(error).__name__} in {os.path.basename(last.filename)}:{last.lineno})"
    return f"{reason[0]}{line}"


def table_of(done: Iterable[Compiled]) -> Table:
    table = Table(title=f"Kernels compiled for sm_{TARGET.arch} by Triton {triton.__version__}", title_justify="left")
    table.add_column("module")
    table.add_column("kernel")
    table.add_column("variant")
    for heading in ("registers\na thread", "spilled\nbytes", "shared\nbytes", "warps", "stages", "at once", "took s"):
        table.add_column(heading, justify="right")
    last = ""
    for it in done:
        if it.module != last and last:
            table.add_section()
        figures = ["-"] * 3 if it.error else [str(it.registers), f"{it.stack:,}", f"{it.shared:,}"]
        at_once = "-" if it.error else str(it.at_once)
        row = [it.module, it.kernel, it.name, *figures, str(it.warps), str(it.stages), at_once, f"{it.took_s:.1f}"]
        table.add_row(*row, style="red" if it.fault else None)
        last = it.module
    return table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.triton.compiling", description=__doc__.split("\n")[0])
    parser.add_argument("package", nargs="?", default="kernels.triton", help="whose modules [%(default)s]")
    parser.add_argument("--brief", action="store_true", help="each kernel with each tile once")
    args = parser.parse_args(arguments)
    if triton.knobs.runtime.interpret:
        print("TRITON_INTERPRET is set, and what is interpreted is not compiled: unset it.", file=sys.stderr)
        return 2
    began_s = time.perf_counter()
    done = sorted(compile_all(args.package, brief=args.brief), key=lambda it: (it.module, it.kernel, it.name))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    console.print(table_of(done))
    faults = [it.fault for it in done if it.fault] + left_out(modules_of(args.package))
    print(f"{len(done)} variants in {time.perf_counter() - began_s:.0f} s, {len(faults) or 'no'} faults.")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
