"""From what the user calls a model to a folder with its files.

Knows the kinds of names `--model` takes, where each comes from, and the cache. Does not load anything onto a device,
and imports torch and transformers only when a GGUF file has to be converted: when everything is cached, it answers at
once.

What is fetched or converted is built in a temporary folder beside its final place, under a lock, and renamed when it
is whole; `rota.json`, written last, lists its files and their sizes. So an interrupted start leaves nothing that a
later one would trust.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kernels import ModelError
from kernels.default_model import DEFAULT_MODEL, fetch_default_model

MARKER = "rota.json"
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_FORMAT = 1
"""Part of every key in the cache: raise it when what we write there changes."""
_LOOK_S = 0.1
"""How often one that waits for another server looks: the parent takes a worker that does nothing at all for hung."""
_DEFAULT_FORMAT = 2
"""The same, of the default model alone."""
DEFAULT_SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""As SmolLM2's model card has it; the GGUF file says nothing, and at temperature 1 it talks nonsense."""


@dataclass(frozen=True)
class Checkpoint:
    """A model's files. `random_weights`: `folder` has a configuration and a tokeniser, and weights are made up."""

    name: str
    folder: Path
    random_weights: bool = False


def resolve(model: str) -> Checkpoint:
    """Find, fetch or convert what `--model` names.

    Takes the default model's name, `dummy:CONFIG` (a config.json or a folder with one), a `.gguf` file, a folder, or a
    hub name (`organisation/name`). May take minutes the first time; says on stderr what it is doing. Raises ModelError
    when the model cannot be had.
    """
    if model == DEFAULT_MODEL:
        return Checkpoint(model, _cached(f"{model}-{_FORMAT}.{_DEFAULT_FORMAT}", _build_default))
    if model.startswith("dummy:"):
        return _dummy(Path(model.removeprefix("dummy:")).expanduser())
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"The folder {path} is not a model: it has no config.json.")
        return Checkpoint(path.resolve().name, path.resolve())
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", model):
        return _hub(model)
    raise ModelError(
        f"There is no model {model!r}: give {DEFAULT_MODEL}, a hub name (organisation/name), a folder, "
        f"a .gguf file, or dummy:CONFIG."
    )


def cache_folder() -> Path:
    """Where models are kept: `$XDG_CACHE_HOME/rota/models`, by default `~/.cache/rota/models`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rota" / "models"


def say(line: str) -> None:
    """One line of progress, for the person who waits."""
    print(f"rota: {line}", file=sys.stderr, flush=True)


def _build_default(folder: Path) -> None:
    download = folder / "download"
    download.mkdir()
    say(f"fetching {DEFAULT_MODEL} (93 MB, once)")
    file = fetch_default_model(download)
    convert_gguf(file, folder)
    say_sampling(folder, DEFAULT_SAMPLING)
    shutil.rmtree(download)


def say_sampling(folder: Path, sampling: Mapping[str, object]) -> None:
    """Write `sampling` into the folder's generation_config.json, beside what it says of tokens."""
    file = folder / "generation_config.json"
    said = json.loads(file.read_text()) if file.exists() else {}
    # With this mark transformers would take it all for made up, and make it up again.
    said.pop("_from_model_config", None)
    file.write_text(json.dumps({**said, **sampling}, indent=2) + "\n")


def _gguf(file: Path) -> Checkpoint:
    if not file.is_file():
        raise ModelError(f"There is no file {file}.")
    # Size and time instead of a hash of the contents: hashing ten gigabytes at every start would take longer than
    # loading them.
    status = file.stat()
    key = _digest(f"{_FORMAT} {file.resolve()} {status.st_size} {status.st_mtime_ns}".encode())
    return Checkpoint(file.stem, _cached(f"{file.stem}-{key}", lambda folder: convert_gguf(file, folder)))


def _hub(name: str) -> Checkpoint:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's client raises its own, httpx' and the system's
        raise ModelError(f"{name} cannot be had from the Hugging Face hub: {_why_not(error)}.") from error
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} on the Hugging Face hub is not a transformers model: it has no config.json.")
    return Checkpoint(name, folder)


def _why_not(error: BaseException) -> str:
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    match error:
        case GatedRepoError():
            return "it is given only to those who have accepted its terms there; log in with 'hf auth login'"
        case RepositoryNotFoundError():
            return "there is no such model, or it is private; check the name, or log in with 'hf auth login'"
        case LocalEntryNotFoundError():
            return "the hub cannot be reached (is there a network?), and no copy of it is on this machine"
    return re.split(r"[.\n]", str(error).strip(), maxsplit=1)[0] or type(error).__name__


