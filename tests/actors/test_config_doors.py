"""Settings of the doors that only together can be right or wrong: keys and their file, TLS, proxies."""

from pathlib import Path

import pytest

from actors import config
from actors.keys import KeyLimits, table_of
from actors.targets import Target
from tests.actors.certificates import make_certificate
from tests.actors.test_config import load, refusal


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(table_of("anna", "hush") + "ttft_ms = 700\nrunning = 2\nrequests_per_minute = 3\n")
    return path


def test_keys_come_from_the_file_and_from_flags_together(keys_file: Path, tmp_path: Path) -> None:
    found = load(tmp_path, "--keys-file", str(keys_file), "--api-keys", "bert=secret")
    assert (found.keys.whose("hush"), found.keys.whose("secret"), found.keys.whose("x")) == ("anna", "bert", None)
    assert found.keys.limits == {
        "anna": KeyLimits(ttft_ms=700.0, running=2, requests_per_minute=3),
        "bert": KeyLimits(),
    }
    assert (found.keys.running, found.keys.per_minute) == ({"anna": 2}, {"anna": 3})
    assert found.keys is found.keys, "the file is read once"


def test_the_file_may_be_named_by_a_variable_or_a_key(keys_file: Path, tmp_path: Path) -> None:
    assert "anna" in load(tmp_path, environment={"ROTA_KEYS_FILE": str(keys_file)}).keys
    assert "anna" in load(tmp_path, file=f'keys_file = "{keys_file}"\n').keys


def test_a_key_of_the_file_is_enough_to_listen_beyond_loopback(keys_file: Path, tmp_path: Path) -> None:
    assert load(tmp_path, "--host", "0.0.0.0", "--keys-file", str(keys_file)).host == "0.0.0.0"


