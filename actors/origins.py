"""Which pages may connect: a browser says where a page came from, and nobody else can make it say so.

A browser opens a WebSocket for any page to any server and sends along what that server would take for its own reader's
(cross-site WebSocket hijacking), so the server has to look at `Origin` itself. Knows how two origins are compared
(RFC 6454: scheme, host and port). Knows nothing of keys, and nothing of who is connected.
"""

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """One site, as it is compared."""

    scheme: str
    host: str
    port: int


def origin_of(text: str) -> Origin | None:
    """The origin that `text` says, in any case and with or without a default port; None when it is none (`null`)."""
    try:
        parts = urlsplit(text)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError:
        return None
    if (
        scheme not in _DEFAULT_PORTS
        or not host
        or "*" in host
        or parts.path
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        return None
    return Origin(scheme, _canonical(host), _DEFAULT_PORTS[scheme] if port is None else port)


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, whoever asks."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Origins:
    """The pages of other sites that may connect, and the server's own."""

    def __init__(self, listed: Sequence[str], *, loopback_only: bool) -> None:
        """`loopback_only`: the server listens where only this machine can reach it."""
        self._listed = {origin for text in listed if (origin := origin_of(text)) is not None}
        self._loopback_only = loopback_only

    def listed(self, text: str) -> bool:
        return origin_of(text) in self._listed

    def allowed(self, text: str, scheme: str, host: str, *, proxied: bool) -> bool:
        """Whether a page of the origin `text` may connect to what it reached as `scheme`://`host`.

        `proxied`: a trusted proxy says so.
        """
        origin = origin_of(text)
        if origin is None:
            return False
        if origin in self._listed:
            return True
        if origin != origin_of(f"{scheme}://{host}"):
            return False
        # A name that its owner points at 127.0.0.1 makes any page the "own host" of a server that listens there.
        return proxied or not self._loopback_only or is_loopback(origin.host)


def _canonical(host: str) -> str:
    """In lower case; an IPv6 address in its one short form."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()
