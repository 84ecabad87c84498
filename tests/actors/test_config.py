"""Settings: where they come from, which source wins, and what is said of one that cannot be used."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors import config
from actors.config import Config, ConfigError, parse_size
from actors.targets import Target, TierTable

FILES = ("keys_file", "tls_cert", "tls_key")
"""Those that name a file which has to be there: they are tried in `test_config_doors.py`."""
NAMES = [field.name for field in msgspec.structs.fields(Config) if field.name not in FILES]

OTHERS: dict[str, tuple[str, object]] = {
    "model": ("dummy:tiny", "dummy:tiny"),
    "host": ("localhost", "localhost"),
    "port": ("0", 0),
    "device": ("cuda:1", "cuda:1"),
    "dtype": ("bfloat16", "bfloat16"),
    "kernels": ("torch", "torch"),
    "kv_memory": ("512MiB", "512MiB"),
    "gpu_memory_fraction": ("0.5", 0.5),
    "steps_in_flight": ("2", 2),
    "max_context": ("4096", 4096),
    "max_running": ("3", 3),
    "max_waiting": ("0", 0),
    "max_wait_s": ("2.5", 2.5),
    "max_waiting_work_s": ("4.5", 4.5),
    "policy": ("decode_first", "decode_first"),
    "chunk_tokens": ("64", 64),
    "targets": (
        "default=900/90,flex=1.5/2",
        TierTable(default=Target(900.0, 90.0), flex=Target(1.5, 2.0)),
    ),
    "max_output_tokens": ("16", 16),
    "retain_s": ("0", 0.0),
    "grace_s": ("0", 0.0),
    "resume_grace_s": ("0", 0.0),
    "hang_s": ("5", 5.0),
    "load_s": ("7", 7.0),
    "max_connections": ("7", 7),
    "max_connections_per_address": ("7", 7),
    "max_handshakes": ("7", 7),
    "handshake_s": ("2.5", 2.5),
    "max_lanes": ("7", 7),
    "max_running_per_socket": ("7", 7),
    "max_messages_per_s": ("2.5", 2.5),
    "max_message": ("64KiB", "64KiB"),
    "socket_idle_s": ("2.5", 2.5),
    "socket_age_s": ("2.5", 2.5),
    "reader_patience_s": ("2.5", 2.5),
    "api_keys": ("anna=secret", ("anna=secret",)),
    "key_tiers": ("anna=flex", ("anna=flex",)),
    "origins": ("https://shop.example", ("https://shop.example",)),
    "trusted_proxies": ("10.0.0.0/8", ("10.0.0.0/8",)),
    "proxy_header": ("forwarded", "forwarded"),
    "allow_no_key": ("true", True),
    "log_format": ("json", "json"),
    "trace": ("trace.jsonl", "trace.jsonl"),
    "trace_bytes": ("64KiB", "64KiB"),
    "trace_files": ("2", 2),
}
"""For every setting a value that is not its default: as text, and as it is read."""


def from_flags(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    return vars(parser.parse_args(arguments))


def load(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, file: str | None = None
) -> Config:
    if file is not None:
        (folder / "rota.toml").write_text(file)
    return config.load(from_flags(*arguments), environment or {}, folder)


def refusal(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, file: str | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, *arguments, environment=environment, file=file)
    return str(caught.value)


# --- sources ---


def test_with_nothing_set_everything_has_its_default(tmp_path: Path) -> None:
    assert load(tmp_path) == Config()
    assert Config().host == "127.0.0.1"


def test_every_setting_is_tried_here() -> None:
    assert list(OTHERS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_be_given_as_a_flag_a_variable_and_a_key(name: str, tmp_path: Path) -> None:
    text, value = OTHERS[name]
    assert value != getattr(Config(), name)
    flag = [config.flag(name)] if name == "allow_no_key" else [config.flag(name), text]
    changed = msgspec.structs.replace(Config(), **{name: value})
    if name == "key_tiers":  # of a key that there is
        flag += ["--api-keys", "anna=secret"]
        changed = msgspec.structs.replace(changed, api_keys=("anna=secret",))
    keys = {"ROTA_API_KEYS": ",".join(changed.api_keys)} if changed.api_keys else {}
    assert load(tmp_path, *flag) == changed
    assert load(tmp_path, environment={**keys, f"ROTA_{name.upper()}": text}) == changed
    quoted = text if isinstance(value, bool | int | float) else f'"{text}"'
    assert load(tmp_path, environment=keys, file=f"{name} = {quoted}\n") == changed
    assert load(tmp_path, environment=keys, file=f"{name.replace('_', '-')} = {quoted}\n") == changed


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_be_given_its_default(name: str, tmp_path: Path) -> None:
    default = getattr(Config(), name)
    match default:
        case bool():
            arguments = [f"--no-{name.replace('_', '-')}"]
        case None:
            arguments = [config.flag(name), "none"]
        case ():
            arguments = [config.flag(name), ""]
        case _:
            arguments = [config.flag(name), str(default)]
    assert load(tmp_path, *arguments) == Config()


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = "port = 1\nmax_running = 1\nmax_waiting = 1\n"
    environment = {"ROTA_MAX_RUNNING": "2", "ROTA_MAX_WAITING": "2", "PATH": "/bin"}
    found = load(tmp_path, "--max-waiting", "3", environment=environment, file=file)
    assert (found.port, found.max_running, found.max_waiting) == (1, 2, 3)


def test_a_flag_takes_back_what_the_file_allows(tmp_path: Path) -> None:
    assert load(tmp_path, "--no-allow-no-key", file="allow_no_key = true\n").allow_no_key is False


def test_a_list_of_a_higher_source_replaces_the_whole_list(tmp_path: Path) -> None:
    file = 'origins = ["https://a.example", "https://b.example"]\n'
    assert load(tmp_path, file=file).origins == ("https://a.example", "https://b.example")
    assert load(tmp_path, "--origins", "https://c.example", "--origins", "https://d.example").origins == (
        "https://c.example",
        "https://d.example",
    )
    assert load(tmp_path, environment={"ROTA_ORIGINS": "https://e.example,https://f.example"}).origins == (
        "https://e.example",
        "https://f.example",
    )
    assert load(tmp_path, environment={"ROTA_ORIGINS": ""}).origins == ()


@pytest.mark.parametrize("name", ["kv_memory", "max_context"])
@pytest.mark.parametrize("nothing", ["none", ""])
def test_a_higher_source_can_leave_open_what_a_lower_one_sets(name: str, nothing: str, tmp_path: Path) -> None:
    file = 'kv_memory = "1GiB"\nmax_context = 64\n'
    assert getattr(load(tmp_path, environment={f"ROTA_{name.upper()}": nothing}, file=file), name) is None
    assert getattr(load(tmp_path, config.flag(name), nothing, file=file), name) is None


def test_a_file_can_be_named_by_a_flag_or_a_variable_and_the_flag_wins(tmp_path: Path) -> None:
    (tmp_path / "rota.toml").write_text("port = 1\n")
    named = {number: tmp_path / f"{number}.toml" for number in (2, 3)}
    for number, path in named.items():
        path.write_text(f"port = {number}\n")
    environment = {"ROTA_CONFIG": str(named[2])}
    assert load(tmp_path, environment=environment).port == 2
    assert load(tmp_path, "--config", str(named[3]), environment=environment).port == 3


def test_the_help_describes_every_setting_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    for name in NAMES:
        assert config.flag(name) in text
    assert "the port to listen on; 0 takes a free one [8000]" in text
    assert "longest prompt and answer together, in tokens; else the model's own --max-running" in text


def test_the_help_names_the_choices_and_how_several_values_are_given() -> None:
    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    text = " ".join(parser.format_help().split())
    assert "--dtype auto|float32|bfloat16|float16 " in text
    assert "--log-format auto|console|json " in text
    assert "--policy slack|fixed_chunk|decode_first|prefill_first who runs next [slack]" in text
    assert " [default=5000/250, flex=60000/1000, scale=5000/250, priority=2000/150," in text
    listed = ("--api-keys NAME=KEY", "--key-tiers NAME=TIER", "--targets TIER=TTFT_MS/ITL_MS", "--origins ORIGIN")
    for named in listed:
        described = text.rpartition(named)[2].partition(" --")[0]
        assert described.endswith("several: separated by commas, or the flag repeated")


# --- what is said of a mistake ---


def test_an_unknown_name_is_told_the_nearest_right_one_in_the_spelling_of_its_source(tmp_path: Path) -> None:
    assert refusal(tmp_path, environment={"ROTA_MAX_RUNING": "1"}) == (
        "ROTA_MAX_RUNING is not a setting. Did you mean ROTA_MAX_RUNNING?"
    )
    message = refusal(tmp_path, file="prot = 1\n")
    assert message == f"{tmp_path / 'rota.toml'}: 'prot' is not a setting. Did you mean port?"


def test_a_name_near_to_none_is_told_so(tmp_path: Path) -> None:
    assert refusal(tmp_path, environment={"ROTA_ZZZZZZ": "1"}) == "ROTA_ZZZZZZ is not a setting."


def test_the_key_that_clients_send_is_no_setting_of_a_server(tmp_path: Path) -> None:
    assert load(tmp_path, environment={"ROTA_KEY": "k3y"}) == load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "65536"], "--port cannot be '65536': it must be a whole number <= 65535."),
        (["--port", "http"], "--port cannot be 'http': it must be a whole number."),
        (["--resume-grace-s", "inf"], "--resume-grace-s cannot be 'inf': it must be a finite number."),
        (["--hang-s", "1e999"], "--hang-s cannot be '1e999': it must be a finite number."),
        (["--max-running", "0"], "--max-running cannot be '0': it must be a whole number >= 1."),
        (["--max-running", "1025"], "--max-running cannot be '1025': it must be a whole number <= 1024."),
        (["--max-context", "15"], "--max-context cannot be '15': it must be a whole number >= 16."),
        (
            ["--max-context", str(2**63)],
            f"--max-context cannot be '{2**63}': it must be a whole number <= 2147483647.",
        ),
        (["--trace-bytes", "lots"], "'lots' is not a size; write one like 4GiB or 512MiB."),
        (["--trace-bytes", "4k"], "Trace files of 4k are too small: the least is 64 KiB. Set --trace-bytes."),
        (["--trace-files", "0"], "--trace-files cannot be '0': it must be a whole number >= 1."),
        (["--kv-memory", "9999999TiB"], "'9999999TiB' is more memory than there can be; the most is 1,024 TiB."),
        (["--max-context", "long"], "--max-context cannot be 'long': it must be a whole number."),
        (["--max-wait-s", "0"], "--max-wait-s cannot be '0': it must be a number > 0.0."),
        (["--max-waiting-work-s", "0"], "--max-waiting-work-s cannot be '0': it must be a number > 0.0."),
        (
            ["--policy", "fifo"],
            "--policy cannot be 'fifo': it is one of slack, fixed_chunk, decode_first, prefill_first.",
        ),
        (["--dtype", "int8"], "--dtype cannot be 'int8': it is one of auto, float32, bfloat16, float16."),
        (["--log-format", "xml"], "--log-format cannot be 'xml': it is one of auto, console, json."),
        (["--kv-memory", "lots"], "'lots' is not a size; write one like 4GiB or 512MiB."),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_the_reason(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    assert refusal(tmp_path, *arguments) == sentence


def test_a_value_of_the_environment_or_the_file_is_named_as_it_stands_there(tmp_path: Path) -> None:
    assert refusal(tmp_path, environment={"ROTA_PORT": "x"}) == "ROTA_PORT cannot be 'x': it must be a whole number."
    assert refusal(tmp_path, environment={"ROTA_ALLOW_NO_KEY": "perhaps"}) == (
        "ROTA_ALLOW_NO_KEY cannot be 'perhaps': it must be true or false."
    )
    path = tmp_path / "rota.toml"
    for key in ("max_running", "max-running"):
        assert refusal(tmp_path, file=f"{key} = -1\n") == (
            f"{path}: {key} cannot be -1: it must be a whole number >= 1."
        )
    assert refusal(tmp_path, file="host = 3\n") == f"{path}: host cannot be 3: it must be text."
    assert refusal(tmp_path, file="origins = 3\n") == f"{path}: origins cannot be 3: it must be a list."


@pytest.mark.parametrize("table", ["server", "model", "api_keys"])
def test_a_table_in_the_file_is_refused_with_what_to_write_instead(table: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, file=f"port = 1\n[{table}]\nanna = 'hush'\n") == (
        f"{tmp_path / 'rota.toml'}: [{table}] is a table, and settings stand alone: write max_context = 4096."
    )


def test_a_setting_that_has_slipped_under_the_targets_is_told_where_it_belongs(tmp_path: Path) -> None:
    for key in ("max_context", "max-context"):
        assert refusal(tmp_path, file=f"[targets]\nflex = {{ itl_ms = 7 }}\n{key} = 4096\n") == (
            f"{tmp_path / 'rota.toml'}: {key} stands under [targets]: move it above that line."
        )


def test_targets_in_the_form_of_the_simulator_are_told_the_right_form(tmp_path: Path) -> None:
    assert refusal(tmp_path, "--targets", "ttft=5s,itl=250ms") == (
        "--targets cannot be 'ttft=5s': a tier's targets are written TIER=TTFT_MS/ITL_MS, such as default=5000/250."
    )


def test_the_targets_are_a_table_in_the_file_and_what_it_does_not_name_keeps_its_default(tmp_path: Path) -> None:
    file = "port = 1\n[targets]\ndefault = { ttft_ms = 900, itl_ms = 90.5 }\nflex = { itl_ms = 7 }\n"
    expected = TierTable(default=Target(900.0, 90.5), flex=Target(60_000.0, 7.0))
    assert load(tmp_path, file=file) == Config(port=1, targets=expected)


def test_targets_of_a_higher_source_replace_the_whole_table(tmp_path: Path) -> None:
    file = "[targets]\nflex = { ttft_ms = 7, itl_ms = 7 }\n"
    found = load(tmp_path, "--targets", "default=1/2", "--targets", "fast=3/4", file=file).targets
    assert found == TierTable(default=Target(1.0, 2.0), fast=Target(3.0, 4.0))


def test_targets_that_cannot_be_used_are_named_as_they_stand_in_their_source(tmp_path: Path) -> None:
    assert refusal(tmp_path, "--targets", "prio=1/2") == "--targets has no tier 'prio'. Did you mean priority?"
    assert refusal(tmp_path, environment={"ROTA_TARGETS": "fast=0/2"}) == (
        "ROTA_TARGETS cannot have fast.ttft_ms = 0: it must be a number of milliseconds above 0."
    )
    assert refusal(tmp_path, file="[targets]\nfast = { tft_ms = 1 }\n") == (
        f"{tmp_path / 'rota.toml'}: targets has no fast.tft_ms. Did you mean fast.ttft_ms?"
    )


@pytest.mark.parametrize(
    ("unknown", "sentence"),
    [
        (["--max-runing", "3"], "--max-runing is not a setting. Did you mean --max-running?"),
        (["--prot=1"], "--prot is not a setting. Did you mean --port?"),
        (["--kv_memory", "1GiB"], "--kv_memory is not a setting. Did you mean --kv-memory?"),
        (["--zzzzzz"], "--zzzzzz is not a setting."),
        (["model"], "model is not a setting. Did you mean --model?"),
    ],
)
def test_an_unknown_flag_is_told_the_nearest_right_one(unknown: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.refuse_unknown_flags(unknown)
    assert str(caught.value) == sentence


def test_without_an_unknown_flag_nothing_is_refused() -> None:
    config.refuse_unknown_flags([])


def test_a_model_may_be_called_none(tmp_path: Path) -> None:
    assert load(tmp_path, "--model", "none").model == "none"


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path, "--config", str(tmp_path / "missing.toml"))
    assert "is not TOML" in refusal(tmp_path, file="port = \n")
    (tmp_path / "latin.toml").write_bytes("# gr\xfcn\nport = 1\n".encode("latin-1"))
    assert "is not TOML" in refusal(tmp_path, "--config", str(tmp_path / "latin.toml"))


# --- sizes ---


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("4GiB", 4 * 2**30),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        ("2G", 2 * 10**9),
        ("2GB", 2 * 10**9),
        ("1.5KiB", 1536),
        ("1t", 10**12),
        (" 1TiB ", 2**40),
        ("7b", 7),
        ("1024TiB", 2**50),
    ],
)
def test_sizes_are_read_as_they_are_written(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "4 Gi B", "4XiB", "1.GiB", "four"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1025TiB", str(2**63), "9" * 400])
def test_more_than_any_memory_is_refused_rather_than_sent_to_a_worker(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is more memory than there can be; the most is 1,024 TiB\.$"):
        parse_size(text)


def test_kv_memory_is_given_in_bytes_to_whoever_asks() -> None:
    assert Config(kv_memory="2MiB").kv_memory_bytes == 2 * 2**20
    assert Config().kv_memory_bytes is None


def test_several_values_may_stand_in_one_flag_or_in_several(tmp_path: Path) -> None:
    found = load(tmp_path, "--origins", "https://a.example,https://b.example", "--origins", "https://c.example")
    assert found.origins == ("https://a.example", "https://b.example", "https://c.example")
    assert load(tmp_path, "--api-keys", "anna=a,bert=b").api_keys == ("anna=a", "bert=b")


def test_a_plain_number_in_a_file_is_a_size(tmp_path: Path) -> None:
    (tmp_path / "rota.toml").write_text("kv_memory = 1073741824")
    assert config.load({}, {}, tmp_path).kv_memory_bytes == 2**30