def _dummy(config: Path) -> Checkpoint:
    file = config / "config.json" if config.is_dir() else config
    try:
        content = file.read_bytes()
        settings = json.loads(content)
    except OSError as error:
        raise ModelError(f"The configuration {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ModelError(f"The configuration {file} is not JSON: {error}.") from error
    if not isinstance(settings, dict) or "model_type" not in settings:
        raise ModelError(f"The configuration {file} does not say its model_type.")
    own = sorted(it for it in file.parent.iterdir() if _is_tokeniser_file(it)) if config.is_dir() else []
    if not any(it.name in ("tokenizer.json", "tokenizer.model") for it in own):
        own = []
    stem = file.resolve().parent.name if file.name == "config.json" else file.stem
    key = _digest(f"{_FORMAT} {file.resolve()}".encode() + content + b"".join(it.read_bytes() for it in own))

    def build(folder: Path) -> None:
        (folder / "config.json").write_bytes(content)
        if own:
            for it in own:
                shutil.copy(it, folder)
        else:
            _write_byte_tokeniser(settings, file, folder)

    return Checkpoint(f"dummy-{stem}", _cached(f"dummy-{stem}-{key}", build), random_weights=True)


def _write_byte_tokeniser(settings: dict[str, object], config: Path, folder: Path) -> None:
    from kernels.byte_tokeniser import END_ID, VOCABULARY, write_byte_tokeniser

    size = settings.get("vocab_size")
    if not isinstance(size, int) or size < VOCABULARY:
        raise ModelError(
            f"The configuration {config} has a vocabulary of {size}, and rota's byte tokeniser needs {VOCABULARY} "
            f"(256 bytes and 2 marks): make it larger, or put a tokeniser beside it."
        )
    write_byte_tokeniser(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END_ID}) + "\n")


def _is_tokeniser_file(path: Path) -> bool:
    return path.is_file() and path.name in {
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "generation_config.json",
    }


def convert_gguf(file: Path, folder: Path) -> None:
    """Write a GGUF file's weights (as float32 safetensors), tokeniser, chat template and settings to `folder`.

    Every quantised weight is unpacked; a run in bfloat16 rounds them once more when it loads them. Raises ModelError
    when transformers cannot read the file, or the disk is too small.
    """
    say(f"converting {file.name} (once; some 20 s for a small model)")
    from gguf import GGUFReader
    from torch import float32
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from kernels.quiet import quiet_transformers

    quiet_transformers()
    try:
        needed = 4 * sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise ModelError(
                f"{file.name} unpacks to {needed / 2**30:.1f} GiB of float32, and {folder.parent} has "
                f"{free / 2**30:.1f} GiB left."
            )
        source = {"gguf_file": file.name}
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, quantization_config=GgufConfig(dequantize=True), dtype=float32, **source
        )
        tokeniser = AutoTokenizer.from_pretrained(file.parent, **source)
        model.save_pretrained(folder)
        tokeniser.save_pretrained(folder)
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # the readers raise whatever a bad byte leads them to
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"{file} cannot be converted: {reason}.") from error


def _cached(key: str, build: Callable[[Path], None]) -> Path:
    """The folder `key` in the cache, made by `build(empty folder)` if it is not there or not whole."""
    folder = cache_folder() / key
    if _whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f"{key}.lock", key):
            if _whole(folder):  # another server made it while we waited
                return folder
            # Under the lock nobody else is building this: what lies here was left by a process that was killed.
            for left in folder.parent.glob(f".{key}.partial"):
                shutil.rmtree(left)
            partial = folder.parent / f".{key}.partial"
            partial.mkdir()
            try:
                build(partial)
                files = {it.name: it.stat().st_size for it in sorted(partial.iterdir())}
                (partial / MARKER).write_text(json.dumps({"files": files}, indent=2) + "\n")
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"The model cache {folder.parent} cannot be written ({error.strerror or error}): "
            f"set XDG_CACHE_HOME to a folder that can."
        ) from error
    return folder


def _whole(folder: Path) -> bool:
    try:
        files = json.loads((folder / MARKER).read_text())["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def _locked(file: Path, key: str) -> Iterator[None]:
    """Hold an exclusive lock on `file`; the system drops it when the process ends, however it ends."""
    with file.open("w") as held:
        if not _taken(held):
            say(f"waiting for another server that is making {key}")
            while not _taken(held):
                time.sleep(_LOOK_S)
        yield


def _taken(held: IO[str]) -> bool:
    import fcntl

    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
