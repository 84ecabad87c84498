"""What can be set, in one Struct: every field is a flag of `rota serve`, a key of rota.toml and a ROTA_* variable.

Knows names, defaults, sources and their order (flag, then environment, then file). Knows nothing of who uses them.
"""

import argparse
import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from actors.config_checks import ConfigError, check_doors, keys_of
from actors.keys import Keys
from actors.targets import TargetsError, Tiers, TierTable, table_of

__all__ = ["Config", "ConfigError"]


_MOST_TOKENS = 2**31 - 1
"""As on the wire: larger counts of tokens mean nothing, and do not fit where they are going."""
KEY_OF_A_CLIENT = "ROTA_KEY"
"""What `rota chat` and `rota load` send: whoever has it in the environment may start a server there, too."""


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The settings of `rota serve`. The defaults are right for a laptop."""

    model: Annotated[
        str,
        _doc("the model: a name, a hub name, a folder, a .gguf file, or dummy:CONFIG with the path of a config.json"),
    ] = "SmolLM2-135M-Instruct"
    host: Annotated[str, _doc("the address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), _doc("the port to listen on; 0 takes a free one")] = 8000
    device: Annotated[str, _doc("auto (CUDA if torch has it), cpu, cuda or cuda:N")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        _doc("weights and KV; auto is bfloat16 where the processor has it, else float32"),
    ] = "auto"
    kernels: Annotated[
        Literal["auto", "native", "triton", "torch", "none"],
        _doc(
            "what computes: native, our own for CPUs, built on first use; triton, our own for GPUs; or plain torch "
            "(auto is ours where they can be had); none makes every token up, to measure all the rest"
        ),
    ] = "auto"
    kv_memory: Annotated[
        str | None, _doc("memory for KV blocks, such as 4GiB or 512MiB; else a share of what is free")
    ] = None
    gpu_memory_fraction: Annotated[
        float,
        Meta(gt=0, le=1),
        _doc("how much of a GPU's memory may be taken in all; what weights and a step leave of it is for KV blocks"),
    ] = 0.92
    steps_in_flight: Annotated[
        Annotated[int, Meta(ge=1, le=2)] | None,
        _doc("steps the device is given at a time: 2 has the next one planned while one runs; else 2 on a GPU, else 1"),
    ] = None
    max_context: Annotated[
        Annotated[int, Meta(ge=16, le=_MOST_TOKENS)] | None,
        _doc("longest prompt and answer together, in tokens; else the model's own"),
    ] = None
    max_running: Annotated[int, Meta(ge=1, le=1024), _doc("requests on the device at once")] = 64
    max_waiting: Annotated[int, Meta(ge=0), _doc("places in the waiting room")] = 256
    max_wait_s: Annotated[float, Meta(gt=0), _doc("longest time in the waiting room, in seconds")] = 60.0
    max_waiting_work_s: Annotated[
        float, Meta(gt=0), _doc("most work in the waiting room, in predicted seconds of the device")
    ] = 300.0
    policy: Annotated[Literal["slack", "fixed_chunk", "decode_first", "prefill_first"], _doc("who runs next")] = "slack"
    chunk_tokens: Annotated[
        int,
        Meta(ge=1, le=_MOST_TOKENS),
        _doc("most prefill tokens in one step (slack cuts smaller ones to keep its targets)"),
    ] = 512
    targets: Annotated[
        TierTable,
        _doc("milliseconds to the first token, and between tokens, that requests of a service tier are to get"),
    ] = TierTable()
    max_output_tokens: Annotated[
        int, Meta(ge=1, le=_MOST_TOKENS), _doc("output limit of a request that names none")
    ] = 1024
    retain_s: Annotated[float, Meta(ge=0), _doc("how long a conversation can be continued, in seconds")] = 600.0
    grace_s: Annotated[
        float, Meta(ge=0), _doc("how long running answers may go on after SIGTERM or Ctrl-C, in seconds")
    ] = 10.0
    resume_grace_s: Annotated[
        float, Meta(ge=0), _doc("how long a response whose socket was lost is kept for its reader, in seconds")
    ] = 30.0
    hang_s: Annotated[float, Meta(gt=0), _doc("a worker that makes no progress for so long is started anew")] = 60.0
    load_s: Annotated[
        float,
        Meta(gt=0),
        _doc("a worker that takes so long to load is started anew; a first one, if it does nothing at all"),
    ] = 300.0
    max_connections: Annotated[int, Meta(ge=1), _doc("open sockets")] = 4096
    max_connections_per_address: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _doc("of them, from one address (IPv6: from one /64 network); else 256, and from this machine any number"),
    ] = None
    max_handshakes: Annotated[int, Meta(ge=1), _doc("connections that have not said yet what they want")] = 1024
    handshake_s: Annotated[float, Meta(gt=0), _doc("how long a connection may take to say it, in seconds")] = 10.0
    max_lanes: Annotated[int, Meta(ge=1), _doc("lanes of one socket")] = 128
    max_running_per_socket: Annotated[
        int, Meta(ge=1), _doc("responses of one socket that run at once; the rest wait in their lanes")
    ] = 64
    max_messages_per_s: Annotated[
        float, Meta(gt=0), _doc("messages that one socket may send in a second; after a silence five times as many")
    ] = 200.0
    max_message: Annotated[str, _doc("the largest message that a client may send, such as 2MiB")] = "2MiB"
    socket_idle_s: Annotated[
        float, Meta(gt=0), _doc("a socket on which nothing is asked for so long is closed, in seconds")
    ] = 3600.0
    socket_age_s: Annotated[float, Meta(gt=0), _doc("how long a socket may live, in seconds")] = 3600.0
    reader_patience_s: Annotated[
        float,
        Meta(gt=0),
        _doc("a client that takes less than 16 KiB of its answers, and not all, in so many seconds is let go"),
    ] = 60.0
    keys_file: Annotated[
        str | None,
        _doc("a TOML file of hashed keys that clients must present, with the limits of each; rota key NAME makes one"),
    ] = None
    api_keys: Annotated[
        tuple[str, ...],
        _doc("more of such keys, in clear, each NAME=KEY; without any key, everyone may ask"),
    ] = ()
    key_tiers: Annotated[
        tuple[str, ...], _doc("the best tier that requests of a key get, each NAME=TIER; without an entry, any")
    ] = ()
    origins: Annotated[
        tuple[str, ...], _doc("pages of other origins that may connect, such as https://shop.example")
    ] = ()
    tls_cert: Annotated[str | None, _doc("a PEM file with the certificate chain: then all is said under TLS")] = None
    tls_key: Annotated[str | None, _doc("a PEM file with the certificate's private key")] = None
    trusted_proxies: Annotated[
        tuple[str, ...],
        _doc("networks of proxies, such as 127.0.0.1 or 10.0.0.0/8, that are believed about whom they pass on"),
    ] = ()
    proxy_header: Annotated[
        Literal["x-forwarded-for", "forwarded"], _doc("the header in which those proxies say it")
    ] = "x-forwarded-for"
    allow_no_key: Annotated[bool, _doc("listen beyond loopback although no key is configured")] = False
    log_format: Annotated[
        Literal["auto", "console", "json"], _doc("auto is console on a terminal and JSON lines elsewhere")
    ] = "auto"

    trace: Annotated[
        str | None,
        _doc("write every message between actors to this file, to be read by rota trace; no text and no key is in it"),
    ] = None
    trace_bytes: Annotated[str, _doc("how large a file of the trace becomes before the next is begun")] = "256MiB"
    trace_files: Annotated[int, Meta(ge=1), _doc("files of the trace that are kept, the one written to among them")] = 4

    @property
    def kv_memory_bytes(self) -> int | None:
        return None if self.kv_memory is None else parse_size(self.kv_memory)

    @property
    def max_message_bytes(self) -> int:
        return parse_size(self.max_message)

    @property
    def trace_file_bytes(self) -> int:
        return parse_size(self.trace_bytes)

    @property
    def tiers(self) -> Tiers:
        """The targets, with what each key may have of them."""
        limits = self.keys.limits
        best = {name: each.tier for name, each in limits.items() if each.tier is not None}
        floors = {name: each.floor for name, each in limits.items() if each.floor is not None}
        return Tiers(self.targets, best, floors)

    @cached_property
    def keys(self) -> Keys:
        """Who may ask, and how much. Reads the file of keys; raises ConfigError when it cannot be used."""
        return keys_of(self)


_FORMS = {
    "api_keys": "NAME=KEY",
    "key_tiers": "NAME=TIER",
    "targets": "TIER=TTFT_MS/ITL_MS",
    "trusted_proxies": "NETWORK",
}
"""How one of several is written."""
_SIZES = ("kv_memory", "max_message", "trace_bytes")
_LEAST_MESSAGE_BYTES = 2**12
_LEAST_TRACE_BYTES = 2**16
"""Several of what is written at once, as a rule."""
_MOST_BYTES = 2**50
"""Far above any machine's memory, and far below what a message between processes can say."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_size(text: str) -> int:
    """Bytes from a size such as 4GiB, 512MiB, 2G or a plain number. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write one like 4GiB or 512MiB.")
    size = float(match[1]) * _UNITS[(match[2] or "").lower()]
    if size > _MOST_BYTES:
        raise ConfigError(f"{text!r} is more memory than there can be; the most is {_MOST_BYTES // 2**40:,} TiB.")
    return int(size)


def flag(name: str) -> str:
    """`kv_memory` -> `--kv-memory`."""
    return "--" + name.replace("_", "-")


def _description(annotation: Any) -> str:
    return next(meta.description for meta in get_args(annotation) if isinstance(meta, Meta) and meta.description)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for every field, and `--config`. Unset flags are left out of the namespace."""
    parser.add_argument("--config", metavar="FILE", help="a TOML file with these settings; rota.toml if it is here")
    hints = get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        annotation = hints[field.name]
        inner = get_args(annotation)[0]
        default = "" if field.default in (None, ()) else f" [{field.default}]"
        described = f"{_description(annotation)}{default}"
        if inner is bool:
            parser.add_argument(
                flag(field.name), action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=described
            )
        elif inner is TierTable or get_origin(inner) is tuple:
            parser.add_argument(
                flag(field.name),
                action="append",
                default=argparse.SUPPRESS,
                metavar=_FORMS.get(field.name, field.name.upper().removesuffix("S")),
                help=described + "; several: separated by commas, or the flag repeated",
            )
        else:
            metavar = "|".join(get_args(inner)) if get_origin(inner) is Literal else field.name.upper()
            parser.add_argument(flag(field.name), default=argparse.SUPPRESS, metavar=metavar, help=described)


