import ctypes
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels.native import build
from kernels.native.build import (
    FLAGS,
    KEPT,
    UNIT,
    Compiler,
    NotBuilt,
    built_library,
    cpu_features,
    file_name,
    first_error,
)

CXX = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
pytestmark = pytest.mark.skipif(CXX is None, reason="there is no C++ compiler here")

ANSWER = """
#include "answer.h"
extern "C" int answer() { return ANSWER; }
"""
GNU = """g++ (Debian 12.2.0-14+deb12u1) 12.2.0
Copyright (C) 2022 Free Software Foundation, Inc.
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / UNIT).write_text(ANSWER)
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "rota" / "kernels"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for every file compiled, by the real compiler."""
    calls = tmp_path / "calls"
    calls.touch()
    use_compiler(tmp_path, monkeypatch, f'echo "$@" >> {shlex.quote(str(calls))}')
    return calls


def use_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Make $CXX a script that does `before` whenever it compiles ($out: the file it is to write), then compiles."""
    script = tmp_path / "compiler"
    script.write_text(f"""#!/bin/sh
case "$*" in
*--version*) ;;
*)
out=$(echo "$*" | sed 's/.* -o \\([^ ]*\\) .*/\\1/')
{before}
;;
esac
exec {shlex.quote(str(CXX))} "$@"
""")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def answer(file: Path) -> int:
    return int(ctypes.CDLL(str(file)).answer())


def in_a_process(sources: Path) -> "subprocess.Popen[str]":
    code = (
        "from pathlib import Path; from kernels.native.build import built_library; "
        f"print(built_library(Path({str(sources)!r})))"
    )
    command, root = [sys.executable, "-c", code], Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def meet(tmp_path: Path) -> str:
    """Shell lines that the first to come waits in for the second."""
    os.mkfifo(tmp_path / "door")
    door, first = shlex.quote(str(tmp_path / "door")), shlex.quote(str(tmp_path / "first"))
    return f"if mkdir {first} 2>/dev/null; then read met < {door}; else echo met > {door}; fi"


def test_the_sources_become_a_library_in_the_users_cache(
    sources: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = built_library(sources)
    assert answer(file) == 42
    assert list(cache.iterdir()) == [file]
    building, built = capsys.readouterr().err.splitlines()
    assert building.startswith("rota: building the CPU kernels with ")
    assert building.endswith(" (once for this machine)")
    assert built.startswith("rota: built the CPU kernels in ")


def test_a_second_start_compiles_nothing_and_says_nothing(
    sources: Path, compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = built_library(sources)
    capsys.readouterr()
    assert built_library(sources) == first
    assert len(compiled.read_text().splitlines()) == 1
    assert capsys.readouterr() == ("", "")


def test_a_relative_cache_gives_an_absolute_path(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = built_library(sources, Path())
    assert file.parent == tmp_path
    assert built_library(sources, Path()) == file
    assert answer(file) == 42


def test_a_changed_header_is_another_build(sources: Path, compiled: Path) -> None:
    before = built_library(sources)
    (sources / "answer.h").write_text("#define ANSWER 43\n")
    after = built_library(sources)
    assert (answer(before), answer(after)) == (42, 43)
    assert len(compiled.read_text().splitlines()) == 2


def test_whatever_could_make_another_library_makes_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    files, compiler = {"a.h": b"1", UNIT: b"2"}, Compiler(("g++",), GNU)
    names = [
        file_name(files, compiler, "avx2"),
        file_name(files, compiler, "avx2 avx512f"),
        file_name({"b.h": b"1", UNIT: b"2"}, compiler, "avx2"),
        file_name({"a.h": b"2", UNIT: b"1"}, compiler, "avx2"),
        file_name(files, Compiler(("g++",), GNU.replace("12.2.0", "12.3.0")), "avx2"),
        file_name(files, Compiler(("g++", "-m32"), GNU), "avx2"),
    ]
    monkeypatch.setattr(build, "FLAGS", (*FLAGS, "-g"))
    names.append(file_name(files, compiler, "avx2"))
    assert len(set(names)) == len(names)


def test_the_same_name_whatever_the_order_the_folder_lists(sources: Path) -> None:
    compiler = Compiler(("g++",), GNU)
    assert file_name({"a.h": b"1", UNIT: b"2"}, compiler, "") == file_name({UNIT: b"2", "a.h": b"1"}, compiler, "")
    assert file_name({}, Compiler(("/usr/bin/g++",), GNU), "") == file_name({}, Compiler(("/bin/c++",), GNU), "")


def test_the_processors_features_are_known() -> None:
    assert len(cpu_features().split()) > 1
    assert cpu_features() == cpu_features()


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (GNU, "g++ 12.2"),
        (GNU.replace("g++ (Debian 12.2.0-14+deb12u1)", "c++ (Ubuntu 13.3.0-6ubuntu2)"), "g++ 12.2"),
        ("Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu\n", "clang++ 14.0"),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)\n", "clang++ 15.0"),
        ("", "cc"),
    ],
)
def test_a_compiler_is_called_what_people_call_it(version: str, name: str) -> None:
    assert Compiler(("/usr/bin/cc",), version).name == name


def test_the_first_error_is_found_behind_what_comes_before_it() -> None:
    output = (
        "In file included from stack.cpp:2:\na.h:1:1: warning: odd\na.h:2:3: error: no such thing\nb.h:1: error: x\n"
    )
    assert first_error(output) == "a.h:2:3: error: no such thing"
    assert first_error("\n  Killed\n") == "Killed"
    assert first_error("") == "it does not say why"


def test_arguments_in_cxx_reach_the_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{CXX} -DANSWER=7")
    (sources / "answer.h").write_text("")
    assert answer(built_library(sources)) == 7


@pytest.mark.parametrize("missing", ["/no/such/compiler", "g++ '"])
def test_a_cxx_that_is_not_there_is_passed_over(sources: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", missing)
    assert answer(built_library(sources)) == 42


def test_broken_source_is_told_with_the_compilers_line(sources: Path, cache: Path) -> None:
    (sources / UNIT).write_text('#warning "first"\nint broken( { }\n')
    with pytest.raises(NotBuilt, match=rf"cannot be built with \S+ \S+ \(.*{UNIT}:2:\d+: error: .*CXX\.$"):
        built_library(sources)
    assert list(cache.iterdir()) == []


def test_without_a_compiler_the_sentence_says_what_to_install(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(NotBuilt, match=r"no compiler .* install g\+\+\.$"):
        built_library(sources)


def test_a_compiler_that_cannot_be_started_is_named(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiler").write_text("#!/no/such/shell\n")
    (tmp_path / "compiler").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "compiler"))
    with pytest.raises(NotBuilt, match=r"/compiler cannot be started .*CXX\.$"):
        built_library(sources)


def test_missing_sources_are_told(sources: Path) -> None:
    with pytest.raises(NotBuilt, match=r"cannot be read .* install rota anew"):
        built_library(sources / "nowhere")
    (sources / UNIT).unlink()
    with pytest.raises(NotBuilt, match=f"without {UNIT}: install rota anew"):
        built_library(sources)


def test_a_library_that_does_not_load_is_not_kept(sources: Path, cache: Path) -> None:
    (sources / UNIT).write_text('extern "C" int nobody_has_this(); extern "C" int f() { return nobody_has_this(); }')
    with pytest.raises(NotBuilt, match=r"do not load \(.*nobody_has_this.*\): name another compiler"):
        built_library(sources)
    assert list(cache.iterdir()) == []


def test_a_file_in_the_cache_that_does_not_load_is_built_again(sources: Path) -> None:
    file = built_library(sources)
    file.unlink()
    file.write_bytes(b"not a library")
    assert built_library(sources) == file
    assert answer(file) == 42


def test_a_build_past_its_time_is_ended_with_all_that_it_started(
    sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    use_compiler(tmp_path, monkeypatch, f"sleep 600 > {shlex.quote(str(tmp_path / 'alive'))} & wait")
    monkeypatch.setattr(build, "BUILD_TIMEOUT_S", 0.5)
    with pytest.raises(NotBuilt, match=r"was not done in 0\.5 s: .*CXX\.$"):
        built_library(sources)
    # Readable and empty: nobody who could write to it lives.
    events = select.poll()
    events.register(alive, select.POLLIN | select.POLLHUP)
    assert events.poll(10_000) in ([(alive, select.POLLHUP)], [])
    assert os.read(alive, 1) == b""
    os.close(alive)
    assert list(cache.iterdir()) == []


def test_a_build_killed_half_way_leaves_nothing_that_is_taken(
    sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The compiler writes half a library, and its parent, which is us, is killed.
    half = f'{CXX} "$@"; truncate -s 4000 "$out"; kill -9 $PPID; exit 1'
    use_compiler(tmp_path, monkeypatch, half)
    killed = in_a_process(sources)
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (left,) = cache.iterdir()
    assert left.is_dir()
    (name,) = (it.name for it in left.iterdir() if it.suffix == ".so")

    use_compiler(tmp_path, monkeypatch, "")
    file = built_library(sources)
    assert file == cache / name
    assert answer(file) == 42
    # Whoever looks now cannot know that nobody builds there; an hour later one can.
    assert left.exists()
    os.utime(left, (0, 0))
    (sources / "answer.h").write_text("#define ANSWER 43\n")
    built_library(sources)
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    sources: Path, cache: Path, compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build._own_folder.cache_clear()
    cache.parent.parent.write_text("a file where the folder should be")
    file = built_library(sources)
    assert answer(file) == 42
    assert capsys.readouterr().err.count("the cache cannot be written") == 1
    # It lasts as long as the process, so that another engine in it compiles nothing.
    assert built_library(sources) == file
    assert len(compiled.read_text().splitlines()) == 1
    assert capsys.readouterr().err == ""


def test_what_was_built_outside_the_cache_goes_with_the_process(sources: Path, cache: Path) -> None:
    cache.parent.parent.write_text("a file where the folder should be")
    process = in_a_process(sources)
    file = Path(process.communicate(timeout=120)[0].strip())
    assert process.returncode == 0
    assert file.suffix == ".so"
    assert not file.parent.exists()


def test_with_nowhere_to_write_the_sentence_says_both(
    sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.parent.write_text("a file where the folder should be")
    monkeypatch.setattr(build, "_own_folder", lambda: cache)
    with pytest.raises(NotBuilt, match=r"neither in the cache .* nor in a temporary folder .* XDG_CACHE_HOME"):
        built_library(sources)


def test_two_threads_that_build_at_once_both_have_a_library(
    sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(tmp_path, monkeypatch, meet(tmp_path))
    monkeypatch.setattr(build, "BUILD_TIMEOUT_S", 60.0)
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(built_library, (sources, sources))
    assert one == two
    assert answer(one) == 42
    assert list(cache.iterdir()) == [one]


def test_two_processes_that_build_at_once_both_have_a_library(
    sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(tmp_path, monkeypatch, meet(tmp_path))
    processes = [in_a_process(sources), in_a_process(sources)]
    told = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    (file,) = cache.iterdir()
    assert told == {str(file)}
    assert answer(file) == 42


def test_the_oldest_builds_go_and_never_the_one_just_built(sources: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    old = [cache / f"stack-{age}.so" for age in range(KEPT + 2)]
    for age, it in enumerate(old):
        it.touch()
        os.utime(it, (2**32 - age, 2**32 - age))  # all from a clock that was wrong, so that ours is the oldest
    file = built_library(sources)
    assert set(cache.iterdir()) == {file, *old[: KEPT - 1]}


def test_few_builds_are_all_kept(sources: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    old = cache / "stack-old.so"
    old.touch()
    assert {built_library(sources), old} == set(cache.iterdir())
