"""The engines that a user might pick instead: where each is installed, how it is started, and what it may be asked.

Knows folders and command lines. Each has a virtual environment of its own below one folder, none of them ours;
CONTRIBUTING.md says how to fill it. Starts nothing.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

PORT = "{port}"
"""Stands in a command for the port that will be free."""


class HttpPeer(Struct, frozen=True):
    """A server of OpenAI's chat completions, on `PORT` of loopback."""

    name: str
    command: tuple[str, ...]
    model: str
    """What to ask it for."""
    environment: Mapping[str, str] = {}
    ready: str = "/health"
    """The path that answers 200 when it can be asked."""
    ignore_eos: bool = True
    """Whether it takes that field."""


class PipePeer(Struct, frozen=True):
    """A script that runs the engine in its own process and is asked in lines of JSON (`openvino_lines`)."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = {}


class Missing(Struct, frozen=True):
    name: str
    why: str


Peer = HttpPeer | PipePeer


class _NotThere(Exception):
    pass


def find(folder: Path, weights: Path) -> tuple[list[Peer], list[Missing]]:
    """The peers below `folder` that can be started on these weights, in the order of `PEERS`, and those that cannot.

    `weights` is a folder of safetensors. A peer that needs them in another form has them beside itself, under the
    folder's name.
    """
    found: list[Peer] = []
    missing: list[Missing] = []
    for name, (below, of) in PEERS.items():
        try:
            found.append(of(name, folder / below, weights))
        except _NotThere as lacking:
            missing.append(Missing(name, str(lacking)))
    return found, missing


def _there(path: Path) -> str:
    if not path.exists():
        raise _NotThere(f"there is no {path}")
    return str(path)


def _openvino(name: str, home: Path, weights: Path) -> Peer:
    python = _there(home / "bin/python")
    exported = home / weights.name
    _there(exported / "openvino_model.xml")
    return PipePeer(name, (python, str(Path(__file__).with_name("openvino_lines.py")), str(exported)))


def _vllm(name: str, home: Path, weights: Path) -> Peer:
    serve = (_there(home / "bin/vllm"), "serve", str(weights), "--served-model-name", weights.name)
    limits = ("--dtype", "bfloat16", "--max-model-len", "8192", "--host", "127.0.0.1", "--port", PORT)
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
    if (openmp := home / "lib/libiomp5.so").exists():  # it asks for it "for best performance"
        environment["LD_PRELOAD"] = str(openmp)
    return HttpPeer(name, serve + limits, weights.name, environment)


def _llama_cpp(name: str, home: Path, weights: Path) -> Peer:
    serve = (_there(home / "bin/llama-server"), "-m", _there(home / f"{weights.name}.gguf"), "--alias", weights.name)
    # 512 tokens of context for each of 64 slots: what the prompts and answers here need.
    limits = ("-t", str(_cores()), "-np", "64", "-c", "32768", "--host", "127.0.0.1", "--port", PORT)
    return HttpPeer(name, serve + limits, weights.name)


def _transformers(name: str, home: Path, weights: Path) -> Peer:
    serve = (_there(home / "bin/transformers"), "serve", str(weights), "--continuous-batching", "--device", "cpu")
    limits = ("--cb-num-blocks", "1024", "--cb-block-size", "32", "--cb-max-batch-tokens", "512")
    where = ("--dtype", "bfloat16", "--host", "127.0.0.1", "--port", PORT)
    return HttpPeer(name, serve + limits + where, str(weights), {"HF_HUB_OFFLINE": "1"}, ignore_eos=False)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


PEERS: Mapping[str, tuple[str, Callable[[str, Path, Path], Peer]]] = {
    "OpenVINO GenAI (in process)": ("openvino", _openvino),
    "vLLM": ("vllm", _vllm),
    "llama.cpp": ("llamacpp", _llama_cpp),
    "transformers serve": ("transformers", _transformers),
}
"""By name: the folder, and what finds it there or raises `_NotThere`."""


def with_port(command: Sequence[str], port: int) -> list[str]:
    return [part.replace(PORT, str(port)) for part in command]
