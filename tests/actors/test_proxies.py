"""Who is behind a proxy: only trusted ones are believed, and only as far as they can know."""

import pytest
from websockets.datastructures import Headers

from actors.proxies import Proxies, Visitor, neighbourhood, parse_address

TRUSTED = ("127.0.0.1", "10.0.0.0/8", "fd00::/8")


def visitor(peer: str, *headers: tuple[str, str], secure: bool = False, **options: str) -> Visitor:
    proxies = Proxies(TRUSTED, header=options.get("header", "x-forwarded-for"))  # type: ignore[arg-type]
    found = Headers()
    for name, value in headers:
        found[name] = value
    return proxies.visitor(peer, found, secure=secure)


def test_whoever_is_no_trusted_proxy_speaks_for_himself_whatever_he_writes() -> None:
    forged = (("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Proto", "https"), ("Forwarded", "for=1.2.3.4;proto=https"))
    assert visitor("203.0.113.9", *forged) == Visitor("203.0.113.9", "http", proxied=False)
    assert visitor("203.0.113.9", *forged, secure=True) == Visitor("203.0.113.9", "https", proxied=False)
    assert Proxies().visitor("127.0.0.1", Headers(), secure=False) == Visitor("127.0.0.1", "http", proxied=False)


@pytest.mark.parametrize(
    ("chain", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("1.2.3.4, 203.0.113.9", "203.0.113.9"),  # what stands left of the visitor he has made up
        ("10.9.9.9, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),  # all of them are ours: the farthest
        ("", "127.0.0.1"),
        ("1.2.3.4, unknown", "127.0.0.1"),
        ("1.2.3.4, unknown, 10.0.0.2", "10.0.0.2"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:DB8::1]:4711", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, ::ffff:10.0.0.2", "203.0.113.9"),
    ],
)
def test_the_visitor_is_the_right_most_who_is_no_trusted_proxy(chain: str, address: str) -> None:
    assert visitor("127.0.0.1", ("X-Forwarded-For", chain)).address == address


def test_a_header_that_comes_twice_is_one_list() -> None:
    two = (("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-For", "203.0.113.9, 10.0.0.2"))
    assert visitor("127.0.0.1", *two).address == "203.0.113.9"


@pytest.mark.parametrize(
    ("said", "scheme"),
    [("https", "https"), ("HTTPS", "https"), ("http", "http"), ("ws", "http"), ("https, http", "http")],
)
def test_the_scheme_is_what_the_last_proxy_says(said: str, scheme: str) -> None:
    found = visitor("10.0.0.2", ("X-Forwarded-For", "203.0.113.9"), ("X-Forwarded-Proto", said))
    assert found == Visitor("203.0.113.9", scheme, proxied=True)


@pytest.mark.parametrize(
    ("element", "address", "scheme"),
    [
        ("for=203.0.113.9;proto=https;host=x", "203.0.113.9", "https"),
        ('For="[2001:db8::1]:4711"; Proto=HTTPS', "2001:db8::1", "https"),
        ("for=1.2.3.4;proto=https, for=203.0.113.9;proto=http", "203.0.113.9", "http"),
        ("for=203.0.113.9;proto=https, for=10.0.0.2;proto=http", "203.0.113.9", "https"),
        ("for=_hidden;proto=https", "127.0.0.1", "http"),
        ("nonsense", "127.0.0.1", "http"),
    ],
)
def test_forwarded_is_read_when_the_proxies_say_it_there(element: str, address: str, scheme: str) -> None:
    found = visitor("127.0.0.1", ("Forwarded", element), ("X-Forwarded-For", "6.6.6.6"), header="forwarded")
    assert found == Visitor(address, scheme, proxied=True)


def test_the_header_that_the_proxies_do_not_write_is_their_visitors_and_is_not_read() -> None:
    chain = (("X-Forwarded-For", "203.0.113.9"), ("Forwarded", "for=6.6.6.6;proto=https"))
    assert visitor("127.0.0.1", *chain) == Visitor("203.0.113.9", "http", proxied=True)


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("::1", "::1"),
        ("", ""),
    ],
)
def test_one_visitor_is_one_address_or_one_network_of_ipv6(address: str, whose: str) -> None:
    assert neighbourhood(address) == whose


@pytest.mark.parametrize("text", ["", "unknown", "_x", "1.2.3", "1.2.3.4.5", "300.1.1.1"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_address(text) is None