def load(flags: Mapping[str, Any], environment: Mapping[str, str], folder: Path) -> Config:
    """The settings from flags, ROTA_* variables and the file, the earlier ones winning.

    `folder` is where rota.toml is looked for when no file is named. Raises ConfigError naming the setting.
    """
    names = [field.name for field in msgspec.structs.fields(Config)]
    variables = _from_environment(environment, names)
    named = flags.get("config") or variables.pop("config", None)
    path = Path(named) if named else folder / "rota.toml"
    values: dict[str, Any] = {}
    if named or path.is_file():
        values |= _from_file(path, names)
    for name in variables.keys() & set(names):
        values[name] = _convert(name, variables[name], f"ROTA_{name.upper()}")
    for name in flags.keys() & set(names):
        values[name] = _convert(name, flags[name], flag(name))
    config = msgspec.convert(values, Config)
    _check(config)
    return config


def refuse_unknown_flags(unknown: Sequence[str]) -> None:
    """Raises ConfigError for the first argument that is no flag of ours, naming the nearest that is."""
    if unknown:
        names = [field.name.replace("_", "-") for field in msgspec.structs.fields(Config)]
        given = unknown[0].partition("=")[0]
        raise ConfigError(f"{given} is not a setting.{_nearest(given.lstrip('-'), names, '--{}', str)}")