@pytest.mark.parametrize("more", [(), ("--host", "0.0.0.0"), ("--host", "0.0.0.0", "--allow-no-key")])
def test_a_file_of_keys_without_one_lets_nobody_in_instead_of_everyone(
    keys_file: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    keys_file.write_text("# none yet\n")
    assert refusal(tmp_path, "--keys-file", str(keys_file), *more) == (
        f"There is no key in {keys_file}, and without one everyone would be let in. "
        "Make one with `rota key NAME`, or leave --keys-file out."
    )


def test_targets_are_kept_from_being_tighter_than_the_key_allows(keys_file: Path, tmp_path: Path) -> None:
    tiers = load(tmp_path, "--keys-file", str(keys_file), "--key-tiers", "anna=priority").tiers
    assert tiers.resolve("ultrafast", None, None, "anna") == ("priority", 2.0, 0.15)
    assert tiers.resolve("priority", 10.0, 10.0, "anna") == ("priority", 2.0, 0.15)
    tiers = load(tmp_path, "--keys-file", str(keys_file)).tiers
    assert tiers.resolve("ultrafast", 10.0, None, "anna") == ("ultrafast", 0.7, 0.1)
    assert tiers.resolve("ultrafast", None, None) == ("ultrafast", 1.0, 0.1)
    assert load(tmp_path, "--keys-file", str(keys_file)).keys.limits["anna"].floor == Target(700.0, 0.0)


def test_what_cannot_be_used_of_the_file_is_said_as_a_setting_s_fault(keys_file: Path, tmp_path: Path) -> None:
    assert "missing.toml cannot be read" in refusal(tmp_path, "--keys-file", str(tmp_path / "missing.toml"))
    assert refusal(tmp_path, "--keys-file", str(keys_file), "--api-keys", "anna=other") == (
        f"There is a key 'anna' in {keys_file} and in api_keys. Take one out."
    )
    assert refusal(tmp_path, "--keys-file", str(keys_file), "--api-keys", "bert=hush") == (
        "'anna' and 'bert' have the same key. Give each its own."
    )
    keys_file.write_text(table_of("anna", "hush") + 'tier = "flex"\n')
    assert refusal(tmp_path, "--keys-file", str(keys_file), "--key-tiers", "anna=fast") == (
        "The key 'anna' has a tier in its file and one in key_tiers. Take one out."
    )


# --- TLS ---


def test_a_certificate_and_its_key_are_taken(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    found = load(tmp_path, "--tls-cert", str(certificate), "--tls-key", str(key))
    assert (found.tls_cert, found.tls_key) == (str(certificate), str(key))


def test_each_needs_the_other(tmp_path: Path) -> None:
    assert refusal(tmp_path, "--tls-cert", "x") == (
        "--tls-cert needs --tls-key beside it: a certificate and its private key."
    )
    assert refusal(tmp_path, "--tls-key", "x").startswith("--tls-key needs --tls-cert beside it")


def test_a_certificate_that_cannot_be_used_is_told_why_before_anything_starts(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    _, other = make_certificate(tmp_path, "other")
    _, locked = make_certificate(tmp_path, "locked", password="hush")

    def said(certificate: Path, key: Path) -> str:
        return refusal(tmp_path, "--tls-cert", str(certificate), "--tls-key", str(key))

    assert (
        said(tmp_path / "missing", key)
        == f"--tls-cert {tmp_path / 'missing'} cannot be read: No such file or directory."
    )
    assert said(certificate, other) == f"The private key {other} is not that of the certificate {certificate}."
    assert "is locked with a password" in said(certificate, locked)
    assert said(key, certificate).startswith(f"--tls-cert {key} has no certificate in it")
    assert said(certificate, certificate).startswith(f"--tls-key {certificate} has no private key in it")
    broken = tmp_path / "broken.pem"
    broken.write_text(certificate.read_text().replace("M", "*"))
    assert "cannot be used: " in said(broken, key)


# --- proxies ---


@pytest.mark.parametrize("network", ["127.0.0.1", "10.0.0.0/8", "fd00::/8", "::1"])
def test_a_proxy_is_an_address_or_a_network(network: str, tmp_path: Path) -> None:
    assert load(tmp_path, "--trusted-proxies", network).trusted_proxies == (network,)


@pytest.mark.parametrize(
    ("network", "why"), [("nginx", ""), ("10.0.0.1/8", ": it has bits set behind its mask"), ("10.0.0.0/40", "")]
)
def test_what_is_no_network_is_refused(network: str, why: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, "--trusted-proxies", network) == (
        f"trusted_proxies has {network!r}, which is no network{why}; write 127.0.0.1, 10.0.0.0/8 or fd00::/8."
    )


def test_the_help_shows_how_networks_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    config.add_arguments(parser)
    assert "--trusted-proxies NETWORK" in parser.format_help()


def test_a_key_may_have_a_best_tier(tmp_path: Path) -> None:
    keys = ("--api-keys", "anna=a,bert=b", "--key-tiers", "anna=flex")
    tiers = load(tmp_path, *keys, "--targets", "flex=9000/900").tiers
    assert tiers.resolve("priority", None, None, "anna") == ("flex", 9.0, 0.9)
    assert tiers.resolve("priority", None, None, "bert") == ("priority", 2.0, 0.15)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("ann=flex", "key_tiers names 'ann', and no API key has that name. Did you mean anna?"),
        ("zzz=flex", "key_tiers names 'zzz', and no API key has that name."),
        ("anna=prio", "key_tiers gives 'anna' the tier 'prio', which there is not. Did you mean priority?"),
        (
            "anna=gold",
            "key_tiers gives 'anna' the tier 'gold', which there is not. "
            "The tiers are default, flex, scale, priority, fast, ultrafast.",
        ),
        (
            "anna=hush",
            "key_tiers gives 'anna' a tier that there is not. "
            "The tiers are default, flex, scale, priority, fast, ultrafast.",
        ),
        ("anna", "The tier of a key is written NAME=TIER, such as anna=flex."),
        ("anna=", "The tier of a key is written NAME=TIER, such as anna=flex."),
    ],
)
def test_a_tier_of_no_key_and_no_tier_of_a_key_are_refused(entry: str, sentence: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, "--api-keys", "anna=hush", "--key-tiers", entry) == sentence


@pytest.mark.parametrize("origin", ["https://shop.example", "http://localhost:5173", "https://[::1]:8443"])
def test_an_origin_is_a_scheme_and_a_host(origin: str, tmp_path: Path) -> None:
    assert load(tmp_path, "--origins", origin).origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        "shop.example",
        "https://shop.example/",
        "https://shop.example/chat",
        "ws://shop.example",
        "*",
        "https://*.shop.example",
        "null",
    ],
)
def test_what_is_no_origin_is_refused_since_no_page_could_ever_have_it(origin: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, "--origins", f"https://a.example,{origin}") == (
        f"{origin!r} is not an origin; write one like https://shop.example, without a path."
    )


@pytest.mark.parametrize("key", ["anna=secret", "team-1.b_c=sk-=+/!~"])
def test_a_key_is_a_name_and_visible_characters(key: str, tmp_path: Path) -> None:
    assert load(tmp_path, "--api-keys", key).api_keys == (key,)


@pytest.mark.parametrize("key", ["secret", "anna=", "=secret", "anna=two words", "an na=secret", "anna=schlüssel"])
def test_what_is_no_key_is_refused(key: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, "--api-keys", key).startswith("An API key is written NAME=KEY: ")


def test_a_key_is_not_repeated_in_the_message_about_it(tmp_path: Path) -> None:
    assert "hush" not in refusal(tmp_path, "--api-keys", "hush")
    assert refusal(tmp_path, file='api_keys = ["anna=hush", 3]\n') == (
        f"{tmp_path / 'rota.toml'}: api_keys cannot be used: it must be text."
    )


def test_beyond_loopback_a_key_is_needed_or_an_explicit_word(tmp_path: Path) -> None:
    message = refusal(tmp_path, "--host", "0.0.0.0")
    assert "Listening on 0.0.0.0 would let everyone" in message
    assert load(tmp_path, "--host", "0.0.0.0", "--allow-no-key").host == "0.0.0.0"
    assert load(tmp_path, "--host", "0.0.0.0", "--api-keys", "anna=secret").api_keys == ("anna=secret",)
    for loopback in ("127.0.0.1", "localhost", "::1"):
        assert load(tmp_path, "--host", loopback).host == loopback
