"""From our C++ sources to a shared library for this machine, built on first use by the machine's own compiler.

Knows how to find a compiler, the flags, and the cache. Does not know what the sources say or who calls them: it loads
the library only to see that it loads, and gives back its path. What goes wrong comes out as NotBuilt and as nothing
else, since every machine can do without.

A build happens in a folder of its own inside the cache, and the library is renamed into place when it has loaded. So a
build that was killed leaves nothing that a later start would take, and two at once do no harm: the later one replaces
a library by its equal, and who has loaded the first keeps it.
"""

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels.checkpoint import cache_folder, say

SOURCES = Path(__file__).parent / "src"
UNIT = "stack.cpp"
"""The one file that is compiled; it includes the others."""
# Never -ffast-math: it reorders sums, so that a row's result would depend on who it is batched with, and takes NaN and
# infinity for impossible. The two -fno- flags change no result; they let loops be vectorised that could set errno or
# raise a floating-point flag.
FLAGS = ("-O3", "-std=c++17", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-pthread")
KEPT = 5
BUILD_TIMEOUT_S = 300.0
VERSION_TIMEOUT_S = 30.0
_BUILDING = ".building-"


class NotBuilt(Exception):
    """There is no library for this machine. Its text is one sentence: what was tried, and what one could do."""


@dataclass(frozen=True)
class Compiler:
    """`command`: the program, and what $CXX may say behind it. `version`: all that it prints for --version."""

    command: tuple[str, ...]
    version: str

    @property
    def name(self) -> str:
        """As people say it: `g++ 12.2`."""
        first = re.sub(r"\(.*?\)", "", self.version.partition("\n")[0])  # in parentheses: the distribution's number
        makers = {"clang": "clang++", "Free Software Foundation": "g++"}
        program = next((it for mark, it in makers.items() if mark in self.version), Path(self.command[0]).name)
        return " ".join([program, *re.findall(r"\d+\.\d+", first)[:1]])


def built_library(sources: Path = SOURCES, cache: Path | None = None) -> Path:
    """The library of `sources` for this machine. The first time takes a compiler's time, and says so on stderr.

    It lies in `cache`, by default `kernels` beside the models; where that cannot be written, in a temporary folder
    that is removed when this process ends. Raises NotBuilt.
    """
    compiler = find_compiler(os.environ)
    try:
        files = {it.name: it.read_bytes() for it in sources.iterdir() if it.suffix in (".cpp", ".h")}
    except OSError as error:
        raise NotBuilt(f"The CPU kernels' sources cannot be read ({error}): install rota anew.") from error
    if UNIT not in files:
        raise NotBuilt(f"The CPU kernels' sources in {sources} are without {UNIT}: install rota anew.")
    name = file_name(files, compiler, cpu_features())
    try:
        return _built(cache or cache_folder().parent / "kernels", name, sources / UNIT, compiler)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        reason = error
    try:
        own = _own_folder()
        if not (own / name).exists():
            say(f"the cache cannot be written ({reason}): the CPU kernels are built anew at every start")
        return _built(own, name, sources / UNIT, compiler)
    except OSError as error:
        where = f"neither in the cache ({reason}) nor in a temporary folder ({error})"
        raise NotBuilt(f"The CPU kernels can be kept {where}: point XDG_CACHE_HOME elsewhere.") from error


def find_compiler(environment: Mapping[str, str]) -> Compiler:
    """The first that is there of $CXX, c++, g++ and clang++. Raises NotBuilt when none is, or it does not run."""
    for candidate in (environment.get("CXX", ""), "c++", "g++", "clang++"):
        with suppress(ValueError):  # a quotation mark too few
            program, *arguments = shlex.split(candidate) or [""]
            if found := shutil.which(program, path=environment.get("PATH")):
                command = (found, *arguments)
                version = _run((*command, "--version"), found, VERSION_TIMEOUT_S, environment)
                return Compiler(command, version)
    raise NotBuilt("The CPU kernels cannot be built, no compiler is there ($CXX, c++, g++, clang++): install g++.")


def cpu_features() -> str:
    """What -march=native goes by, as far as the system says it."""
    with suppress(OSError):
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^(?:flags|Features|isa)\s*:\s*(.+)$", told, re.MULTILINE):  # x86, ARM, RISC-V
            return f"{platform.machine()} {found[1]}"
    return f"{platform.machine()} {platform.processor()}"


def file_name(files: Mapping[str, bytes], compiler: Compiler, features: str) -> str:
    """Another name for everything that could make another library."""
    flags = (*compiler.command[1:], *FLAGS)
    told = (sorted((name, hashlib.sha256(it).hexdigest()) for name, it in files.items()), compiler.version, flags)
    return f"{Path(UNIT).stem}-{hashlib.sha256(repr((*told, features)).encode()).hexdigest()[:32]}.so"


def first_error(output: str) -> str:
    """The line that says what is wrong: compilers begin with warnings, and with where the file was included from."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "it does not say why")


def _built(folder: Path, name: str, unit: Path, compiler: Compiler) -> Path:
    """`folder / name`, made if it is not there or does not load. Raises OSError when `folder` cannot be written."""
    file = folder.absolute() / name  # a name without a slash would be looked for among the system's libraries
    if file.is_file() and _why_not_loaded(file) is None:
        return file
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=folder, ignore_cleanup_errors=True) as work:
        say(f"building the CPU kernels with {compiler.name} (once for this machine)")
        began = time.monotonic()
        fresh = Path(work) / name
        command = (*compiler.command, *FLAGS, "-o", str(fresh), str(unit))
        # The compiler's own temporary files as well: a killed build leaves none elsewhere.
        _run(command, compiler.name, BUILD_TIMEOUT_S, {**os.environ, "TMPDIR": work})
        if reason := _why_not_loaded(fresh):
            raise NotBuilt(
                f"The CPU kernels were built with {compiler.name} and do not load ({reason}): name another compiler "
                f"in CXX, or set XDG_CACHE_HOME to a folder from which programs may run."
            )
        # To load a library whose end a power cut took would kill the process, not raise.
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(fresh, file)
        say(f"built the CPU kernels in {time.monotonic() - began:.1f} s")
    with suppress(OSError):  # another process tidies as well
        _tidy(folder, file)
    return file


def _why_not_loaded(file: Path) -> str | None:
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        return str(error)
    return None


def _tidy(folder: Path, keep: Path) -> None:
    others = sorted((it for it in folder.glob("*.so") if it != keep), key=lambda it: it.stat().st_mtime)
    for old in others[: -(KEPT - 1)]:
        old.unlink(missing_ok=True)
    for left in folder.glob(f"{_BUILDING}*"):
        if left.stat().st_mtime < time.time() - 10 * BUILD_TIMEOUT_S:  # whoever built there was killed
            shutil.rmtree(left, ignore_errors=True)


@functools.cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rota-kernels-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _run(command: tuple[str, ...], name: str, timeout_s: float, environment: Mapping[str, str]) -> str:
    """What the compiler prints. Raises NotBuilt when it cannot be run, fails, or is not done in time."""
    advice = "install a newer g++, or name another compiler in CXX"
    try:
        # In English, for `first_error`; in a group of its own, so that what the compiler starts ends with it.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**environment, "LC_ALL": "C"}, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output = process.communicate(timeout=timeout_s)[0].decode(errors="replace")
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    except OSError as error:
        raise NotBuilt(f"The CPU kernels cannot be built, {name} cannot be started ({error}): {advice}.") from error
    except subprocess.TimeoutExpired as error:
        raise NotBuilt(f"The CPU kernels cannot be built, {name} was not done in {timeout_s:g} s: {advice}.") from error
    if process.returncode != 0:
        raise NotBuilt(f"The CPU kernels cannot be built with {name} ({first_error(output)}): {advice}.")
    return output
