"""What the person at the terminal is told when the server is ready."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from actors import serving
from actors.actor import Mailbox
from actors.config import Config
from actors.engine import Engine
from actors.rubbish import NEVER
from protocol.messages import ModelReady
from tests.actors.recorders import model_ready


@pytest.mark.parametrize("trace", [None, "/var/log/rota [1].jsonl"])
def test_it_says_where_the_page_is_and_where_it_traces_to(
    trace: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    serving._print_ready("127.0.0.1:8000", model_ready(), trace)
    said = capsys.readouterr().out.splitlines()
    assert "  chat     http://127.0.0.1:8000/" in said
    assert [line for line in said if "trace" in line] == ([] if trace is None else [f"  trace    {trace}"])
    assert "Warning" not in " ".join(said)


def test_under_tls_the_addresses_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    serving._print_ready("chat.example:443", model_ready(), None, secure=True)
    said = capsys.readouterr().out.splitlines()
    assert "  chat     https://chat.example:443/" in said
    assert "  clients  wss://chat.example:443/v1/responses" in said


@pytest.mark.parametrize(
    ("grace_s", "said"),
    [
        (2.5, "Ctrl-C lets running answers end, within 2.5 s; a second one stops them at once."),
        (0.0, "Ctrl-C stops running answers at once."),
    ],
)
def test_it_says_for_how_long_a_stop_waits(
    grace_s: float, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ready_at_once(_: Config, announce: Callable[[str, ModelReady], None], __: None) -> None:
        announce("127.0.0.1:8000", model_ready())

    monkeypatch.setattr("actors.serving._serve", ready_at_once)
    monkeypatch.setattr("actors.serving.logs.configure", lambda _: "console")
    serving.serve(Config(grace_s=grace_s))
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_it_warns_when_everyone_may_ask(capsys: pytest.CaptureFixture[str]) -> None:
    serving._print_ready("localhost:8000", model_ready(), None, open_to_all=True)
    assert "Warning: whoever can reach this machine can ask, without a key." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (Config(host="0.0.0.0", allow_no_key=True), True),
        (Config(host="0.0.0.0", allow_no_key=True, api_keys=("anna=secret",)), False),
        (Config(), False),
    ],
)
def test_the_log_warns_at_the_start_when_everyone_may_ask(
    settings: Config, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(main: Coroutine[Any, Any, None]) -> None:
        main.close()

    monkeypatch.setattr("actors.serving.uvloop.run", run)
    monkeypatch.setattr("actors.serving.logs.configure", lambda _: "json")
    with capture_logs() as lines:
        serving.serve(settings)
    assert [line["event"] for line in lines] == (["doors.open_to_everyone"] if warned else [])
    assert all(line["log_level"] == "warning" for line in lines)


async def test_while_it_serves_what_is_there_is_set_aside_and_afterwards_no_more() -> None:
    """So that Python's collector does not look through all of it in the midst of answers."""
    thresholds = gc.get_threshold()
    engine = SimpleNamespace(detokeniser=Mailbox(asyncio.get_running_loop().time, 1))
    clearing = asyncio.create_task(serving._clear_away(cast(Engine, engine)))
    await asyncio.sleep(0)
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold() == (*thresholds[:2], NEVER)
    clearing.cancel()
    await asyncio.gather(clearing, return_exceptions=True)
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds
