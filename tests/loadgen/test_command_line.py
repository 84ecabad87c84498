import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.command_line import DEFAULT_URL, Misuse, is_loopback, server_url
from loadgen.load import run
from protocol.scenario_arguments import targets
from tests.loadgen.load_command import parsed


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8000", DEFAULT_URL),
        ("127.0.0.1", DEFAULT_URL),
        ("http://127.0.0.1:8000", DEFAULT_URL),
        ("HTTP://127.0.0.1:8000/", DEFAULT_URL),
        ("ws://127.0.0.1:8000/v1", DEFAULT_URL),
        ("ws://127.0.0.1:8000/v1/", DEFAULT_URL),
        (DEFAULT_URL, DEFAULT_URL),
        ("http://localhost", "ws://localhost/v1/responses"),
        ("https://localhost:8443", "wss://localhost:8443/v1/responses"),
        ("wss://localhost/other?x=1", "wss://localhost/other?x=1"),
        ("[::1]:9000", "ws://[::1]:9000/v1/responses"),
    ],
)
def test_every_way_to_write_the_server_means_the_same_socket(text: str, url: str) -> None:
    assert server_url(text) == url
    assert server_url(url) == url


@pytest.mark.parametrize(
    "text",
    ["", "ftp://localhost", "ws://", "localhost:port", "localhost:99999", "a b", "ws://me:pw@localhost", "[::1", "x#y"],
)
def test_what_is_no_url_is_told_in_a_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parsed(text)) == 2
    assert capsys.readouterr().err.count("\n") == 1


@given(st.text())
def test_any_text_is_a_url_or_misuse(text: str) -> None:
    try:
        url = server_url(text)
    except Misuse:
        return
    assert url.startswith(("ws://", "wss://"))


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(f"ws://{host}:8000/v1/responses")


@pytest.mark.parametrize("host", ["example.org", "10.0.0.1", "0.0.0.0", "localhost.example.org", "[2001:db8::1]"])
def test_another_machine_is_not_loopback(host: str) -> None:
    assert not is_loopback(f"ws://{host}:8000/v1/responses")


def test_targets_are_seconds_or_milliseconds_or_none() -> None:
    assert targets("ttft=1.5s, itl=100ms") == {"ttft_target_s": 1.5, "itl_target_s": 0.1}
    assert targets("itl=none") == {"itl_target_s": math.inf}
