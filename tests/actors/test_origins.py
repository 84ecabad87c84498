"""Which pages may connect, as two origins are compared."""

import pytest

from actors.origins import Origin, Origins, origin_of


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://chat.example", Origin("https", "chat.example", 443)),
        ("HTTPS://Chat.Example:443", Origin("https", "chat.example", 443)),
        ("http://localhost:8000", Origin("http", "localhost", 8000)),
        ("http://[0:0:0:0:0:0:0:1]:8000", Origin("http", "::1", 8000)),
        ("https://[FD00::A]", Origin("https", "fd00::a", 443)),
    ],
)
def test_an_origin_is_a_scheme_a_host_and_a_port_however_it_is_written(text: str, origin: Origin) -> None:
    assert origin_of(text) == origin


@pytest.mark.parametrize(
    "text",
    ["", "null", "chat.example", "ws://chat.example", "file://", "https://", "https://a/", "https://a/b", "https://a?b",
     "https://a#b", "https://me@a", "https://a,https://b", "https://a:port", "https://a:99999", "http://[::", "http://["],
)  # fmt: skip
def test_what_is_no_origin_equals_none(text: str) -> None:
    assert origin_of(text) is None or origin_of(text) != origin_of("https://a")
    everyone = Origins(["https://a"], loopback_only=False)
    assert not everyone.listed(text)
    assert not everyone.allowed(text, "https", "a", proxied=False)


@pytest.mark.parametrize(
    ("origin", "scheme", "host"),
    [
        ("https://chat.example", "https", "chat.example"),
        ("https://chat.example", "https", "chat.example:443"),
        ("https://chat.example:443", "https", "CHAT.example"),
        ("http://chat.example:8000", "http", "chat.example:8000"),
        ("http://[::1]:8000", "http", "[0::1]:8000"),
    ],
)
def test_the_server_s_own_pages_may_connect(origin: str, scheme: str, host: str) -> None:
    assert Origins([], loopback_only=False).allowed(origin, scheme, host, proxied=False)


@pytest.mark.parametrize(
    ("origin", "scheme", "host"),
    [
        ("http://chat.example", "https", "chat.example"),
        ("https://chat.example", "http", "chat.example"),
        ("https://chat.example:8443", "https", "chat.example"),
        ("https://sub.chat.example", "https", "chat.example"),
        ("https://chat.example.evil.example", "https", "chat.example"),
        ("https://chat.example.", "https", "chat.example"),
        ("https://chat.example", "https", ""),
        ("https://chat.example", "https", "chat.example,evil.example"),
        ("https://chat.example", "https", "evil.example@chat.example"),
        ("null", "https", "null"),
    ],
)
def test_another_scheme_host_or_port_is_another_site(origin: str, scheme: str, host: str) -> None:
    assert not Origins([], loopback_only=False).allowed(origin, scheme, host, proxied=False)


def test_a_listed_site_may_connect_however_it_writes_itself() -> None:
    origins = Origins(["https://Shop.example:443"], loopback_only=True)
    assert origins.allowed("https://shop.example", "http", "127.0.0.1:8000", proxied=False)
    assert not origins.allowed("http://shop.example", "http", "127.0.0.1:8000", proxied=False)


def test_a_name_that_somebody_points_at_this_machine_is_not_the_server_s_own_unless_a_trusted_proxy_says_so() -> None:
    origins = Origins([], loopback_only=True)
    assert not origins.allowed("http://evil.example:8000", "http", "evil.example:8000", proxied=False)
    assert origins.allowed("https://chat.example", "https", "chat.example", proxied=True)
    assert origins.allowed("http://localhost:8000", "http", "localhost:8000", proxied=False)
