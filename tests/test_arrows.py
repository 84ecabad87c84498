"""The arrows of the house: who may import whom, and what stands at the top (DESIGN, "The house").

Read from the sources themselves, so that an import inside a function counts as well.
"""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

ROOT = Path(__file__).parents[1]
ROOMS = ("protocol", "actors", "kernels", "web", "loadgen")
FILES = {
    "pyproject.toml", "README.md", "Makefile", "constraints.txt", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md",
    "SECURITY.md", ".gitignore",
}  # fmt: skip


class Import(Struct, frozen=True):
    """`module` is what an import names, dots and all; `lazy`: it stands inside a function."""

    path: str
    line: int
    module: str
    lazy: bool

    def is_of(self, *packages: str) -> bool:
        return any(self.module == package or self.module.startswith(package + ".") for package in packages)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


def tracked() -> list[str]:
    """Every file that git tracks, or would if it were added."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


def imports_in(source: str, path: str) -> Iterator[Import]:
    """Imports of a module of this house at `path`, relative ones made absolute."""
    folder = path.split("/")[:-1]

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                for name in node.names:
                    yield Import(path, node.lineno, name.name, lazy)
            case ast.ImportFrom():
                base = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
                module = ".".join(part for part in (base, node.module) if part)
                for name in node.names:
                    yield Import(path, node.lineno, f"{module}.{name.name}", lazy)
            case ast.Call(func=ast.Name("__import__") | ast.Attribute(attr="import_module"), args=[ast.Constant(name)]):
                yield Import(path, node.lineno, str(name), lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    yield from walk(ast.parse(source), False)


def imports_of(room: str) -> list[Import]:
    found: list[Import] = []
    for path in tracked():
        if path.startswith(room + "/") and path.endswith(".py"):
            found += imports_in((ROOT / path).read_text(encoding="utf-8"), path)
    return found


def broken(room: str, *packages: str) -> list[str]:
    """Imports of these packages from that room."""
    return [str(each) for each in imports_of(room) if each.is_of(*packages)]


def test_the_imports_are_found() -> None:
    source = "import a.b\nfrom . import c\nfrom .d import e\ndef f():\n    from g import h\n    import_module('i')\n"
    found = {(each.module, each.lazy) for each in imports_in(source, "room/folder/file.py")}
    assert found == {
        ("a.b", False),
        ("room.folder.c", False),
        ("room.folder.d.e", False),
        ("g.h", True),
    }
    assert {each.module for each in imports_in("importlib.import_module('i')\n__import__('j')", "x.py")} == {"i", "j"}
    assert Import("x", 1, "torch.nn", False).is_of("torch")
    assert not Import("x", 1, "torchvision", False).is_of("torch")


@pytest.mark.parametrize("room", ["protocol", "actors", "kernels", "loadgen"])
def test_the_rooms_are_not_empty(room: str) -> None:
    assert imports_of(room)


def test_protocol_imports_nothing_of_ours() -> None:
    assert broken("protocol", "tests", *(room for room in ROOMS if room != "protocol")) == []


def test_protocol_touches_no_event_loop_and_no_tensor() -> None:
    assert broken("protocol", "asyncio", "torch", "transformers", "numpy") == []


def test_actors_never_touch_tensors_nor_kernels() -> None:
    assert broken("actors", "kernels", "torch", "triton", "accelerate", "gguf", "safetensors") == []
    models = [
        each
        for each in imports_of("actors")
        if each.is_of("transformers") and "Tokenizer" not in each.module and "tokenization" not in each.module
    ]
    assert [str(each) for each in models] == []


def test_kernels_never_touch_the_event_loop_nor_actors() -> None:
    assert broken("kernels", "asyncio", "uvloop", "websockets", "actors", "web", "loadgen", "tests") == []


def test_of_ours_loadgen_imports_protocol_only() -> None:
    assert broken("loadgen", "actors", "kernels", "web", "tests") == []
    assert broken("loadgen", "torch", "transformers") == []


def test_web_imports_nothing_of_ours() -> None:
    assert broken("web", "protocol", "actors", "kernels", "loadgen", "tests") == []


def test_only_the_command_line_imports_loadgen_and_only_when_it_is_asked_to() -> None:
    found = [each for room in ROOMS if room != "loadgen" for each in imports_of(room) if each.is_of("loadgen")]
    assert {each.path for each in found} <= {"actors/cli.py"}
    assert [str(each) for each in found if not each.lazy] == []


def test_nothing_of_ours_imports_its_tests() -> None:
    assert [line for room in ROOMS for line in broken(room, "tests")] == []


def test_the_deciding_awaits_nothing_and_has_no_clock() -> None:
    found = [each for each in imports_of("actors/scheduling") if each.is_of("asyncio", "time", "socket", "random")]
    assert [str(each) for each in found] == []


def test_nothing_else_stands_at_the_top() -> None:
    top = {path.split("/")[0] for path in tracked()}
    assert top <= {*ROOMS, "tests", ".ci", *FILES}
