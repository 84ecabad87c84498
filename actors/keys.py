"""API keys: whose a key is, and how much its owner may ask for.

Knows names, hashes and limits, how the file of them is written, and how a key is made. Holds no key, only hashes, so
that nothing which reads this process's memory of them, or the file, can ask in anybody's name. Knows nothing of headers
and sockets, and keeps no count of what was asked: that is admission's.

The hash is one SHA-256. A slow hash (scrypt, Argon2) makes guessing dear where there is something to guess: passwords.
A key made here is 256 random bits, which nobody guesses at any price, and it is hashed anew for every connection: a
slow hash would only hand whoever sends wrong keys a way to keep the event loop busy.
"""

import hashlib
import hmac
import math
import re
import secrets
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct, structs

from actors.targets import TIERS, Target, nearest_tier

NAME = r"[A-Za-z0-9_.-]+"
NAME_IN_WORDS = "letters, digits, dots, dashes and underscores"
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_PREFIX = "rota_"
"""So that who finds a key in a text, or a program that looks for such, knows what it is."""
_RANDOM_BYTES = 32
_MOST_PER_MINUTE = 1_000_000
_MOST_RUNNING = 1_000_000


class KeysError(Exception):
    """Keys that cannot be used. The message is one sentence, without any key in it."""


class KeyLimits(Struct, frozen=True, kw_only=True):
    """What the owner of one key may ask for. None: as much as anybody may."""

    requests_per_minute: int | None = None
    """Accepted within any 60 seconds."""
    running: int | None = None
    """On the device at once. As many again may wait; more are refused."""
    tier: str | None = None
    """The best service tier."""
    ttft_ms: float | None = None
    """No request is promised its first token sooner, whatever it asks for."""
    itl_ms: float | None = None
    """Nor its tokens closer together."""

    @property
    def floor(self) -> Target | None:
        """The tightest targets there are for this key, beside its tier's."""
        if self.ttft_ms is None and self.itl_ms is None:
            return None
        return Target(self.ttft_ms or 0.0, self.itl_ms or 0.0)


class Key(Struct, frozen=True):
    """One key, without the key."""

    digest: bytes
    limits: KeyLimits = KeyLimits()


class Keys:
    """All keys by their owners' names. None at all: everybody may ask, as the owner ""."""

    def __init__(self, named: Mapping[str, Key] | None = None) -> None:
        """Raises KeysError when two names have one key: nobody could say whose it is."""
        self._named = dict(named or {})
        owners: dict[bytes, str] = {}
        for name, key in self._named.items():
            if key.digest in owners:
                raise KeysError(f"{owners[key.digest]!r} and {name!r} have the same key. Give each its own.")
            owners[key.digest] = name

    @classmethod
    def in_clear(cls, keys: Mapping[str, str]) -> "Keys":
        """Of keys by name, as a flag or a variable has them. Raises KeysError."""
        return cls({name: Key(digest(key)) for name, key in keys.items()})

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, name: str) -> bool:
        return name in self._named

    @property
    def limits(self) -> dict[str, KeyLimits]:
        """By name."""
        return {name: key.limits for name, key in self._named.items()}

    @property
    def per_minute(self) -> dict[str, int]:
        """Of those that have such a bound, as of `running`."""
        every = self.limits.items()
        return {name: each.requests_per_minute for name, each in every if each.requests_per_minute is not None}

    @property
    def running(self) -> dict[str, int]:
        return {name: each.running for name, each in self.limits.items() if each.running is not None}

    def whose(self, given: str) -> str | None:
        """The owner's name; "" when no key is needed, None when none fits."""
        if not self._named:
            return ""
        hashed = digest(given)
        # All of them are compared, each in constant time: how long it takes says nothing of which one was near.
        owner = None
        for name, key in self._named.items():
            if hmac.compare_digest(key.digest, hashed):
                owner = name
        return owner


