"""Who is behind a proxy: the address and the scheme of a visitor, as far as proxies that are trusted say so.

Whoever connects may write what they like into `X-Forwarded-For`. So it is read only when the connection itself comes
from a trusted proxy, and from the right: each proxy appends whom it was reached by, and the first that is no trusted
proxy is the visitor. What stands left of that the visitor may have made up. One header is read, and not whichever is
there: a proxy passes on the other one as its visitor wrote it.

Knows `X-Forwarded-For` and `Forwarded` (RFC 7239). Knows nothing of origins and limits.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from websockets.datastructures import Headers

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
ProxyHeader = Literal["x-forwarded-for", "forwarded"]


class Visitor(NamedTuple):
    """Whoever asks. `proxied`: a trusted proxy says so."""

    address: str
    scheme: str
    proxied: bool


class Proxies:
    """Those that are believed."""

    def __init__(self, networks: Sequence[str] = (), header: ProxyHeader = "x-forwarded-for") -> None:
        """Raises ValueError for what is no network."""
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._header = header

    def trusts(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and self._trusted(parsed)

    def visitor(self, peer: str, headers: Headers, *, secure: bool) -> Visitor:
        """`peer`: the other end of the connection, which is under TLS when `secure`."""
        scheme = "https" if secure else "http"
        if not self.trusts(peer):
            return Visitor(peer, scheme, proxied=False)
        address = peer
        for hop in self._hops(headers):
            # What is no address names nobody: then the hop that told of it is the last one known.
            parsed = parse_address(hop.address)
            if parsed is None:
                break
            address, scheme = str(parsed), hop.scheme or scheme
            if not self._trusted(parsed):
                break
        if self._header == "x-forwarded-for":
            scheme = _scheme(_last(headers, "X-Forwarded-Proto")) or scheme
        return Visitor(address, scheme, proxied=True)

    def _trusted(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _hops(self, headers: Headers) -> Iterator["_Hop"]:
        """Nearest first."""
        if self._header == "x-forwarded-for":
            for address in reversed(",".join(headers.get_all("X-Forwarded-For")).split(",")):
                yield _Hop(address.strip(), None)
            return
        for element in reversed(",".join(headers.get_all("Forwarded")).split(",")):
            pairs = (pair.partition("=") for pair in element.split(";"))
            said = {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
            yield _Hop(said.get("for", ""), _scheme(said.get("proto", "")))


class _Hop(NamedTuple):
    address: str
    scheme: str | None


def parse_address(text: str) -> Address | None:
    """An address, with a port or without; an IPv4 address that is written as IPv6 is IPv4. None: it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def neighbourhood(address: str) -> str:
    """What counts as one address: of IPv6 its /64, of which a single visitor has all."""
    parsed = parse_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and not parsed.is_loopback:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address if parsed is None else str(parsed)


def _last(headers: Headers, name: str) -> str:
    return ",".join(headers.get_all(name)).rpartition(",")[2].strip()


def _scheme(text: str) -> str | None:
    return text.lower() if text.lower() in ("http", "https") else None
