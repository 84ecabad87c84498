"""What no single setting of the doors can know: whether keys, origins, TLS and proxies fit together.

Knows what a usable one looks like and how to say what is wrong with another, never with a key in it. Knows nothing of
where settings come from.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from actors.keys import NAME, NAME_IN_WORDS, Key, Keys, KeysError, digest, read_keys
from actors.origins import origin_of
from actors.targets import TIERS, nearest_tier
from actors.tls import TlsError, tls_context

if TYPE_CHECKING:
    from actors.config import Config

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ConfigError(Exception):
    """A setting that cannot be used. The message is one sentence for the person who set it."""


def check_doors(config: "Config") -> None:
    """Raises ConfigError for the first thing that cannot be used."""
    for origin in config.origins:
        if origin_of(origin) is None:
            raise ConfigError(f"{origin!r} is not an origin; write one like https://shop.example, without a path.")
    keys = config.keys
    _check_proxies(config.trusted_proxies)
    if (config.tls_cert is None) != (config.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key") if config.tls_key is None else ("--tls-key", "--tls-cert")
        raise ConfigError(f"{given} needs {missing} beside it: a certificate and its private key.")
    if config.tls_cert is not None and config.tls_key is not None:
        try:
            tls_context(Path(config.tls_cert), Path(config.tls_key))
        except TlsError as error:
            raise ConfigError(str(error)) from None
    if config.host not in LOOPBACK and not keys and not config.allow_no_key:
        raise ConfigError(
            f"Listening on {config.host} would let everyone who can reach it ask without a key. "
            "Make one with `rota key NAME` and set --keys-file, or --allow-no-key if that is what you want."
        )


def keys_of(config: "Config") -> Keys:
    """All keys, from the file and from the other settings. Raises ConfigError."""
    for key in config.api_keys:
        if not re.fullmatch(rf"{NAME}=[!-~]+", key):
            raise ConfigError(f"An API key is written NAME=KEY: a name of {NAME_IN_WORDS}, a key of visible ASCII.")
    in_clear = dict(key.split("=", 1) for key in config.api_keys)
    try:
        named = {} if config.keys_file is None else read_keys(Path(config.keys_file))
        for name, key in in_clear.items():
            if name in named:
                raise KeysError(f"There is a key {name!r} in {config.keys_file} and in api_keys. Take one out.")
            named[name] = Key(digest(key))
        if config.keys_file is not None and not named:
            raise KeysError(
                f"There is no key in {config.keys_file}, and without one everyone would be let in. "
                "Make one with `rota key NAME`, or leave --keys-file out."
            )
        _add_tiers(named, config.key_tiers, in_clear)
        return Keys(named)
    except KeysError as error:
        raise ConfigError(str(error)) from None


def _add_tiers(named: dict[str, Key], entries: Sequence[str], in_clear: Mapping[str, str]) -> None:
    for entry in entries:
        name, separator, tier = entry.partition("=")
        if not (name and separator and tier):
            raise ConfigError("The tier of a key is written NAME=TIER, such as anna=flex.")
        if name not in named:
            near = get_close_matches(name, named, n=1, cutoff=0.5)
            advice = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(f"key_tiers names {name!r}, and no API key has that name.{advice}")
        if tier not in TIERS:
            # Not repeated where it may be a key that was meant for --api-keys.
            a_word = re.fullmatch("[a-z_]{1,16}", tier) and tier not in in_clear.values()
            given = f"the tier {tier!r}, which there is not" if a_word else "a tier that there is not"
            raise ConfigError(f"key_tiers gives {name!r} {given}. {nearest_tier(tier)}")
        key = named[name]
        if key.limits.tier is not None:
            raise ConfigError(f"The key {name!r} has a tier in its file and one in key_tiers. Take one out.")
        named[name] = structs.replace(key, limits=structs.replace(key.limits, tier=tier))


def _check_proxies(networks: Sequence[str]) -> None:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            # "10.0.0.1/8 has host bits set" helps; what else it says does not.
            why = ": it has bits set behind its mask" if "host bits" in str(error) else ""
            raise ConfigError(
                f"trusted_proxies has {network!r}, which is no network{why}; write 127.0.0.1, 10.0.0.0/8 or fd00::/8."
            ) from None