def digest(key: str) -> bytes:
    """What is kept of a key. `key` may hold what a header can, valid UTF-8 or not."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def new_key() -> str:
    """A key that nobody can guess, of characters that a header, a subprotocol and a shell take as they are."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def table_of(name: str, key: str) -> str:
    """What stands in the file for this key."""
    quoted = f'"{name}"' if "." in name else name
    return f'[{quoted}]\nhash = "sha256:{digest(key).hex()}"\n'


# --- reading the file ------------------------------------------------------------------------------------------------


def read_keys(path: Path) -> dict[str, Key]:
    """The keys in a file of tables such as `table_of` makes, each with limits or without. Raises KeysError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KeysError(f"The keys in {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise KeysError(f"The keys in {path} cannot be read: it is not TOML.") from None
    except tomllib.TOMLDecodeError as error:
        raise KeysError(_not_toml(path, str(error))) from None
    return {name: _key(path, name, table) for name, table in tables.items()}


def _not_toml(path: Path, said: str) -> str:
    """`said` by the parser. But for where it is, and a name, it is not repeated: it may hold what stands there."""
    place = re.search(r"\(at .*\)$", said)
    where = f" {place[0]}" if place else ""
    twice = re.match(rf"Cannot declare \('({NAME})',\) twice", said)
    if twice is not None:
        return f"{path}: {twice[1]} is there twice{where}. Take one of the two out, or give it another name."
    return f"The keys in {path} cannot be read: it is not TOML{where}."


def _key(path: Path, name: str, table: object) -> Key:
    if not re.fullmatch(NAME, name):
        raise KeysError(f"{path} names a key otherwise than by {NAME_IN_WORDS}.")
    if not isinstance(table, dict):
        # Not named: it may be a key that stands where its owner's name belongs.
        raise KeysError(f"{path}: each key is a table of its own. Write the two lines that `rota key NAME` prints.")
    fields = structs.fields(KeyLimits)
    for field in table:
        if field != "hash" and field not in {each.name for each in fields}:
            names = ["hash", *(each.name for each in fields)]
            near = get_close_matches(field, names, n=1)
            if near:
                raise KeysError(f"{path}: {name} has {field}, which no key has. Did you mean {near[0]}?")
            # Not named: it may be the key itself.
            raise KeysError(f"{path}: {name} has something that no key has. A key has {', '.join(names)}.")
    hashed = table.get("hash")
    match = _HASH.fullmatch(hashed) if isinstance(hashed, str) else None
    if match is None:
        # What stands there is not repeated: it may be the key itself.
        raise KeysError(
            f'{path}: {name} needs the hash of its key, as in hash = "sha256:…" with 64 hexadecimal digits. '
            f"`rota key {name}` makes a key and prints that line."
        )
    limits = KeyLimits(
        requests_per_minute=_count(path, name, table, "requests_per_minute", _MOST_PER_MINUTE),
        running=_count(path, name, table, "running", _MOST_RUNNING),
        tier=_tier(path, name, table.get("tier")),
        ttft_ms=_milliseconds(path, name, table, "ttft_ms"),
        itl_ms=_milliseconds(path, name, table, "itl_ms"),
    )
    return Key(bytes.fromhex(match[1]), limits)


def _count(path: Path, name: str, table: Mapping[str, object], field: str, most: int) -> int | None:
    value = table.get(field)
    if value is None:
        return None
    # `true` is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise KeysError(f"{path}: {name}.{field} must be a whole number from 1 to {most:,}.")
    return value


def _milliseconds(path: Path, name: str, table: Mapping[str, object], field: str) -> float | None:
    value = table.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise KeysError(f"{path}: {name}.{field} must be a number of milliseconds above 0.")
    return float(value)


def _tier(path: Path, name: str, tier: object) -> str | None:
    if tier is None:
        return None
    if tier not in TIERS:
        raise KeysError(f"{path}: {name}.tier is no tier. {nearest_tier(str(tier)[:40])}")
    return str(tier)