def _from_environment(environment: Mapping[str, str], names: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for variable, value in environment.items():
        if variable.startswith("ROTA_") and variable != KEY_OF_A_CLIENT:
            name = variable.removeprefix("ROTA_").lower()
            if name not in (*names, "config"):
                raise ConfigError(f"{variable} is not a setting.{_nearest(name, names, 'ROTA_{}', str.upper)}")
            given[name] = value
    return given


def _from_file(path: Path, names: list[str]) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} is not TOML: {error}.") from None
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if isinstance(value, dict) and name != "targets":
            raise ConfigError(f"{path}: [{key}] is a table, and settings stand alone: write max_context = 4096.")
        if name not in names:
            raise ConfigError(f"{path}: {key!r} is not a setting.{_nearest(name, names, '{}', str)}")
        if isinstance(value, dict):
            # TOML gives a table all that follows it.
            astray = next((inner for inner in value if inner.replace("-", "_") in names), None)
            if astray is not None:
                raise ConfigError(f"{path}: {astray} stands under [{key}]: move it above that line.")
        values[name] = _convert(name, value, f"{path}: {key}")
    return values


def _nearest(name: str, names: Iterable[str], form: str, spell: Any) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" Did you mean {form.format(spell(near[0]))}?" if near else ""


def _convert(name: str, value: Any, where: str) -> Any:
    """`value` as the field's type; text is read as a number or a list where the field is one."""
    annotation = get_type_hints(Config, include_extras=True)[name]
    inner = get_args(annotation)[0]
    if inner is TierTable:
        try:
            return table_of(value)
        except TargetsError as error:
            raise ConfigError(f"{where} {error}") from None
    if get_origin(inner) is tuple and isinstance(value, str | list):
        given = [value] if isinstance(value, str) else value
        value = [part for one in given for part in (one.split(",") if isinstance(one, str) else [one]) if part]
    if name in _SIZES and isinstance(value, int):
        value = str(value)  # a plain number of bytes is a size, and TOML need not quote it
    if isinstance(value, str) and type(None) in get_args(inner) and value.lower() in ("none", ""):
        value = None
    try:
        converted = msgspec.convert(value, annotation, strict=False)
    except msgspec.ValidationError as error:
        choices = get_args(inner) if get_origin(inner) is Literal else ()
        reason = f"it is one of {', '.join(choices)}" if choices else _reason(error)
        refused = "used" if name in ("api_keys", "key_tiers") else repr(value)
        raise ConfigError(f"{where} cannot be {refused}: {reason}.") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ConfigError(f"{where} cannot be {value!r}: it must be a finite number.")
    return converted


def _reason(error: msgspec.ValidationError) -> str:
    text = str(error).replace("`", "").replace(" | null", "").removeprefix("Expected ")
    if text == "Number out of range":
        return "it must be a finite number"
    kinds = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list"}
    wanted = text.partition(", got ")[0]
    kind, _, bound = wanted.partition(" ")
    return f"it must be {kinds.get(kind, kind)}{f' {bound}' if bound else ''}"


def _check(config: Config) -> None:
    """What no single field can know. Raises ConfigError."""
    if config.kv_memory is not None:
        parse_size(config.kv_memory)
    if config.trace_file_bytes < _LEAST_TRACE_BYTES:
        raise ConfigError(
            f"Trace files of {config.trace_bytes} are too small: the least is {_LEAST_TRACE_BYTES // 2**10} KiB. Set "
            "--trace-bytes."
        )
    if config.max_message_bytes < _LEAST_MESSAGE_BYTES:
        raise ConfigError(
            f"Messages of {config.max_message} are too small for any request: the least is "
            f"{_LEAST_MESSAGE_BYTES // 2**10} KiB. Set --max-message."
        )
    check_doors(config)
